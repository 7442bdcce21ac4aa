package cluster_test

import (
	"context"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry"
	"github.com/lockregistry/lockregistry/test/internal/kit"
)

// On a cluster all keys of a lock are in one slot, whatever the path, so that a script may use them all.
func TestReadWriteLock_LocksOnACluster(t *testing.T) {
	t.Parallel()
	cluster := kit.ShareCluster(t)
	pairOn := func(t *testing.T, path string) kit.Pair {
		t.Helper()
		r := cluster.RegistryOn(t, cluster.Client(t), lockregistry.WithPollInterval(kit.NoPoll))
		rw := r.ReadWrite(path)
		return kit.Pair{Reg: r, Reader: rw.Reader(), Writer: rw.Writer()}
	}
	keys := func(t *testing.T) (n int) {
		t.Helper()
		for _, key := range cluster.Keys(t) {
			if !strings.HasSuffix(key, ":waiters") {
				n++
			}
		}
		return n
	}
	for _, path := range []string{"42", "{eu}:42", "eu:{42}:x", "with blanks", "größe"} {
		t.Run(path, func(t *testing.T) {
			a, b := pairOn(t, path), pairOn(t, path)
			ctx := t.Context()
			require.NoError(t, a.Reader.Lock(ctx, lockregistry.Lease(time.Hour)))
			require.NoError(t, a.Reader.Renew(ctx, time.Minute))
			require.NoError(t, b.Reader.Lock(ctx, lockregistry.Lease(time.Minute)))
			require.Equal(t, 3, keys(t), "the hash, and a key for each lease")
			ok, err := kit.Elsewhere2(func() (bool, error) { return b.Writer.TryLock(ctx) })
			require.NoError(t, err)
			require.False(t, ok)
			require.NoError(t, kit.UnlessLate(a.Reader.Unlock(ctx)))

			// The last reader wakes a writer in another process.
			owner := lockregistry.ContextWithOwner(ctx)
			got := kit.LockElsewhere(a.Writer, owner)
			select {
			case err := <-got:
				t.Fatal("ended too soon: ", err)
			case <-time.After(100 * time.Millisecond):
			}
			start := time.Now()
			require.NoError(t, kit.UnlessLate(b.Reader.Unlock(ctx)))
			select {
			case err := <-got:
				require.NoError(t, err)
			case <-time.After(kit.AtOnce):
				t.Fatal("nothing woke the writer")
			}
			t.Log("woken after", time.Since(start))
			require.NoError(t, kit.UnlessLate(a.Writer.Unlock(owner)))
			require.Zero(t, keys(t))
		})
	}

	// A name with half a brace, or an empty pair, has no hash tag: then Redisson's derived names are in another slot, and often on
	// another node. That is an error, and leaves nothing behind that would stay forever.
	failed := 0
	for i := range 20 {
		before := keys(t)
		p := pairOn(t, "a{b"+strconv.Itoa(i))
		if i%2 == 0 {
			p = pairOn(t, "a{}b"+strconv.Itoa(i))
		}
		if err := p.Reader.Lock(context.Background()); err != nil {
			failed++
		} else {
			require.NoError(t, p.Reader.Unlock(context.Background()))
		}
		require.Equal(t, before, keys(t))
	}
	require.Positive(t, failed)
}
