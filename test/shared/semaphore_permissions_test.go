package shared_test

import (
	"os"
	"regexp"
	"strconv"
	"testing"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry"
	"github.com/lockregistry/lockregistry/test/internal/kit"
)

// The rights that the documentation names for semaphores, in addition to those for locks, are sufficient and needed.
func TestSemaphore_DocumentedPermissions(t *testing.T) {
	page, err := os.ReadFile("../../docs/permissions.md")
	require.NoError(t, err)
	row := regexp.MustCompile("\\| semaphores; `SetPermits` \\| `(\\S+)`; `(\\S+)` \\| they fail \\|").FindSubmatch(page)
	require.NotNil(t, row)
	use, set := string(row[1]), string(row[2])
	for _, user := range kit.DocumentedDefaults(t) {
		if user.Kind == "read-write" {
			continue // a semaphore has the format of its registry, or its own
		}
		t.Run(user.Kind, func(t *testing.T) {
			kit.RealWorlds(t, func(w *kit.World) {
				w.Do(append([]string{"ACL", "SETUSER", "app", "on", ">secret"}, append(user.Rights, use, set)...)...)
				var log kit.Journal
				made := func() *lockregistry.Semaphore {
					client := w.ClientWith(w.Dial, func(o *rueidis.ClientOption) {
						o.Username, o.Password, o.DisableCache = "app", "secret", true
					})
					opts := []lockregistry.Option{log.Option()}
					if user.Kind == "redisson" {
						opts = append(opts, lockregistry.WithRedissonLayout())
					}
					return w.RegistryOn(client, opts...).Semaphore("seat", 2)
				}
				a, b := made(), made()
				for range 2 { // the second time the server knows the scripts
					both := w.Permit(a, lockregistry.Permits(2))
					waits := w.Asks("waits", b)
					w.Release(both)
					w.Release(waits.Comes())
				}
				require.NoError(w, a.SetPermits(w.Context(), 3))
				require.Empty(w, log.Lines())
				w.Do("ACL", "SETUSER", "app", "-"+set[1:])
				require.ErrorContains(w, a.SetPermits(w.Context(), 2), "lacks +persist")
				w.Release(w.Permit(a, lockregistry.Permits(3))) // as many as before
				if !w.ChecksRights() {                          // nor does an empty semaphore need the command
					return
				}
				w.Do("ACL", "SETUSER", "app", "-"+use[1:])
				_, err := made().Acquire(w.Context(), lockregistry.NoWait())
				require.NotErrorIs(w, err, lockregistry.ErrTaken)
				require.Error(w, err)
			})
		})
	}
}

// A user that may not use the queue does not see who waits there, so its calls take permits that are kept for others.
func TestSemaphore_WithoutPermissionForTheQueue(t *testing.T) {
	kit.RealWorlds(t, func(w *kit.World) {
		a := w.Registry().Semaphore("seat", 2)
		stranger := w.RegistryOn(w.User("resetkeys", "~orders:seat")).Semaphore("seat", 2)
		one := w.Permit(a)
		both := w.Asks("both", w.Registry().Semaphore("seat", 2), lockregistry.Permits(2))
		_, err := a.Acquire(w.Context(), lockregistry.NoWait())
		require.ErrorIs(w, err, lockregistry.ErrTaken)
		w.Release(w.Permit(stranger, lockregistry.NoWait()))
		w.Release(one)
		w.Release(both.Comes())
	})
}

// A user that may do everything but set a lease gets no permit, and leaves nothing behind, even if the right is taken away
// later.
func TestSemaphore_WithoutPermissionToSetALease(t *testing.T) {
	kit.RealWorlds(t, func(w *kit.World) {
		var log kit.Journal
		app := w.Allowed("-pexpire")
		s := w.RegistryOn(w.ClientWith(w.Dial, app), log.Option()).Semaphore("seat", 3)
		refused := func() {
			w.Helper()
			for _, opt := range []lockregistry.SemaphoreOption{lockregistry.NoWait(), lockregistry.Wait(time.Minute)} {
				for permits := 1; permits <= 2; permits++ {
					_, err := s.Acquire(w.Context(), opt, lockregistry.Permits(permits))
					require.Regexp(w, "can't run this command|no permissions|it lacks .pexpire", err)
				}
			}
		}
		refused()
		require.Equal(w, "0", w.Keys())
		w.Do("ACL", "SETUSER", "app", "+pexpire")
		w.Release(w.Permit(s))
		w.Do("DEL", kit.SeatKey)
		w.Do("ACL", "SETUSER", "app", "-pexpire")
		refused()
		require.Equal(w, "0", w.Keys())

		// Beside a hold of another process, whose key ends sooner.
		later := strconv.FormatInt(time.Now().Add(time.Hour).UnixMilli(), 10)
		w.Do("ZADD", kit.SeatKey, "-3", "permits", later, "another:1795278371204117")
		w.Do("PEXPIRE", kit.SeatKey, "20000")
		refused()
		require.Equal(w, "2", w.Do("ZCARD", kit.SeatKey))
		require.LessOrEqual(w, w.Pttl(kit.SeatKey), 20*time.Second)
		require.Empty(w, log.Lines("refuses the queue"))
	})
}
