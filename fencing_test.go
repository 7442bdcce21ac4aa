package lockregistry_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry"
	"github.com/lockregistry/lockregistry/internal/redistest"
)

// fenced is a kind of lock whose holds have tokens.
type fenced struct {
	name, counter string
	shows         string // the command that shows the holder
	obtains       string // what [flaky] calls the script that obtains
	opts          []lockregistry.Option
	of            func(r *lockregistry.Registry, path string) *lockregistry.Lock
}

// fencedLocks are all of them, and the keys of their counters for the path 42.
func fencedLocks() []fenced {
	plain := (*lockregistry.Registry).Obtain
	writer := func(r *lockregistry.Registry, path string) *lockregistry.Lock { return r.ReadWrite(path).Writer() }
	redisson := []lockregistry.Option{lockregistry.WithLayout(lockregistry.LayoutRedisson)}
	return []fenced{
		{"spring", "orders:{orders:42}:fencing", "GET", "obtain", nil, plain},
		{"redisson", "redisson_lock_token:{orders:42}", "HKEYS", "obtain", redisson, plain},
		{"writer", "orders:{orders:42}:fencing", "HKEYS", "write_obtain", nil, writer},
		{"redisson writer", "orders:{orders:42}:fencing", "HKEYS", "write_obtain", redisson, writer},
	}
}

func fencedWorlds(t *testing.T, test func(w *world, f fenced)) {
	t.Helper()
	t.Parallel()
	for _, f := range fencedLocks() {
		t.Run(f.name, func(t *testing.T) { worlds(t, func(w *world) { test(w, f) }) })
	}
}

// fencing is a lock of 42 of a process of its own.
func (f fenced) lock(w *world, opts ...lockregistry.Option) *lockregistry.Lock {
	w.Helper()
	opts = slices.Concat(f.opts, []lockregistry.Option{lockregistry.WithFencing()}, opts)
	return f.of(w.registry(opts...), "42")
}

// counted is the counter's last token.
func (w *world) counted(key string) uint64 {
	w.Helper()
	n, err := strconv.ParseUint(w.do("GET", key), 10, 64)
	require.NoError(w, err)
	return n
}

func (w *world) acquired(l *lockregistry.Lock, opts ...lockregistry.LockOption) *lockregistry.Hold {
	w.Helper()
	h, err := l.Acquire(w.Context(), opts...)
	require.NoError(w, err)
	return h
}

func (w *world) released(h *lockregistry.Hold) {
	w.Helper()
	require.NoError(w, h.Release(w.Context()))
}

// tokenIn is the token of a context, 0 without.
func (w *world) tokenIn(ctx context.Context) uint64 {
	w.Helper()
	token, ok := lockregistry.TokenFrom(ctx)
	require.Equal(w, token > 0, ok)
	return token
}

// Each grant has a larger token, in whichever process, and the contexts of a hold have it.
func TestFencing_TokensGrow(t *testing.T) {
	fencedWorlds(t, func(w *world, f fenced) {
		a, b := f.lock(w), f.lock(w)
		var last uint64
		for i := range 6 {
			l := []*lockregistry.Lock{a, b}[i%2]
			begun := w.micros()
			h := w.acquired(l)
			token := h.Token()
			require.Greater(w, token, last)
			require.Equal(w, w.counted(f.counter), token+99)
			if f.name != "redisson" {
				require.GreaterOrEqual(w, token, begun)
				require.Greater(w, w.pttl(f.counter), time.Hour-time.Minute)
				require.LessOrEqual(w, w.pttl(f.counter), time.Hour+time.Millisecond)
			} else {
				require.Equal(w, uint64(200*i+1), token)
				require.Equal(w, time.Duration(-1), w.pttl(f.counter))
			}
			ctx := h.Context(w.Context())
			require.Equal(w, token, w.tokenIn(ctx))
			require.Zero(w, w.tokenIn(lockregistry.NewOwner(ctx)))
			w.released(h)
			require.Equal(w, token, w.tokenIn(ctx), "a late write is to be refused for it")
			require.Equal(w, token, w.tokenIn(h.Context(w.Context())))
			require.Equal(w, token, h.Token())

			w.lock(l)
			ctx = l.Context(w.Context())
			last = w.tokenIn(ctx)
			require.Greater(w, last, token)
			w.lock(l)
			require.Equal(w, last, w.tokenIn(l.Context(w.Context())), "locking again keeps it")
			require.NoError(w, l.Renew(w.Context(), time.Minute))
			w.unlock(l)
			require.Equal(w, last, w.tokenIn(l.Context(w.Context())))
			w.unlock(l)
			require.Equal(w, last, w.tokenIn(ctx))
			require.Zero(w, w.tokenIn(l.Context(ctx)), "who holds nothing has no token")
		}
	})
}

// micros is the server's time.
func (w *world) micros() uint64 {
	w.Helper()
	now := strings.Fields(strings.Trim(w.do("TIME"), "[]"))
	s, err := strconv.ParseUint(now[0], 10, 64)
	require.NoError(w, err)
	us, err := strconv.ParseUint(now[1], 10, 64)
	require.NoError(w, err)
	return s*1_000_000 + us
}

func TestFencing_TokensOfNestedHolds(t *testing.T) {
	worlds(t, func(w *world) {
		r, without := w.registry(lockregistry.WithFencing()), w.registry()
		w.released(w.acquired(r.Obtain("b"))) // so that the numbers are others, although no time passes
		_ = r.Do(w.Context(), "a", func(ctx context.Context) error {
			a := w.tokenIn(ctx)
			require.NotZero(w, a)
			return r.Do(ctx, "b", func(ctx context.Context) error {
				b := w.tokenIn(ctx)
				require.NotEqual(w, a, b)
				require.NoError(w, r.Do(ctx, "a", func(ctx context.Context) error {
					require.Equal(w, a, w.tokenIn(ctx), "the innermost hold is that of a again")
					return nil
				}))
				require.Equal(w, a, w.tokenIn(r.Obtain("a").Context(ctx)))
				require.NoError(w, without.Do(ctx, "c", func(ctx context.Context) error {
					require.Zero(w, w.tokenIn(ctx))
					return nil
				}))
				w.lock(r.ReadWrite("rw").Reader())
				require.Zero(w, w.tokenIn(r.ReadWrite("rw").Reader().Context(ctx)))
				h := w.acquired(r.ReadWrite("rw").Reader())
				require.Zero(w, h.Token())
				require.Zero(w, w.tokenIn(h.Context(ctx)))
				w.released(h)
				w.unlock(r.ReadWrite("rw").Reader())
				return nil
			})
		})
		h := w.acquired(without.Obtain("42"))
		require.Zero(w, h.Token())
		w.released(h)
		require.Equal(w, "0", w.do("EXISTS", "orders:{orders:42}:fencing"))
		require.Zero(w, w.tokenIn(w.Context()))
		_, ok := lockregistry.TokenFrom(nil) //nolint:staticcheck // bad input
		require.False(w, ok)
	})
}

// Goroutines that hand the lock to each other have tokens of one draw. When they are used up the lock is released.
func TestFencing_TokensAtHandOver(t *testing.T) {
	fencedWorlds(t, func(w *world, f fenced) {
		l := f.lock(w, lockregistry.WithHandoff(time.Hour))
		const owners = 230
		var all sync.WaitGroup
		var last, grants uint64
		first := w.acquired(l)
		last = first.Token()
		value := ""
		for range owners {
			all.Go(func() {
				h, err := l.Acquire(w.Context())
				if err != nil {
					w.Error(err)
					return
				}
				if h.Token() <= last {
					w.Errorf("%d after %d", h.Token(), last)
				}
				last = h.Token()
				now := w.do(f.shows, "orders:42")
				if now != value {
					grants++
				}
				value = now
				if err := h.Release(w.Context()); err != nil {
					w.Error(err)
				}
			})
		}
		if w.fake {
			w.settle()
		}
		w.released(first)
		all.Wait()
		if w.fake { // all of them waited
			require.Equal(w, uint64(3), grants, "a draw is good for 100 owners")
		}
	})
}

// Twins share a hold, and with it the token, also when it is handed to them.
func TestFencing_TwinsHaveOneToken(t *testing.T) {
	fakeWorld(t, func(w *world) {
		l := w.registry(lockregistry.WithFencing()).Obtain("42")
		w.lock(l)
		before := w.tokenIn(l.Context(w.Context()))
		both := lockregistry.NewOwner(w.Context())
		tokens := make(chan uint64, 2)
		for range 2 {
			go func() {
				if err := l.Lock(both); err != nil {
					w.Error(err)
				}
				token, _ := lockregistry.TokenFrom(l.Context(both))
				tokens <- token
			}()
		}
		w.settle()
		w.unlock(l)
		require.Equal(w, before+1, <-tokens)
		require.Equal(w, before+1, <-tokens)
		require.NoError(w, l.Unlock(both))
		require.NoError(w, l.Unlock(both))
	})
}

// queues returns once somebody waits for 42.
func (w *world) queues() {
	w.Helper()
	if w.fake { // where there is no queue
		w.settle()
		return
	}
	w.await("it waits", func() bool { return w.do("ZCOUNT", "orders:{orders:42}:waiters", "0", "+inf") != "0" })
}

// Who waits in the queue is granted the lock by others, which may know nothing of tokens, and has one nevertheless.
func TestFencing_TokensOfTheQueue(t *testing.T) {
	t.Parallel()
	for name, granter := range map[string][]lockregistry.Option{"fencing": {lockregistry.WithFencing()}, "without": nil} {
		t.Run(name, func(t *testing.T) {
			fencedWorlds(t, func(w *world, f fenced) {
				other := f.of(w.registry(slices.Concat(f.opts, granter)...), "42")
				l := f.lock(w, lockregistry.WithPollInterval(time.Minute))
				before := w.acquired(l)
				w.released(before)
				last := before.Token()
				for range 3 {
					w.lock(other)
					tokens := make(chan uint64)
					go func() {
						h, err := l.Acquire(w.Context())
						if err != nil {
							w.Error(err)
						}
						tokens <- h.Token()
						if err := h.Release(w.Context()); err != nil {
							w.Error(err)
						}
						close(tokens)
					}()
					w.queues()
					if other := w.tokenIn(other.Context(w.Context())); other > 0 {
						require.Greater(w, other, last)
						last = other
					}
					w.unlock(other)
					token := <-tokens
					require.Greater(w, token, last)
					last = token
					<-tokens
				}
			})
		})
	}
}

// A grant of which the reply was lost, or came late, does no harm: the next token is larger.
func TestFencing_TokensOfLostReplies(t *testing.T) {
	fencedWorlds(t, func(w *world, f fenced) {
		flaky := w.flaky()
		l := f.of(flaky.registry(slices.Concat(f.opts, []lockregistry.Option{lockregistry.WithFencing()})...), "42")
		h := w.acquired(l)
		last := h.Token()
		w.released(h)
		for range 3 {
			before := w.counted(f.counter)
			flaky.next(f.obtains, cutAfter)
			h, err := l.Acquire(w.Context(), lockregistry.Wait(20*time.Second))
			require.NoError(w, err)
			require.Greater(w, h.Token(), before+99, "the lost grant has drawn, too")
			require.Greater(w, h.Token(), last)
			last = h.Token()
			w.released(h)
		}
	})
}

// A late answer may be a deposed master's: the token is drawn anew with the renewal that confirms the grant.
func TestFencing_TokenOfALateGrant(t *testing.T) {
	fakeWorld(t, func(w *world) {
		f := w.flaky()
		r := f.registry(lockregistry.WithFencing())
		w.known(r)
		l := r.Obtain("42")
		f.next("obtain", slow(late))
		h := w.acquired(l)
		require.Equal(w, w.counted("orders:{orders:42}:fencing"), h.Token()+99)
		w.released(h)
	})
}

// The counter outlives its expiry and the server's memory, since the clock goes on; and with the counter tokens grow although the
// clock is set back. Without both they do not: that is what a promoted replica is that has a slower clock and no counter.
func TestFencing_TokensAndTheClock(t *testing.T) {
	const counter = "orders:{orders:42}:fencing"
	fakeWorld(t, func(w *world) {
		l := w.registry(lockregistry.WithFencing()).Obtain("42")
		next := func() uint64 {
			h := w.acquired(l)
			w.released(h)
			return h.Token()
		}
		first := next()
		w.pass(time.Hour + time.Second)
		require.True(w, w.free(counter), "it leaves no key for ever")
		second := next()
		require.Greater(w, second, first)
		w.pass(time.Millisecond)
		w.mini.FlushAll()
		third := next()
		require.Greater(w, third, second)

		back := time.Now().Add(-time.Minute)
		w.mini.SetTime(back)
		fourth := next()
		require.Equal(w, third+100, fourth, "the clock is behind, and the counter knows")
		require.Greater(w, w.pttl(counter), time.Hour+59*time.Second, "it stays until the clock has caught up")

		w.mini.Del(counter)
		require.Less(w, next(), fourth, "as the documentation says")
	})
}

// More draws than the clock has microseconds for.
func TestFencing_TokensAheadOfTheClock(t *testing.T) {
	realWorlds(t, func(w *world) {
		l := w.registry(lockregistry.WithFencing()).Obtain("42")
		const counter = "orders:{orders:42}:fencing"
		ahead := w.micros() + 3_600_000_000
		w.do("SET", counter, strconv.FormatUint(ahead, 10))
		h := w.acquired(l)
		require.Equal(w, ahead+1, h.Token())
		require.Equal(w, ahead+100, w.counted(counter), "no digit is lost")
		require.Greater(w, w.pttl(counter), 2*time.Hour-time.Minute)
		w.released(h)
	})
}

func TestFencing_TokensAfterForceUnlock(t *testing.T) {
	fencedWorlds(t, func(w *world, f fenced) {
		r := w.registry(slices.Concat(f.opts, []lockregistry.Option{lockregistry.WithFencing()})...)
		h := w.acquired(f.of(r, "42"))
		require.NoError(w, r.ForceUnlock(w.Context(), "42"))
		next := w.acquired(f.lock(w))
		require.Greater(w, next.Token(), h.Token())
		require.ErrorIs(w, h.Release(w.Context()), lockregistry.ErrLockLost)
		w.released(next)
	})
}

// Without its counter a lock is not granted, and nothing stays behind.
func TestFencing_NoCounter(t *testing.T) {
	fencedWorlds(t, func(w *world, f fenced) {
		l := f.lock(w)
		w.do("SADD", f.counter, "of something else")
		check := func(err error) {
			w.Helper()
			require.ErrorContains(w, err, f.counter)
			require.ErrorContains(w, err, "fencing counter")
			require.NotErrorIs(w, err, lockregistry.ErrWrongType)
			require.NotErrorIs(w, err, lockregistry.ErrUnavailable)
			w.await("the key is free", func() bool { return w.free("orders:42") })
		}
		check(l.Lock(w.Context()))

		other := f.of(w.registry(f.opts...), "42") // and with a grant by the queue
		w.lock(other)
		result := make(chan error, 1)
		go func() { result <- l.Lock(w.Context()) }()
		w.queues()
		w.unlock(other)
		check(<-result)

		w.do("DEL", f.counter)
		w.do("ZADD", "orders:{orders:42}:waiters", "-1", "open", "-1", "wide") // and with a ticket, of a free lock
		w.do("SADD", f.counter, "of something else")
		result = make(chan error, 1)
		go func() { result <- l.Lock(w.Context(), lockregistry.Wait(time.Minute)) }()
		check(<-result)
		w.do("DEL", f.counter)
		w.lock(l)
		w.unlock(l)
	})
}

// A counter that holds no number is not overwritten, also when Lua would take it for one. It can be seen, and is removed by
// people.
func TestFencing_CounterThatIsNoNumber(t *testing.T) {
	fencedWorlds(t, func(w *world, f fenced) {
		l := f.lock(w)
		for _, text := range []string{"abc", "nan", "inf", "0x10", "1e5", "-1", "12345678901234567", ""} {
			if f.name == "redisson" && (text == "-1" || text == "12345678901234567") {
				continue // numbers to INCRBY
			}
			w.do("SET", f.counter, text)
			err := l.Lock(w.Context())
			require.ErrorContains(w, err, "fencing counter", text)
			require.Equal(w, text, w.do("GET", f.counter))
			require.Empty(w, about(err))
		}
	})
}

func TestFencing_ReservedPaths(t *testing.T) {
	fakeWorld(t, func(w *world) {
		r := w.registry()
		for path, reserved := range map[string]bool{
			"{orders:42}:fencing": true, "{a}:waiters": true, "{a}b:fencing": true,
			"fencing": false, "a:fencing": false, "b:waiters": false, "{a}fencing": false, "{}:fencing": false,
		} {
			for _, l := range []*lockregistry.Lock{r.Obtain(path), r.ReadWrite("w" + path).Writer()} {
				ok, err := l.TryLock(w.Context())
				require.Equal(w, !reserved, ok, path)
				if reserved {
					require.ErrorContains(w, err, "reserved")
					require.ErrorContains(w, r.ForceUnlock(w.Context(), path), "reserved")
				} else {
					w.unlock(l)
				}
			}
		}
	})
}

// resource refuses what has an older token than it has seen, as that which locks protect should.
type resource struct{ newest, refused atomic.Uint64 }

func (r *resource) write(token uint64) {
	for {
		newest := r.newest.Load()
		if token <= newest {
			r.refused.Add(1)
			return
		}
		if r.newest.CompareAndSwap(newest, token) {
			return
		}
	}
}

// Many goroutines of many processes, some of which know nothing of tokens: no holder is taken for a late one.
func TestFencing_NoHolderIsRefused(t *testing.T) {
	t.Parallel()
	for _, f := range fencedLocks() {
		t.Run(f.name, func(t *testing.T) {
			realWorlds(t, func(w *world) {
				const registries, goroutines, rounds = 3, 5, 40
				var protected resource
				var all sync.WaitGroup
				without := f.of(w.registry(f.opts...), "42")
				all.Go(func() {
					for range rounds {
						if err := without.Lock(w.Context()); err != nil {
							w.Error(err)
							return
						}
						if err := without.Unlock(w.Context()); err != nil {
							w.Error(err)
						}
					}
				})
				for range registries {
					l := f.lock(w)
					for range goroutines {
						all.Go(func() {
							for range rounds {
								h, err := l.Acquire(w.Context())
								if err != nil {
									w.Error(err)
									return
								}
								protected.write(h.Token())
								if err := h.Release(w.Context()); err != nil {
									w.Error(err)
								}
							}
						})
					}
				}
				all.Wait()
				require.Zero(w, protected.refused.Load())
			})
		})
	}
}

// On a cluster the counter is in the slot of its key.
func TestFencing_TokensOnACluster(t *testing.T) {
	t.Parallel()
	nodes := redistest.StartCluster(t, 3)
	for _, f := range fencedLocks() {
		for _, path := range []string{"a", "b", "c", "{tag}d", "e}f"} {
			t.Run(f.name+" "+path, func(t *testing.T) {
				var locks []*lockregistry.Lock
				for range 2 {
					client, err := newClient(rueidis.ClientOption{InitAddress: []string{nodes[0].Addr()}})
					require.NoError(t, err)
					t.Cleanup(client.Close)
					opts := slices.Concat(f.opts, []lockregistry.Option{lockregistry.WithFencing()})
					r, err := lockregistry.New(client, "orders", opts...)
					require.NoError(t, err)
					t.Cleanup(func() { _ = r.Close() })
					locks = append(locks, f.of(r, path))
				}
				if strings.Contains(path, "}") && !strings.Contains(path, "{") {
					require.ErrorContains(t, locks[0].Lock(t.Context()), "braces")
					return
				}
				var all sync.WaitGroup
				var protected resource
				for _, l := range locks {
					for range 2 {
						all.Go(func() {
							for range 25 {
								h, err := l.Acquire(t.Context())
								if err != nil {
									t.Error(err)
									return
								}
								protected.write(h.Token())
								if err := h.Release(t.Context()); err != nil {
									t.Error(err)
								}
							}
						})
					}
				}
				all.Wait()
				require.Zero(t, protected.refused.Load())
			})
		}
	}
}

// While a slot moves, no second counter begins where it goes: the first one could not be moved there any more, and its tokens
// would be forgotten.
func TestFencing_ACounterMovesWithItsSlot(t *testing.T) {
	t.Parallel()
	nodes := redistest.StartCluster(t, 3)
	for _, f := range fencedLocks()[:2] {
		t.Run(f.name, func(t *testing.T) {
			lock := func() *lockregistry.Lock {
				client, err := newClient(rueidis.ClientOption{InitAddress: []string{nodes[0].Addr()}, DisableCache: true})
				require.NoError(t, err)
				t.Cleanup(client.Close)
				r, err := lockregistry.New(client, "orders", slices.Concat(f.opts, []lockregistry.Option{lockregistry.WithFencing()})...)
				require.NoError(t, err)
				t.Cleanup(func() { _ = r.Close() })
				return f.of(r, "42")
			}
			first, err := lock().Acquire(t.Context())
			require.NoError(t, err)
			require.NoError(t, first.Release(t.Context()))
			i := slices.IndexFunc(nodes, func(n *redistest.Server) bool { _, err := n.Do("EXISTS", theKey); return err == nil })
			from, to := nodes[i], nodes[(i+1)%3]
			slot := from.Command(t, "CLUSTER", "KEYSLOT", theKey)
			to.Command(t, "CLUSTER", "SETSLOT", slot, "IMPORTING", from.Command(t, "CLUSTER", "MYID"))
			from.Command(t, "CLUSTER", "SETSLOT", slot, "MIGRATING", to.Command(t, "CLUSTER", "MYID"))
			l := lock()
			_, err = l.Acquire(t.Context(), lockregistry.Wait(300*time.Millisecond))
			require.ErrorIs(t, err, lockregistry.ErrUnavailable)
			require.Equal(t, "0", to.Command(t, "CLUSTER", "COUNTKEYSINSLOT", slot))
			got, failed := make(chan *lockregistry.Hold, 1), make(chan error, 1)
			go func() {
				h, err := l.Acquire(t.Context(), lockregistry.Wait(time.Minute))
				got <- h
				failed <- err
			}()
			host, port, err := net.SplitHostPort(to.Addr())
			require.NoError(t, err)
			for key := range strings.FieldsSeq(from.Command(t, "CLUSTER", "GETKEYSINSLOT", slot, "10")) {
				from.Command(t, "MIGRATE", host, port, key, "0", "5000")
			}
			for _, n := range []*redistest.Server{to, from, nodes[(i+2)%3]} {
				n.Command(t, "CLUSTER", "SETSLOT", slot, "NODE", to.Command(t, "CLUSTER", "MYID"))
			}
			h := <-got
			require.NoError(t, <-failed)
			require.Greater(t, h.Token(), first.Token())
			require.NoError(t, h.Release(t.Context()))
		})
	}
}

// The permissions that the documentation names are enough.
func TestFencing_DocumentedPermissionsOfFencing(t *testing.T) {
	page, err := os.ReadFile("docs/permissions.md")
	require.NoError(t, err)
	_, line, found := strings.Cut(string(page), "\n- **`WithFencing`**")
	require.True(t, found)
	line, _, _ = strings.Cut(line, "\n- ")
	var more []string
	for i, word := range strings.Split(line, "`") {
		if i%2 == 1 && strings.ContainsAny(word[:1], "+~") {
			more = append(more, strings.Fields(word)...)
		}
	}
	require.NotEmpty(t, more)
	for _, user := range documentedUsers(t) {
		if user.mode != "Auto" {
			continue
		}
		t.Run(user.kind, func(t *testing.T) {
			realWorlds(t, func(w *world) {
				rights := user.rights
				switch user.kind {
				case "redisson":
					rights = slices.Concat(rights, more)
				case "read-write":
					rights = slices.Concat(rights, []string{"+get"})
				}
				w.do(append([]string{"ACL", "SETUSER", "app", "on", ">secret"}, rights...)...)
				var log journal
				made := func() *lockregistry.Lock {
					client := w.clientWith(w.dial, func(o *rueidis.ClientOption) {
						o.Username, o.Password, o.DisableCache = "app", "secret", true
					})
					opts := []lockregistry.Option{log.option(), lockregistry.WithFencing()}
					if user.kind == "redisson" {
						opts = append(opts, lockregistry.WithLayout(lockregistry.LayoutRedisson))
					}
					r := w.registryOn(client, opts...)
					if user.kind == "read-write" {
						return r.ReadWrite("42").Writer()
					}
					return r.Obtain("42")
				}
				a, b := made(), made()
				h := w.acquired(a)
				waiting := make(chan uint64)
				go func() {
					h, err := b.Acquire(w.Context())
					if err != nil {
						w.Error(err)
						close(waiting)
						return
					}
					waiting <- h.Token()
					if err := h.Release(w.Context()); err != nil {
						w.Error(err)
					}
					close(waiting)
				}()
				w.queues()
				w.released(h)
				require.Greater(w, <-waiting, h.Token())
				<-waiting
				require.Empty(w, log.lines())
			})
		})
	}
}

func ExampleWithFencing() {
	registry, stop := newRegistry(lockregistry.WithFencing())
	defer stop()
	ctx := context.Background()

	var newest uint64 // what the protected resource keeps beside the data
	write := func(ctx context.Context) error {
		token, _ := lockregistry.TokenFrom(ctx)
		if token < newest {
			return errors.New("somebody else has had the lock since")
		}
		newest = token
		return nil
	}
	late, err := registry.Acquire(ctx, "42") // and then this process is stopped for a minute
	if err != nil {
		panic(err)
	}
	if err := registry.ForceUnlock(ctx, "42"); err != nil {
		panic(err)
	}
	fmt.Println(registry.Do(ctx, "42", write))
	fmt.Println(write(late.Context(ctx)))
	// Output:
	// <nil>
	// somebody else has had the lock since
}
