package torture

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry"
	"github.com/lockregistry/lockregistry/internal/netfault"
)

// A call that waits keeps waiting, whatever happens to the server and the connections, and gets the lock.

// modes are the ways in which waiting calls learn that a key may be free.
var modes = []string{"auto", "pubsub", "tracking", "poll"}

// waits starts a call of the process behind the proxy, and returns once it waits. The call has a limit: the proxy may break the
// connection of its first try, and only a call with a limit goes on then.
func (s *stage) waits() (result <-chan error, unlock func()) {
	s.Helper()
	before := len(s.proxy.Seen(netfault.Match{Name: "obtain"}))
	ctx, path := s.owner(), s.path
	got := make(chan error, 1)
	go func() {
		_, err := s.a.lock(s.soon(ctx), path, time.Minute, 0)
		got <- err
	}()
	s.await("two tries", func() bool { return len(s.proxy.Seen(netfault.Match{Name: "obtain"})) >= before+2 })
	return got, func() {
		if err := s.a.unlock(ctx, path); err != nil {
			s.fromNetwork(err)
		}
	}
}

// disturbances are what happens while a call waits.
var disturbances = []struct {
	name    string
	disturb func(s *stage)
	emptied bool // the holder's key is gone
}{
	{"restart", func(s *stage) { s.server.Restart(s.T) }, true},
	{"the server is away for a while", func(s *stage) {
		s.server.Stop()
		wait(4 * poll)
		s.server.Restart(s.T)
	}, true},
	{"script flush", func(s *stage) { s.do("SCRIPT", "FLUSH") }, false},
	{"clients killed", func(s *stage) {
		s.do("CLIENT", "KILL", "TYPE", "pubsub")
		s.do("CLIENT", "KILL", "TYPE", "normal")
	}, false},
	{"connections cut", func(s *stage) { s.proxy.CutAll() }, false},
	{"network down for a while", func(s *stage) {
		s.proxy.Down()
		wait(4 * poll)
		s.proxy.Heal()
	}, false},
	{"network frozen for a while", func(s *stage) {
		s.proxy.Freeze()
		wait(4 * poll)
		s.proxy.Thaw()
	}, false},
	{"server frozen for a while", func(s *stage) {
		s.server.Freeze()
		wait(4 * poll)
		s.server.Thaw()
	}, false},
	{"flush of all keys", func(s *stage) { s.do("FLUSHALL") }, true},
	{"queue deleted", func(s *stage) { s.do("DEL", queueOf(s.path)) }, false},
	{"queue expired", func(s *stage) {
		s.do("PEXPIRE", queueOf(s.path), "1")
		s.await("its end", func() bool { return s.do("EXISTS", queueOf(s.path)) == "0" })
	}, false},
	{"something else in the queue's place", func(s *stage) { s.do("SET", queueOf(s.path), "something") }, false},
}

func TestDisturbedWhileWaiting(t *testing.T) {
	t.Parallel()
	for _, d := range disturbances {
		for _, mode := range modes {
			t.Run(d.name+"/"+mode, func(t *testing.T) {
				t.Parallel()
				s := newStage(t, library, serve(t), settings{Lease: lease, Poll: poll, Wakeup: mode, Handoff: -1})
				holder := s.owner()
				s.must(holder, s.b, 0)
				got, unlock := s.waits()
				d.disturb(s)
				if !d.emptied {
					select {
					case err := <-got:
						t.Fatal("the wait ended, and the lock was taken: ", err)
					default:
					}
					s.unlocksOnDying(holder, s.b)
				}
				began := time.Now()
				if err := arrives(s, "the lock", got); err != nil {
					t.Fatal("a transient failure ended the wait: ", err)
				}
				require.Less(t, time.Since(began), poll+allowance)
				if d.emptied {
					if err := s.b.unlock(s.soon(holder), s.path); !errors.Is(err, lockregistry.ErrLockLost) {
						s.fromNetwork(err) // its connection went with the server
					}
				}
				unlock()
				s.free()
				require.Empty(t, s.found)
			})
		}
	}
}

// TestRestartUnderHold expects a hold whose key went with the server to be reported lost by its renewal, and then by Unlock.
func TestRestartUnderHold(t *testing.T) {
	t.Parallel()
	s := newStage(t, library, serve(t), settings{Lease: 3 * time.Second, Poll: poll, Renewal: true, Handoff: -1})
	ctx := s.owner()
	s.must(ctx, s.a, 0)
	lost := s.losing(ctx, s.a)
	s.server.Restart(t)
	require.ErrorIs(t, arrives(s, "the loss", lost).why, lockregistry.ErrLockLost)
	s.is(s.a.unlock(s.soon(ctx), s.path), lockregistry.ErrLockLost)
	s.free()
	require.Empty(t, s.found)
}

// TestFirstAttemptFails expects the call to fail when its very first attempt does.
func TestFirstAttemptFails(t *testing.T) {
	t.Parallel()
	s := newStage(t, library, serve(t), settings{Lease: lease, Poll: poll, Handoff: -1})
	s.proxy.Down()
	_, err := s.a.lock(s.soon(s.owner()), s.path, -1, 0)
	s.fromNetwork(err)
	s.proxy.Heal()
	s.free()
	require.Empty(t, s.found)
}

// TestScriptFlushBetweenOperations expects a script flush between two commands to change nothing.
func TestScriptFlushBetweenOperations(t *testing.T) {
	t.Parallel()
	s := newStage(t, library, serve(t), settings{Lease: lease, Poll: poll, Handoff: -1})
	for range 2 {
		ctx := s.owner()
		s.must(ctx, s.a, 0)
		s.do("SCRIPT", "FLUSH")
		require.NoError(t, s.a.renew(s.soon(ctx), s.path, longer))
		s.do("SCRIPT", "FLUSH")
		s.unlocks(ctx, s.a)
	}
	require.Empty(t, s.found)
}

// TestBrokenWakeups plays every breakage on the wake-up connection, at each command that sets it up. Wake-ups are then missing
// or late, but polling gets the lock, without an error.
func TestBrokenWakeups(t *testing.T) {
	t.Parallel()
	server := serve(t)
	for _, command := range []string{"CLIENT", "SUBSCRIBE", "subscribe", "EVAL", "message", "PTTL", "HELLO"} {
		for _, b := range breakages {
			if pushed := command == strings.ToLower(command); pushed && b.fate.Cut.InRequest() {
				continue
			}
			t.Run(command+"/"+b.name, func(t *testing.T) {
				t.Parallel()
				s := newStage(t, library, server, settings{Lease: lease, Poll: poll, Handoff: -1})
				holder := s.owner()
				s.must(holder, s.b, 0)
				s.proxy.Next(netfault.Match{Name: command}, b.fate)
				s.proxy.Next(netfault.Match{Name: command}, b.fate)
				got, unlock := s.waits()
				s.unlocks(holder, s.b)
				began := time.Now()
				require.NoError(t, arrives(s, "the lock", got))
				require.Less(t, time.Since(began), poll+allowance)
				unlock()
				s.free()
				// The connection is made again, and works.
				s.must(holder, s.b, 0)
				got, unlock = s.waits()
				s.unlocks(holder, s.b)
				require.NoError(t, arrives(s, "the lock", got))
				unlock()
				require.Empty(t, s.found)
			})
		}
	}
}

// TestSlowWakeups has the server take longer to answer than a poll interval while a call waits, again and again. A fault here
// may crash the process, so it runs in a process of its own.
func TestSlowWakeups(t *testing.T) {
	const variable = "LOCKREGISTRY_TORTURE_SLOW"
	if os.Getenv(variable) == "" {
		t.Parallel()
		self, err := os.Executable()
		require.NoError(t, err)
		child := exec.Command(self, "-test.run", "^"+t.Name()+"$")
		child.Env = append(os.Environ(), variable+"=1")
		output, err := child.CombinedOutput()
		require.NoError(t, err, "%s", output)
		return
	}
	server := serve(t)
	for _, mode := range modes {
		for _, slow := range []string{"PTTL", "SUBSCRIBE", "EVAL", "CLIENT"} {
			s := newStage(t, library, server, settings{Lease: lease, Poll: poll, Wakeup: mode, Handoff: -1})
			s.proxy.All(netfault.Match{Name: slow}, netfault.Fate{Delay: 3 * poll})
			for range 4 {
				type slowed struct {
					path   string
					holder context.Context
					got    <-chan error
					unlock func()
				}
				var all []slowed
				for range 3 { // several paths: a call for the second one waits behind a call for the first, too
					s.path = strconv.FormatInt(paths.Add(1), 10)
					w := slowed{path: s.path, holder: s.owner()}
					s.must(w.holder, s.b, 0)
					w.got, w.unlock = s.waits()
					all = append(all, w)
				}
				for _, w := range all {
					s.path = w.path
					s.unlocks(w.holder, s.b)
					require.NoError(t, arrives(s, "the lock", w.got), mode)
					w.unlock()
				}
			}
			require.Empty(t, s.found)
		}
	}
}
