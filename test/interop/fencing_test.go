package interop

import (
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry/internal/peer"
	"github.com/lockregistry/lockregistry/test/interop/monitor"
)

// Redisson's RFencedLock and this library take their tokens from one counter: each grant has a larger token than all before,
// whoever had the lock, and whether or not the next owner waited.
func TestFencingTokens(t *testing.T) {
	t.Parallel()
	for _, redisson := range redissons() {
		t.Run(redisson.name, func(t *testing.T) {
			t.Parallel()
			fenced := redisson
			fenced.kind = "fenced"
			lease := time.Minute
			if redisson.dozes { // after a missed release it may sleep until then
				lease = 10 * time.Second
			}
			goes := beside(redisson, "auto").golang
			goes.settings["fencing"] = "true"
			prefix := uniquePrefix()
			watch := monitor.Start(t, server.Addr())
			sides := []*side{
				open(t, goes, opening{prefix: prefix, lease: lease}),
				open(t, fenced, opening{prefix: prefix, lease: lease}),
			}
			var last uint64
			grows := func(r peer.Reply) uint64 {
				t.Helper()
				token, err := strconv.ParseUint(r.Fields["value"], 10, 64)
				require.NoError(t, err)
				require.Greater(t, token, last)
				last = token
				return token
			}
			for i := range 10 {
				holder, other := sides[i%2], sides[(i+1)%2]
				token := grows(ended(t, holder.send("fence", with("path"))))
				require.False(t, other.tryLock(t, "path"))
				holder.unlock(t, "path")
				if i%2 == 0 { // this library draws 100 tokens at a time
					require.Equal(t, strconv.FormatUint(token+99, 10), server.Command(t, "GET", "redisson_lock_token:{"+holder.key("path")+"}"))
				}
				require.Equal(t, "-1", server.Command(t, "PTTL", "redisson_lock_token:{"+holder.key("path")+"}"))
			}
			for i := range 4 {
				holder, other := sides[i%2], sides[(i+1)%2]
				grows(ended(t, holder.send("fence", with("path"))))
				mark := watch.Mark()
				waiting := other.send("fence", with("path"))
				_, err := watch.Await(t.Context(), mark, other.tries, func(c monitor.Command) bool { return c.Mentions(other.key("path")) })
				require.NoError(t, err)
				requireWaiting(t, waiting)
				holder.unlock(t, "path")
				grows(ended(t, waiting))
				other.unlock(t, "path")
			}
			requireKey(t, sides[0].key("path"), false)
		})
	}
}
