package lease_test

import (
	"context"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry"
	"github.com/lockregistry/lockregistry/inspect"
	"github.com/lockregistry/lockregistry/test/internal/kit"
)

func fencedWorlds(t *testing.T, test func(w *kit.World, f kit.FencedLock)) {
	t.Helper()
	t.Parallel()
	for _, f := range kit.FencedLocks() {
		t.Run(f.Name, func(t *testing.T) { kit.Worlds(t, func(w *kit.World) { test(w, f) }) })
	}
}

// counted returns the counter's last token.
func counted(w *kit.World, key string) uint64 {
	w.Helper()
	n, err := strconv.ParseUint(w.Do("GET", key), 10, 64)
	require.NoError(w, err)
	return n
}

// Each grant has a larger token, whichever process gets it, and the contexts of a hold carry the token.
func TestFencing_TokensGrow(t *testing.T) {
	fencedWorlds(t, func(w *kit.World, f kit.FencedLock) {
		a, b := f.Lock(w), f.Lock(w)
		var last uint64
		for i := range 6 {
			l := []*lockregistry.Lock{a, b}[i%2]
			begun := micros(w)
			h := w.Acquires(l)
			token := h.Token()
			require.Greater(w, token, last)
			require.Equal(w, counted(w, f.Counter), token+99)
			if f.Name != "redisson" {
				require.GreaterOrEqual(w, token, begun)
				require.Greater(w, w.Pttl(f.Counter), time.Hour-time.Minute)
				require.LessOrEqual(w, w.Pttl(f.Counter), time.Hour+time.Millisecond)
			} else {
				require.GreaterOrEqual(w, token, uint64(200*i+1))
				require.EqualValues(w, 1, token%100)
				if w.Fake { // otherwise a grant with a late reply has drawn twice
					require.Equal(w, uint64(200*i+1), token)
				}
				require.Equal(w, time.Duration(-1), w.Pttl(f.Counter))
			}
			ctx := h.Context(w.Context())
			require.Equal(w, token, w.TokenIn(ctx))
			require.Zero(w, w.TokenIn(lockregistry.ContextWithOwner(ctx)))
			w.Release(h)
			require.Equal(w, token, w.TokenIn(ctx), "a late write is to be refused for it")
			require.Equal(w, token, w.TokenIn(h.Context(w.Context())))
			require.Equal(w, token, h.Token())

			w.Lock(l)
			ctx = l.Context(w.Context())
			last = w.TokenIn(ctx)
			require.Greater(w, last, token)
			w.Lock(l)
			require.Equal(w, last, w.TokenIn(l.Context(w.Context())), "locking again keeps it")
			require.NoError(w, l.Renew(w.Context(), time.Minute))
			w.Unlock(l)
			require.Equal(w, last, w.TokenIn(l.Context(w.Context())))
			w.Unlock(l)
			require.Equal(w, last, w.TokenIn(ctx))
			require.Zero(w, w.TokenIn(l.Context(ctx)), "who holds nothing has no token")
		}
	})
}

// micros returns the server's time.
func micros(w *kit.World) uint64 {
	w.Helper()
	now := strings.Fields(strings.Trim(w.Do("TIME"), "[]"))
	s, err := strconv.ParseUint(now[0], 10, 64)
	require.NoError(w, err)
	us, err := strconv.ParseUint(now[1], 10, 64)
	require.NoError(w, err)
	return s*1_000_000 + us
}

func TestFencing_TokensOfNestedHolds(t *testing.T) {
	kit.Worlds(t, func(w *kit.World) {
		r, without := w.Registry(lockregistry.WithFencing()), w.Registry()
		w.Release(w.Acquires(r.Obtain("b"))) // so that the numbers differ, although no time passes
		_ = r.Do(w.Context(), "a", func(ctx context.Context) error {
			a := w.TokenIn(ctx)
			require.NotZero(w, a)
			return r.Do(ctx, "b", func(ctx context.Context) error {
				b := w.TokenIn(ctx)
				require.NotEqual(w, a, b)
				require.NoError(w, r.Do(ctx, "a", func(ctx context.Context) error {
					require.Equal(w, a, w.TokenIn(ctx), "the innermost hold is that of a again")
					return nil
				}))
				require.Equal(w, a, w.TokenIn(r.Obtain("a").Context(ctx)))
				require.NoError(w, without.Do(ctx, "c", func(ctx context.Context) error {
					require.Zero(w, w.TokenIn(ctx))
					return nil
				}))
				w.Lock(r.ReadWrite("rw").Reader())
				require.Zero(w, w.TokenIn(r.ReadWrite("rw").Reader().Context(ctx)))
				h := w.Acquires(r.ReadWrite("rw").Reader())
				require.Zero(w, h.Token())
				require.Zero(w, w.TokenIn(h.Context(ctx)))
				w.Release(h)
				w.Unlock(r.ReadWrite("rw").Reader())
				return nil
			})
		})
		h := w.Acquires(without.Obtain("42"))
		require.Zero(w, h.Token())
		w.Release(h)
		require.Equal(w, "0", w.Do("EXISTS", "orders:{orders:42}:fencing"))
		require.Zero(w, w.TokenIn(w.Context()))
		_, ok := lockregistry.TokenFrom(nil) //nolint:staticcheck // bad input
		require.False(w, ok)
	})
}

// Goroutines that hand the lock to each other use the tokens of one draw. When these are used up the lock is released.
func TestFencing_TokensAtHandoff(t *testing.T) {
	fencedWorlds(t, func(w *kit.World, f kit.FencedLock) {
		l := f.Lock(w, lockregistry.WithHandoff(time.Hour))
		const owners = 230
		var all sync.WaitGroup
		var last, grants uint64
		first := w.Acquires(l)
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
				now := w.Do(f.Shows, "orders:42")
				if now != value {
					grants++
				}
				value = now
				if err := w.UnlessLate(h.Release(w.Context())); err != nil {
					w.Error(err)
				}
			})
		}
		if w.Fake {
			w.Settle()
		}
		w.Release(first)
		all.Wait()
		if w.Fake { // all of them waited
			require.Equal(w, uint64(3), grants, "a draw is good for 100 owners")
		}
	})
}

// Two goroutines of one owner share a hold and its token, even when it is handed to them.
func TestFencing_TwinsHaveOneToken(t *testing.T) {
	kit.FakeWorld(t, func(w *kit.World) {
		l := w.Registry(lockregistry.WithFencing()).Obtain("42")
		w.Lock(l)
		before := w.TokenIn(l.Context(w.Context()))
		both := lockregistry.ContextWithOwner(w.Context())
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
		w.Settle()
		w.Unlock(l)
		require.Equal(w, before+1, <-tokens)
		require.Equal(w, before+1, <-tokens)
		w.Released(l.Unlock(both))
		w.Released(l.Unlock(both))
	})
}

// queues returns once a call waits for 42.
func queues(w *kit.World) {
	w.Helper()
	if w.Fake { // there is no queue
		w.Settle()
		return
	}
	w.Await("it waits", func() bool { return w.Do("ZCOUNT", "orders:{orders:42}:waiters", "0", "+inf") != "0" })
}

// A waiter in the queue is granted the lock by others, which may know nothing of tokens, and still gets a token.
func TestFencing_TokensOfTheQueue(t *testing.T) {
	t.Parallel()
	for name, granter := range map[string][]lockregistry.Option{"fencing": {lockregistry.WithFencing()}, "without": nil} {
		t.Run(name, func(t *testing.T) {
			fencedWorlds(t, func(w *kit.World, f kit.FencedLock) {
				other := f.Of(w.Registry(slices.Concat(f.Opts, granter)...), "42")
				l := f.Lock(w, lockregistry.WithPollInterval(time.Minute))
				before := w.Acquires(l)
				w.Release(before)
				last := before.Token()
				for range 3 {
					w.Lock(other)
					tokens := make(chan uint64)
					go func() {
						h, err := l.Acquire(w.Context())
						if err != nil {
							w.Error(err)
						}
						tokens <- h.Token()
						if err := w.UnlessLate(h.Release(w.Context())); err != nil {
							w.Error(err)
						}
						close(tokens)
					}()
					queues(w)
					if other := w.TokenIn(other.Context(w.Context())); other > 0 {
						require.Greater(w, other, last)
						last = other
					}
					w.Unlock(other)
					token := <-tokens
					require.Greater(w, token, last)
					last = token
					<-tokens
				}
			})
		})
	}
}

// A grant whose reply was lost or late does no harm: the next token is larger.
func TestFencing_TokensOfLostReplies(t *testing.T) {
	fencedWorlds(t, func(w *kit.World, f kit.FencedLock) {
		flaky := w.Flaky()
		l := f.Of(flaky.Registry(slices.Concat(f.Opts, []lockregistry.Option{lockregistry.WithFencing()})...), "42")
		h := w.Acquires(l)
		last := h.Token()
		w.Release(h)
		for range 3 {
			before := counted(w, f.Counter)
			flaky.Fates(f.Obtains, kit.CutAfter)
			h, err := l.Acquire(w.Context(), lockregistry.Wait(20*time.Second))
			require.NoError(w, err)
			require.Greater(w, h.Token(), before+99, "the lost grant has drawn, too")
			require.Greater(w, h.Token(), last)
			last = h.Token()
			w.Release(h)
		}
	})
}

// A late reply may come from a deposed master: the renewal that confirms the grant draws a new token.
func TestFencing_TokenOfALateGrant(t *testing.T) {
	kit.FakeWorld(t, func(w *kit.World) {
		f := w.Flaky()
		r := f.Registry(lockregistry.WithFencing())
		w.Known(r)
		l := r.Obtain("42")
		f.Fates("obtain", kit.SlowReply(kit.LateAfter))
		h := w.Acquires(l)
		require.Equal(w, counted(w, "orders:{orders:42}:fencing"), h.Token()+99)
		w.Release(h)
	})
}

// Tokens grow although the counter expires, or the server loses its memory, since the clock goes on. With the counter they grow
// although the clock is set back. Without both they do not, as on a promoted replica with a slower clock and no counter.
func TestFencing_TokensAndTheClock(t *testing.T) {
	const counter = "orders:{orders:42}:fencing"
	kit.FakeWorld(t, func(w *kit.World) {
		l := w.Registry(lockregistry.WithFencing()).Obtain("42")
		next := func() uint64 {
			h := w.Acquires(l)
			w.Release(h)
			return h.Token()
		}
		first := next()
		w.Pass(time.Hour + time.Second)
		require.True(w, w.Free(counter), "it leaves no key for ever")
		second := next()
		require.Greater(w, second, first)
		w.Pass(time.Millisecond)
		w.Mini.FlushAll()
		third := next()
		require.Greater(w, third, second)

		back := time.Now().Add(-time.Minute)
		w.Mini.SetTime(back)
		fourth := next()
		require.Equal(w, third+100, fourth, "the clock is behind, and the counter knows")
		require.Greater(w, w.Pttl(counter), time.Hour+59*time.Second, "it stays until the clock has caught up")

		w.Mini.Del(counter)
		require.Less(w, next(), fourth, "as the documentation says")
	})
}

// The counter is ahead of the clock: more tokens were drawn than microseconds have passed.
func TestFencing_TokensAheadOfTheClock(t *testing.T) {
	kit.RealWorlds(t, func(w *kit.World) {
		l := w.Registry(lockregistry.WithFencing()).Obtain("42")
		const counter = "orders:{orders:42}:fencing"
		ahead := micros(w) + 3_600_000_000
		w.Do("SET", counter, strconv.FormatUint(ahead, 10))
		h := w.Acquires(l)
		drawn := h.Token() - ahead
		require.Less(w, drawn, uint64(1000))
		require.EqualValues(w, 1, drawn%100, "once, or once more when the answer was late")
		require.Equal(w, h.Token()+99, counted(w, counter), "no digit is lost")
		require.Greater(w, w.Pttl(counter), 2*time.Hour-time.Minute)
		w.Release(h)
	})
}

// A program with Redisson may give the counter an end, and tokens would begin at 1 again.
func TestFencing_CounterOfRedissonThatWouldEnd(t *testing.T) {
	kit.RealWorlds(t, func(w *kit.World) {
		const counter = "redisson_lock_token:{orders:42}"
		w.Do("SET", counter, "500", "PX", "50000")
		l := w.Registry(lockregistry.WithRedissonLayout(), lockregistry.WithFencing()).Obtain("42")
		h := w.Acquires(l)
		require.EqualValues(w, 1, h.Token()%100)
		require.Greater(w, h.Token(), uint64(500))
		require.Equal(w, "-1", w.Do("PTTL", counter))
		w.Release(h)
	})
}

func TestFencing_TokensAfterForceUnlock(t *testing.T) {
	fencedWorlds(t, func(w *kit.World, f kit.FencedLock) {
		r := w.Registry(slices.Concat(f.Opts, []lockregistry.Option{lockregistry.WithFencing()})...)
		h := w.Acquires(f.Of(r, "42"))
		w.Released(inspect.Of(r).ForceUnlock(w.Context(), "42"))
		next := w.Acquires(f.Lock(w))
		require.Greater(w, next.Token(), h.Token())
		require.ErrorIs(w, h.Release(w.Context()), lockregistry.ErrLockLost)
		w.Release(next)
	})
}

// A lock whose counter cannot be used is not granted, and nothing stays behind.
func TestFencing_NoCounter(t *testing.T) {
	fencedWorlds(t, func(w *kit.World, f kit.FencedLock) {
		l := f.Lock(w)
		w.Do("SADD", f.Counter, "of something else")
		check := func(err error) {
			w.Helper()
			require.ErrorContains(w, err, f.Counter)
			require.ErrorContains(w, err, "fencing counter")
			require.NotErrorIs(w, err, lockregistry.ErrWrongType)
			require.NotErrorIs(w, err, lockregistry.ErrUnavailable)
			w.Await("the key is free", func() bool { return w.Free("orders:42") })
		}
		check(l.Lock(w.Context()))

		other := f.Of(w.Registry(f.Opts...), "42") // the same for a grant by the queue
		w.Lock(other)
		result := make(chan error, 1)
		go func() { result <- l.Lock(w.Context()) }()
		queues(w)
		w.Unlock(other)
		check(<-result)

		w.Do("DEL", f.Counter)
		w.Do("ZADD", "orders:{orders:42}:waiters", "-1", "open", "-1", "wide") // the same for a ticket of a free lock
		w.Do("SADD", f.Counter, "of something else")
		result = make(chan error, 1)
		go func() { result <- l.Lock(w.Context(), lockregistry.Wait(time.Minute)) }()
		check(<-result)
		w.Do("DEL", f.Counter)
		w.Lock(l)
		w.Unlock(l)
	})
}

// A counter that holds no number is not overwritten, even if Lua would accept it as one. It is visible, and for people to
// remove.
func TestFencing_CounterThatIsNoNumber(t *testing.T) {
	fencedWorlds(t, func(w *kit.World, f kit.FencedLock) {
		l := f.Lock(w)
		for _, text := range []string{"abc", "nan", "inf", "0x10", "1e5", "-1", "12345678901234567", ""} {
			if f.Name == "redisson" && (text == "-1" || text == "12345678901234567") {
				continue // INCRBY accepts them
			}
			w.Do("SET", f.Counter, text)
			err := l.Lock(w.Context())
			require.ErrorContains(w, err, "fencing counter", text)
			require.Equal(w, text, w.Do("GET", f.Counter))
			require.Empty(w, kit.SentinelsOf(err))
		}
	})
}

func TestFencing_ReservedPaths(t *testing.T) {
	kit.FakeWorld(t, func(w *kit.World) {
		r := w.Registry()
		for path, reserved := range map[string]bool{
			"{orders:42}:fencing": true, "{a}:waiters": true, "{a}b:fencing": true,
			"fencing": false, "a:fencing": false, "b:waiters": false, "{a}fencing": false, "{}:fencing": false,
		} {
			for _, l := range []*lockregistry.Lock{r.Obtain(path), r.ReadWrite("w" + path).Writer()} {
				ok, err := l.TryLock(w.Context())
				require.Equal(w, !reserved, ok, path)
				if reserved {
					require.ErrorContains(w, err, "reserved")
					require.ErrorContains(w, inspect.Of(r).ForceUnlock(w.Context(), path), "reserved")
				} else {
					w.Unlock(l)
				}
			}
		}
	})
}

// With many goroutines of many processes, some of which know nothing of tokens, no holder is refused as a late one.
func TestFencing_NoHolderIsRefused(t *testing.T) {
	t.Parallel()
	for _, f := range kit.FencedLocks() {
		t.Run(f.Name, func(t *testing.T) {
			kit.RealWorlds(t, func(w *kit.World) {
				const registries, goroutines, rounds = 3, 5, 40
				var protected kit.Resource
				var all sync.WaitGroup
				without := f.Of(w.Registry(f.Opts...), "42")
				all.Go(func() {
					for range rounds {
						if err := w.Answer(func() error { return without.Lock(w.Context()) }); err != nil {
							w.Error(err)
							return
						}
						if err := w.UnlessBusy(without.Unlock(w.Context())); err != nil {
							w.Error(err)
						}
					}
				})
				for range registries {
					l := f.Lock(w)
					for range goroutines {
						all.Go(func() {
							for range rounds {
								h, err := l.Acquire(w.Context())
								if err != nil {
									w.Error(err)
									return
								}
								protected.Write(h.Token())
								if err := w.UnlessLate(h.Release(w.Context())); err != nil {
									w.Error(err)
								}
							}
						})
					}
				}
				all.Wait()
				require.Zero(w, protected.Refused.Load())
			})
		})
	}
}

// The permissions that the documentation names are enough.
func TestFencing_DocumentedPermissionsOfFencing(t *testing.T) {
	page, err := os.ReadFile("../../docs/permissions.md")
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
	for _, user := range kit.DocumentedDefaults(t) {
		t.Run(user.Kind, func(t *testing.T) {
			kit.RealWorlds(t, func(w *kit.World) {
				rights := user.Rights
				switch user.Kind {
				case "redisson":
					rights = slices.Concat(rights, more)
				case "read-write":
					rights = slices.Concat(rights, []string{"+get"})
				}
				w.Do(append([]string{"ACL", "SETUSER", "app", "on", ">secret"}, rights...)...)
				var log kit.Journal
				made := func() *lockregistry.Lock {
					client := w.ClientWith(w.Dial, func(o *rueidis.ClientOption) {
						o.Username, o.Password, o.DisableCache = "app", "secret", true
					})
					opts := []lockregistry.Option{log.Option(), lockregistry.WithFencing()}
					if user.Kind == "redisson" {
						opts = append(opts, lockregistry.WithRedissonLayout())
					}
					r := w.RegistryOn(client, opts...)
					if user.Kind == "read-write" {
						return r.ReadWrite("42").Writer()
					}
					return r.Obtain("42")
				}
				a, b := made(), made()
				h := w.Acquires(a)
				waiting := make(chan uint64)
				go func() {
					h, err := b.Acquire(w.Context())
					if err != nil {
						w.Error(err)
						close(waiting)
						return
					}
					waiting <- h.Token()
					if err := w.UnlessLate(h.Release(w.Context())); err != nil {
						w.Error(err)
					}
					close(waiting)
				}()
				queues(w)
				w.Release(h)
				require.Greater(w, <-waiting, h.Token())
				<-waiting
				require.Empty(w, log.Lines())
			})
		})
	}
}
