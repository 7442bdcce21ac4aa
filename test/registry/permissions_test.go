package registry_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry"
	"github.com/lockregistry/lockregistry/internal/protocol"
	"github.com/lockregistry/lockregistry/test/internal/kit"
)

// withTracking are the users of one mode, with the additional rights for tracking. The default uses tracking where Java
// publishes nothing.
func withTracking(users []kit.DocumentedUser, mode string) (more []kit.DocumentedUser) {
	for _, u := range users {
		if u.Mode == mode {
			rights := slices.Concat(u.Rights, []string{"+subscribe", "+unsubscribe", "+client|tracking"})
			more = append(more, kit.DocumentedUser{Kind: u.Kind, Mode: "without messages", Rights: rights})
		}
	}
	return more
}

// The permissions that the documentation names are enough: locks work, waiters wake at once, and nothing is logged.
func TestPermissions_DocumentedPermissions(t *testing.T) {
	t.Parallel()
	users := kit.DocumentedUsers(t)
	require.Len(t, users, 3*3, "three kinds of locks, three modes")
	users = append(users, withTracking(users, "WithPolling")...)
	require.Len(t, users, 3*4)
	modes := map[string]kit.Wakeup{
		"the default": kit.WakeupAuto, "WithPolling": kit.WakeupPoll,
		"without tracking": kit.WakeupPubSub, "without messages": kit.WakeupTracking,
	}
	for _, user := range users {
		t.Run(user.Kind+" "+user.Mode, func(t *testing.T) {
			kit.RealWorlds(t, func(w *kit.World) {
				mode, known := modes[user.Mode]
				require.True(w, known, user.Mode)
				w.Do(append([]string{"ACL", "SETUSER", "app", "on", ">secret"}, user.Rights...)...)
				app := func(o *rueidis.ClientOption) {
					o.Username, o.Password, o.DisableCache = "app", "secret", true
				}
				var log kit.Journal
				poll := kit.NoPoll
				if mode == kit.WakeupPoll {
					poll = 20 * time.Millisecond
				}
				made := func() *lockregistry.Registry {
					opts := []lockregistry.Option{log.Option(), kit.WithWakeup(mode), lockregistry.WithPollInterval(poll)}
					if user.Kind == "redisson" {
						opts = append(opts, lockregistry.WithRedissonLayout())
					}
					return w.RegistryOn(w.ClientWith(w.Dial, app), opts...)
				}
				locksOf := func(r *lockregistry.Registry) []*lockregistry.Lock {
					if user.Kind == "read-write" {
						return []*lockregistry.Lock{r.ReadWrite("42").Writer(), r.ReadWrite("42").Reader()}
					}
					return []*lockregistry.Lock{r.Obtain("42")}
				}
				holder, waiter := locksOf(made()), locksOf(made())
				for _, held := range holder {
					waits := waiter[0] // a held lock excludes a writer in any case
					for range 2 {      // the second time the server knows the scripts
						w.Lock(held)
						w.Lock(held)
						require.NoError(w, held.Renew(w.Context(), time.Minute))
						g := w.Goroutine()
						result := g.Starts(waits)
						waitsFor(w, mode)
						w.Pending(result)
						start := time.Now()
						w.Unlock(held)
						w.Unlock(held)
						w.Takes(start, result)
						require.NoError(w, g.Unlock(waits))
					}
				}
				require.Empty(w, w.Do("ZRANGEBYSCORE", "orders:{orders:42}:waiters", "0", "+inf"))
				require.Equal(w, "0", w.Do("EXISTS", kit.TheKey))
				require.Empty(w, log.Lines())
				c := w.ClientWith(w.Dial, app)
				require.NoError(w, c.Do(w.Context(), c.B().ScriptExists().Sha1(protocol.Foreign()...).Build()).Error())
			})
		})
	}
}

// waitsFor returns once a call waits for a lock in the way of the mode.
func waitsFor(w *kit.World, mode kit.Wakeup) {
	w.Helper()
	switch mode {
	case kit.WakeupPoll:
		tries := w.Executed("evalsha")
		w.Await("it polls", func() bool { return w.Executed("evalsha") >= tries+3 })
	case kit.WakeupPubSub:
		w.Await("it is subscribed", func() bool {
			return strings.Contains(w.Do("PUBSUB", "CHANNELS", "*42*"), "42")
		})
	default:
		w.Await("the key is tracked", func() bool { return w.Tracked() > 0 })
	}
}
