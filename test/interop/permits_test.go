package interop

import (
	"testing"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry"
	"github.com/lockregistry/lockregistry/inspect"
)

// A semaphore of this library and one of Redisson are different objects. Whichever is at a path first, the calls of the other
// library fail, and change nothing.
func TestPermits_OtherObjects(t *testing.T) {
	t.Parallel()
	client, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{server.Addr()}, DisableCache: true})
	require.NoError(t, err)
	t.Cleanup(client.Close)
	for _, lib := range redissons() {
		for name, anonymous := range map[string][]string{"RPermitExpirableSemaphore": nil, "RSemaphore": {"anonymous", "true"}} {
			t.Run(lib.name+", "+name, func(t *testing.T) {
				t.Parallel()
				prefix := uniquePrefix()
				java := open(t, lib, opening{prefix: prefix})
				says := func(do, path string, more ...string) string {
					t.Helper()
					return ended(t, java.send(do, with(path, append(more, anonymous...)...))).Fields["value"]
				}
				r, err := lockregistry.New(client, prefix, lockregistry.WithRedissonLayout())
				require.NoError(t, err)
				t.Cleanup(func() { _ = r.Close() })

				require.Equal(t, "true", says("beginpermits", "theirs", "n", "2"))
				id := says("enter", "theirs", "wait", "0", "lease", "60000")
				require.NotEmpty(t, id)
				s := r.Semaphore("theirs", 2)
				_, err = s.Acquire(t.Context())
				_, err2 := s.Acquire(t.Context(), lockregistry.NoWait())
				_, err3 := inspect.Of(r).Inspect(t.Context(), "theirs")
				for _, err := range []error{
					err, err2, err3, s.SetPermits(t.Context(), 3), inspect.Of(r).ForceUnlock(t.Context(), "theirs"),
					inspect.Of(r).ForceUnlockHolder(t.Context(), "theirs", id),
				} {
					require.ErrorIs(t, err, lockregistry.ErrWrongType)
					require.ErrorContains(t, err, "a number, as Redisson's RSemaphore and RPermitExpirableSemaphore keep there")
				}
				require.Equal(t, "1", says("leave", "theirs", "permit", id))
				require.Equal(t, "2", server.Command(t, "GET", prefix+":theirs"))

				h, err := r.Semaphore("ours", 2).Acquire(t.Context())
				require.NoError(t, err)
				_, err = java.do(t, "enter", with("ours", append([]string{"wait", "0", "lease", "60000"}, anonymous...)...))
				require.Error(t, err) // old versions have another error text
				require.NoError(t, h.Renew(t.Context(), time.Minute))
				require.NoError(t, h.Release(t.Context()))
			})
		}
	}
}
