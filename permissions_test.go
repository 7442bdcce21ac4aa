package lockregistry_test

import (
	"bufio"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry"
	"github.com/lockregistry/lockregistry/internal/protocol"
)

// documentedUser is an ACL user as docs/permissions.md has it.
type documentedUser struct {
	kind, mode string
	rights     []string
}

// documentedUsers reads the page: one block for each kind of lock, and in it for each mode a line that begins with "#",
// which either says what comes on top of the first user's rights or is followed by the command that makes the user.
func documentedUsers(t *testing.T) (users []documentedUser) {
	t.Helper()
	page, err := os.Open("docs/permissions.md")
	require.NoError(t, err)
	defer func() { require.NoError(t, page.Close()) }()
	kinds := []string{"spring", "redisson", "read-write"}
	block, mode, within := -1, "", false
	var base []string
	for lines := bufio.NewScanner(page); lines.Scan(); {
		line := lines.Text()
		title, isMode := strings.CutPrefix(line, "# ")
		rights, isCommand := strings.CutPrefix(line, "ACL SETUSER app on >secret ")
		switch {
		case strings.HasPrefix(line, "```"):
			within = !within && line == "```text"
			if within {
				block++
			}
		case !within || block >= len(kinds):
		case isMode:
			name, more, additive := strings.Cut(title, ": and ")
			if mode = name; additive {
				users = append(users, documentedUser{kinds[block], mode, slices.Concat(base, strings.Fields(more))})
			}
		case isCommand:
			if mode == "WithPolling" {
				base = strings.Fields(rights)
			}
			users = append(users, documentedUser{kinds[block], mode, strings.Fields(rights)})
		}
	}
	return users
}

// withTracking are the users of one mode, with what the server's word of a changed key needs besides: the default takes it where
// Java publishes nothing.
func withTracking(users []documentedUser, mode string) (more []documentedUser) {
	for _, u := range users {
		if u.mode == mode {
			rights := slices.Concat(u.rights, []string{"+subscribe", "+unsubscribe", "+client|tracking"})
			more = append(more, documentedUser{u.kind, "without messages", rights})
		}
	}
	return more
}

// The permissions that the documentation names are enough: locks work, waiters wake at once, and nothing is logged.
func TestPermissions_DocumentedPermissions(t *testing.T) {
	t.Parallel()
	users := documentedUsers(t)
	require.Len(t, users, 3*3, "three kinds of locks, three modes")
	users = append(users, withTracking(users, "WithPolling")...)
	require.Len(t, users, 3*4)
	modes := map[string]lockregistry.Wakeup{
		"the default": lockregistry.WakeupAuto, "WithPolling": lockregistry.WakeupPoll,
		"without tracking": lockregistry.WakeupPubSub, "without messages": lockregistry.WakeupTracking,
	}
	for _, user := range users {
		t.Run(user.kind+" "+user.mode, func(t *testing.T) {
			realWorlds(t, func(w *world) {
				mode, known := modes[user.mode]
				require.True(w, known, user.mode)
				w.do(append([]string{"ACL", "SETUSER", "app", "on", ">secret"}, user.rights...)...)
				app := func(o *rueidis.ClientOption) {
					o.Username, o.Password, o.DisableCache = "app", "secret", true
				}
				var log journal
				poll := noPoll
				if mode == lockregistry.WakeupPoll {
					poll = 20 * time.Millisecond
				}
				made := func() *lockregistry.Registry {
					opts := []lockregistry.Option{log.option(), lockregistry.WithWakeup(mode), lockregistry.WithPollInterval(poll)}
					if user.kind == "redisson" {
						opts = append(opts, lockregistry.WithLayout(lockregistry.LayoutRedisson))
					}
					return w.registryOn(w.clientWith(w.dial, app), opts...)
				}
				locksOf := func(r *lockregistry.Registry) []*lockregistry.Lock {
					if user.kind == "read-write" {
						return []*lockregistry.Lock{r.ReadWrite("42").Writer(), r.ReadWrite("42").Reader()}
					}
					return []*lockregistry.Lock{r.Obtain("42")}
				}
				holder, waiter := locksOf(made()), locksOf(made())
				for _, held := range holder {
					waits := waiter[0] // what is held keeps a writer out in any case
					for range 2 {      // the second time with scripts that the server knows
						w.lock(held)
						w.lock(held)
						require.NoError(w, held.Renew(w.Context(), time.Minute))
						g := w.goroutine()
						result := g.starts(waits)
						w.waitsFor(mode)
						w.pending(result)
						start := time.Now()
						w.unlock(held)
						w.unlock(held)
						w.takes(start, result)
						require.NoError(w, g.unlock(waits))
					}
				}
				require.Empty(w, w.do("ZRANGEBYSCORE", "orders:{orders:42}:waiters", "0", "+inf"))
				require.Equal(w, "0", w.do("EXISTS", theKey))
				require.Empty(w, log.lines())
				c := w.clientWith(w.dial, app)
				require.NoError(w, c.Do(w.Context(), c.B().ScriptExists().Sha1(protocol.Foreign()...).Build()).Error())
			})
		})
	}
}

// waitsFor returns once a lock is waited for in the way of the mode.
func (w *world) waitsFor(mode lockregistry.Wakeup) {
	w.Helper()
	switch mode {
	case lockregistry.WakeupPoll:
		tries := w.executed("evalsha")
		w.await("it polls", func() bool { return w.executed("evalsha") >= tries+3 })
	case lockregistry.WakeupPubSub:
		w.await("it is subscribed", func() bool {
			return strings.Contains(w.do("PUBSUB", "CHANNELS", "*42*"), "42")
		})
	default:
		w.await("the key is tracked", func() bool { return w.tracked() > 0 })
	}
}
