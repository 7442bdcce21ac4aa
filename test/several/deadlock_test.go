package several_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
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
	"github.com/lockregistry/lockregistry/internal/deadlock"
	"github.com/lockregistry/lockregistry/observe"
	"github.com/lockregistry/lockregistry/test/internal/kit"
)

// oneAlarm waits for the only alarm, and checks its paths, beginning with any call.
func oneAlarm(a *kit.Alarms, w *kit.World, paths ...string) observe.Deadlock {
	w.Helper()
	w.Await("an alarm", func() bool { return len(a.List()) > 0 })
	if w.Fake {
		w.Pass(3 * time.Second)
	}
	all := a.List()
	require.Len(w, all, 1)
	var got []string
	for _, wait := range all[0].Waits {
		got = append(got, wait.Path)
	}
	require.Len(w, got, len(paths))
	require.Contains(w, strings.Join(append(got, got...), ", "), strings.Join(paths, ", "))
	return all[0]
}

// ring has each of n goroutines lock one of n paths. Then each waits for the next one's path, and the last one for the first
// one's. It returns the results of these waits.
func ring(w *kit.World,
	n int, first func(i int) func() error, second func(i int) func() error,
) (goroutines []*kit.Goroutine, results []<-chan error) {
	w.Helper()
	for i := range n {
		g := w.Goroutine()
		goroutines = append(goroutines, g)
		require.NoError(w, g.Do(first(i)))
	}
	for i, g := range goroutines {
		results = append(results, g.Start(second(i)))
	}
	return goroutines, results
}

// refused returns the only one of several calls that gets an error, while the others wait.
func refused(w *kit.World, results []<-chan error) (at int, err error) {
	w.Helper()
	at = -1
	w.Await("a call is refused", func() bool {
		for i, result := range results {
			select {
			case err = <-result:
				at = i
				return true
			default:
			}
		}
		return false
	})
	for i, result := range results {
		if i != at {
			w.Pending(result)
		}
	}
	return at, err
}

func path(i, n int) string { return "path " + string(rune('a'+i%n)) }

func TestDeadlock_OfGoroutines(t *testing.T) {
	t.Parallel()
	for _, n := range []int{1, 2, 5} {
		t.Run(strconv.Itoa(n), func(t *testing.T) {
			kit.Worlds(t, func(w *kit.World) {
				var a kit.Alarms
				r := w.Registry(a.Option())
				again := func(i int) func() error { // another owner, so that a single goroutine waits for itself
					l := r.Obtain(path(i+1, n))
					if n == 1 {
						return func() error { _, err := l.Acquire(w.Context()); return err }
					}
					return func() error { return l.Lock(w.Context()) }
				}
				goroutines, results := ring(w, n, func(i int) func() error {
					return func() error { return r.Obtain(path(i, n)).Lock(w.Context()) }
				}, again)
				at, err := refused(w, results)
				op := map[bool]string{true: "acquire", false: "lock"}[n == 1]
				w.Fails(err, lockregistry.ErrDeadlock, op, "orders:"+path(at+1, n))
				d := oneAlarm(&a, w, slices.Collect(func(yield func(string) bool) {
					for i := range n {
						if !yield(path(at+1+i, n)) {
							return
						}
					}
				})...)
				for i, wait := range d.Waits {
					require.Equal(w, []string{path(at+i, n)}, wait.Holds)
					require.Equal(w, observe.KindLock, wait.Kind)
					require.WithinDuration(w, time.Now(), wait.Since, time.Hour)
					require.Contains(w, err.Error(), fmt.Sprintf("%s holds %q and waits for %q", wait.Owner, wait.Holds[0], wait.Path))
				}
				// It has left nothing behind: the others continue once it unlocks.
				for i := range n {
					g := (at - i + n) % n
					if i > 0 {
						require.NoError(w, <-results[g])
						require.NoError(w, goroutines[g].Unlock(r.Obtain(path(g+1, n))))
					}
					require.NoError(w, goroutines[g].Unlock(r.Obtain(path(g, n))))
				}
				w.LeftNothing()
			})
		})
	}
}

// A cycle may involve several registries of a process.
func TestDeadlock_OverRegistries(t *testing.T) {
	kit.FakeWorld(t, func(w *kit.World) {
		var a kit.Alarms
		registries := []*lockregistry.Registry{w.Registry(a.Option()), w.Registry()}
		other, err := lockregistry.New(w.Client(), "other", a.Option())
		require.NoError(w, err)
		defer func() { require.NoError(w, other.Close()) }()
		registries[1] = other
		goroutines, results := ring(w, 2, func(i int) func() error {
			return func() error { return registries[i].Obtain("42").Lock(w.Context()) }
		}, func(i int) func() error {
			return func() error { return registries[1-i].Obtain("42").Lock(w.Context()) }
		})
		at, err := refused(w, results)
		require.ErrorIs(w, err, lockregistry.ErrDeadlock)
		oneAlarm(&a, w, "42", "42")
		require.NoError(w, goroutines[at].Unlock(registries[at].Obtain("42")))
		require.NoError(w, <-results[1-at])
	})
}

func TestDeadlock_OfDo(t *testing.T) {
	kit.FakeWorld(t, func(w *kit.World) {
		r := w.Registry()
		var both sync.WaitGroup
		both.Add(2)
		inner := func(path string) func(context.Context) error {
			return func(ctx context.Context) error {
				both.Done()
				both.Wait()
				return r.Do(ctx, path, func(context.Context) error { return nil })
			}
		}
		a := w.Goroutine().Start(func() error { return r.Do(w.Context(), "a", inner("b")) })
		b := w.Goroutine().Start(func() error { return r.Do(w.Context(), "b", inner("a")) })
		errs := []error{<-a, <-b}
		require.ErrorIs(w, errors.Join(errs...), lockregistry.ErrDeadlock)
		require.Contains(w, errs, error(nil))
		w.LeftNothing()
	})
}

func TestDeadlock_OfReadersAndWriters(t *testing.T) {
	t.Parallel()
	// One goroutine reads 42, and another one has 43.
	stage := func(w *kit.World, r *lockregistry.Registry) (reader, other *kit.Goroutine) {
		reader, other = w.Goroutine(), w.Goroutine()
		require.NoError(w, reader.Lock(r.ReadWrite("42").Reader()))
		require.NoError(w, other.Lock(r.Obtain("43")))
		return reader, other
	}
	t.Run("a writer waits for each reader", func(t *testing.T) {
		kit.FakeWorld(t, func(w *kit.World) {
			var a kit.Alarms
			r := w.Registry(a.Option())
			reader, other := stage(w, r)
			for range 20 {
				require.NoError(w, w.Goroutine().Lock(r.ReadWrite("42").Reader()))
			}
			waits := reader.Starts(r.Obtain("43"))
			w.Settle()
			w.Fails(other.Lock(r.ReadWrite("42").Writer()), lockregistry.ErrDeadlock, "lock", kit.TheKey)
			d := oneAlarm(&a, w, "42", "43")
			require.Equal(w, []observe.Kind{observe.KindWriter, observe.KindLock}, []observe.Kind{d.Waits[0].Kind, d.Waits[1].Kind})
			require.NoError(w, other.Unlock(r.Obtain("43")))
			require.NoError(w, <-waits)
		})
	})
	t.Run("a reader waits for the writer", func(t *testing.T) {
		kit.FakeWorld(t, func(w *kit.World) {
			r := w.Registry()
			writer, other := w.Goroutine(), w.Goroutine()
			require.NoError(w, writer.Lock(r.ReadWrite("42").Writer()))
			require.NoError(w, other.Lock(r.Obtain("43")))
			waits := other.Starts(r.ReadWrite("42").Reader())
			w.Settle()
			w.Fails(writer.Lock(r.Obtain("43")), lockregistry.ErrDeadlock, "lock", "orders:43")
			require.NoError(w, writer.Unlock(r.ReadWrite("42").Writer()))
			require.NoError(w, <-waits)
		})
	})
	// Three calls: the reader of 42 waits for 43, whose owner waits to read 42, behind a writer that waits for the reader.
	for name, wait := range map[string][]lockregistry.LockOption{"endless": nil, "timed": {lockregistry.Wait(20 * time.Second)}} {
		t.Run("a reader waits for a writer that waits, "+name, func(t *testing.T) {
			kit.FakeWorld(t, func(w *kit.World) {
				var a kit.Alarms
				r := w.Registry(a.Option())
				reader, other := stage(w, r)
				writer := w.Goroutine()
				writes := writer.Starts(r.ReadWrite("42").Writer(), wait...)
				w.Settle()
				waits := reader.Starts(r.Obtain("43"))
				w.Settle()
				w.Pending(writes)
				reads := other.Starts(r.ReadWrite("42").Reader())
				if wait == nil {
					w.Fails(<-reads, lockregistry.ErrDeadlock, "lock", kit.TheKey)
				} else {
					w.Settle()
					w.Pending(reads)
				}
				d := oneAlarm(&a, w, "42", "42", "43")
				require.Empty(w, d.Waits[1].Holds, d)
				if wait != nil { // it ends by itself
					w.Fails(<-writes, lockregistry.ErrTaken, "lock", kit.TheKey)
					require.NoError(w, <-reads)
					require.NoError(w, other.Unlock(r.ReadWrite("42").Reader()))
				}
				require.NoError(w, other.Unlock(r.Obtain("43")))
				require.NoError(w, <-waits)
			})
		})
	}
	t.Run("nobody waits for the readers behind a writer", func(t *testing.T) {
		kit.FakeWorld(t, func(w *kit.World) {
			var a kit.Alarms
			r := w.Registry(a.Option())
			reader, other := stage(w, r)
			waits := w.Goroutine().Starts(r.ReadWrite("42").Writer())
			w.Settle()
			reads := other.Starts(r.ReadWrite("42").Reader())
			w.Settle()
			require.NoError(w, reader.Lock(r.ReadWrite("42").Reader())) // nested
			a.None(w)
			require.NoError(w, reader.Unlock(r.ReadWrite("42").Reader()))
			require.NoError(w, reader.Unlock(r.ReadWrite("42").Reader()))
			require.NoError(w, <-waits)
			w.Pending(reads)
			require.NoError(w, kit.Elsewhere(func() error { return inspect.Of(r).ForceUnlock(w.Context(), "42") }))
			require.NoError(w, <-reads)
		})
	})
}

// A cycle that may end by itself, or because of others, is reported, but returns no error.
func TestDeadlock_ThatMayEnd(t *testing.T) {
	t.Parallel()
	type call func(ctx context.Context, r *lockregistry.Registry, path string) error
	lock := func(ctx context.Context, r *lockregistry.Registry, path string) error {
		return r.Obtain(path).Lock(ctx)
	}
	same := func(ctx context.Context) context.Context { return ctx }
	acquire := func(ctx context.Context, r *lockregistry.Registry, path string) error {
		h, err := r.Acquire(ctx, path)
		if err == nil {
			context.AfterFunc(ctx, func() { _ = h.Release(context.Background()) })
		}
		return err
	}
	for name, c := range map[string]struct {
		ctx           func(ctx context.Context) context.Context
		first, second call
	}{
		"a deadline": {same, lock, func(ctx context.Context, r *lockregistry.Registry, path string) error {
			ctx, cancel := context.WithTimeout(ctx, time.Minute)
			defer cancel()
			return r.Obtain(path).Lock(ctx)
		}},
		"Wait": {same, lock, func(ctx context.Context, r *lockregistry.Registry, path string) error {
			_, err := r.Obtain(path).TryLock(ctx, lockregistry.Wait(time.Minute))
			return err
		}},
		"holds as values":             {same, acquire, acquire},
		"holds as values, then locks": {same, acquire, lock},
		"ContextWithOwner":            {lockregistry.ContextWithOwner, lock, lock},
		"a context of the lock": {same, func(ctx context.Context, r *lockregistry.Registry, path string) error {
			err := r.Obtain(path).Lock(ctx)
			_ = r.Obtain(path).Context(ctx)
			return err
		}, lock},
	} {
		t.Run(name, func(t *testing.T) {
			kit.FakeWorld(t, func(w *kit.World) {
				var a kit.Alarms
				var lines strings.Builder
				r := w.Registry(a.Option(), lockregistry.WithLogger(slog.New(slog.NewTextHandler(&lines, nil))))
				base, cancel := context.WithCancel(w.Context())
				ctxs := []context.Context{c.ctx(base), c.ctx(base)}
				_, results := ring(w, 2, func(i int) func() error {
					return func() error { return c.first(ctxs[i], r, path(i, 2)) }
				}, func(i int) func() error {
					return func() error { return c.second(ctxs[i], r, path(i+1, 2)) }
				})
				w.Settle()
				d := oneAlarm(&a, w, path(0, 2), path(1, 2))
				for _, result := range results {
					w.Pending(result)
				}
				require.Equal(w, 1, strings.Count(lines.String(), "msg=deadlock"), lines.String())
				for _, wait := range d.Waits {
					require.Contains(w, lines.String(), strings.ReplaceAll(wait.Owner+" holds "+fmt.Sprintf("%q", wait.Holds[0]), `"`, `\"`))
				}
				cancel()
				require.Error(w, errors.Join(<-results[0], <-results[1]))
			})
		})
	}
}

// A call with the context of a hold waits on that hold's behalf, in whichever goroutine.
func TestDeadlock_ByContext(t *testing.T) {
	kit.FakeWorld(t, func(w *kit.World) {
		var a kit.Alarms
		r := w.Registry(a.Option())
		hold, err := kit.Elsewhere2(func() (*lockregistry.Hold, error) { return r.Acquire(w.Context(), "a") })
		require.NoError(w, err)
		other := w.Goroutine()
		require.NoError(w, other.Lock(r.Obtain("b")))
		ctx := hold.Context(w.Context())
		waits := kit.LockElsewhere(r.Obtain("b"), ctx)
		w.Settle()
		back := other.Starts(r.Obtain("a"))
		oneAlarm(&a, w, "a", "b")
		w.Released(hold.Release(w.Context()))
		require.ErrorIs(w, <-waits, context.Canceled)
		require.NoError(w, <-back)
	})
}

// A hold that its goroutine has passed on, and that another one releases within half a second, raises no alarm.
func TestDeadlock_NoDeadlockOfAHoldThatIsPassedOn(t *testing.T) {
	kit.FakeWorld(t, func(w *kit.World) {
		var a kit.Alarms
		r := w.Registry(a.Option())
		g, other := w.Goroutine(), w.Goroutine()
		var hold *lockregistry.Hold
		require.NoError(w, g.Do(func() (err error) { hold, err = r.Acquire(w.Context(), "a"); return err }))
		require.NoError(w, other.Lock(r.Obtain("b")))
		back := other.Starts(r.Obtain("a"))
		w.Settle()
		waits := g.Starts(r.Obtain("b"))
		w.Pass(400 * time.Millisecond)
		w.Released(hold.Release(w.Context()))
		require.NoError(w, <-back)
		require.NoError(w, other.Unlock(r.Obtain("b")))
		require.NoError(w, <-waits)
		a.None(w)
	})
}

// A call nests in the hold of a Do, in a goroutine that outlasts fn, and unlocks it later: so the hold does not depend on the
// waiting goroutine alone.
func TestDeadlock_NoDeadlockOfADoThatIsOutlasted(t *testing.T) {
	kit.FakeWorld(t, func(w *kit.World) {
		r := w.Registry()
		a, b := r.Obtain("a"), r.Obtain("b")
		one, two, child := w.Goroutine(), w.Goroutine(), w.Goroutine()
		var inner context.Context
		require.NoError(w, one.Do(func() error {
			return r.Do(w.Context(), "a", func(ctx context.Context) error {
				inner = ctx
				return child.Do(func() error { return a.Lock(ctx) })
			})
		}))
		require.NoError(w, two.Lock(b))
		first := one.Starts(b)
		w.Settle()
		second := two.Starts(a)
		w.Settle()
		require.NoError(w, child.Do(func() error { return a.Unlock(inner) }))
		require.NoError(w, <-second)
		require.NoError(w, two.Unlock(b))
		require.NoError(w, <-first)
	})
}

// A writer reads again while the removal of its last read hold is still under way, and another goroutine waits to write. The
// writer waits only for the removal.
func TestDeadlock_NoDeadlockOfAWriterThatReads(t *testing.T) {
	kit.FakeWorld(t, func(w *kit.World) {
		f := w.Flaky()
		p := kit.PairOf(f.Registry())
		g, other := w.Goroutine(), w.Goroutine()
		require.NoError(w, g.Lock(p.Writer))
		require.NoError(w, g.Lock(p.Reader))
		waits := other.Starts(p.Writer)
		w.Settle()
		until := make(chan struct{})
		f.Fate("read", kit.HeldUp(until))
		require.ErrorIs(w, g.Unlock(p.Reader), lockregistry.ErrUnavailable)
		again := g.Starts(p.Reader)
		w.Settle()
		f.Forget()
		close(until)
		require.NoError(w, <-again)
		require.NoError(w, g.Unlock(p.Reader))
		require.NoError(w, g.Unlock(p.Writer))
		require.NoError(w, <-waits)
	})
}

func TestDeadlock_NoEdges(t *testing.T) {
	kit.FakeWorld(t, func(w *kit.World) {
		var a kit.Alarms
		r := w.Registry(a.Option())
		one, two := w.Goroutine(), w.Goroutine()
		require.NoError(w, one.Lock(r.Obtain("a")))
		require.NoError(w, two.Lock(r.Obtain("b")))
		waits := one.Starts(r.Obtain("b"))
		w.Settle()
		ok, err := two.Try(r.Obtain("a"))
		require.NoError(w, err)
		require.False(w, ok)
		require.ErrorIs(w, two.Lock(r.Obtain("a"), lockregistry.NoWait()), lockregistry.ErrTaken)
		a.None(w)
		require.NoError(w, two.Unlock(r.Obtain("b")))
		require.NoError(w, <-waits)
	})
}

// A goroutine that waits for another process, and is first in its own, may get the lock: the calls behind it are in no cycle.
func TestDeadlock_NoDeadlockOfACallThatWaitsForRedis(t *testing.T) {
	kit.FakeWorld(t, func(w *kit.World) {
		var a kit.Alarms
		r, elsewhere := w.Registry(a.Option()), w.Registry()
		w.Lock(elsewhere.Obtain("a"))
		one, two := w.Goroutine(), w.Goroutine()
		require.NoError(w, one.Lock(r.Obtain("b")))
		first := one.Starts(r.Obtain("a"))
		w.Settle()
		second := two.Starts(r.Obtain("b"))
		a.None(w)
		w.Unlock(elsewhere.Obtain("a"))
		require.NoError(w, <-first)
		require.NoError(w, one.Unlock(r.Obtain("b")))
		require.NoError(w, <-second)
	})
}

// A lost hold is no edge of the graph: a call that waits for it gets in.
func TestDeadlock_ALostHoldIsNoEdge(t *testing.T) {
	kit.FakeWorld(t, func(w *kit.World) {
		var a kit.Alarms
		r := w.Registry(a.Option())
		one, two := w.Goroutine(), w.Goroutine()
		require.NoError(w, one.Lock(r.Obtain("a"), lockregistry.Lease(time.Second)))
		require.NoError(w, two.Lock(r.Obtain("b")))
		waits := one.Starts(r.Obtain("b"))
		w.Pass(time.Second)
		require.NoError(w, two.Lock(r.Obtain("a")))
		a.None(w)
		require.NoError(w, two.Unlock(r.Obtain("b")))
		require.NoError(w, <-waits)
	})
}

// Goroutines lock plain and read-write locks, each in the order of the paths: with contexts that are cancelled, deadlines,
// holds as values, and owners. Some begin with the last path, which another goroutine soon releases: so there are cycles, but
// none that lasts until the second look.
func TestDeadlock_NoFalseAlarm(t *testing.T) {
	kit.FakeWorld(t, func(w *kit.World) {
		var a kit.Alarms
		client := w.Client()
		for run := range uint64(20) {
			acyclic(w, client, a.Option(), run)
		}
		require.Empty(w, a.List())
	})
}

// acyclic is one run of that test.
func acyclic(w *kit.World, client rueidis.Client, opt lockregistry.Option, seed uint64) {
	w.Helper()
	prefix := fmt.Sprint("run ", seed)
	r, err := lockregistry.New(client, prefix, opt, lockregistry.WithHandoff(time.Minute))
	require.NoError(w, err)
	defer func() { require.NoError(w, r.Close()) }()
	var all sync.WaitGroup
	for g := range 5 {
		random := rand.New(rand.NewPCG(seed, uint64(g)))
		all.Go(func() {
			ctx := w.Context()
			if random.IntN(3) == 0 {
				ctx = lockregistry.ContextWithOwner(ctx)
			}
			if random.IntN(2) == 0 {
				h, err := r.Acquire(ctx, lastPath)
				if err != nil {
					w.Errorf("seed %d: %v", seed, err)
					return
				}
				soon := deadlock.SecondLook - time.Duration(1+random.IntN(400))*time.Millisecond
				all.Go(func() {
					<-time.After(soon)
					if err := h.Release(context.Background()); err != nil {
						w.Errorf("seed %d: %v", seed, err)
					}
				})
			}
			if err := climb(ctx, r, random, 0); err != nil && !errors.Is(err, context.DeadlineExceeded) {
				w.Errorf("seed %d: %v", seed, err)
			}
		})
	}
	all.Wait()
}

// lastPath sorts after all others.
const lastPath = "last"

// climb takes some of the locks, beginning with one path, and releases them on the way back.
func climb(ctx context.Context, r *lockregistry.Registry, random *rand.Rand, from int) error {
	from += random.IntN(3)
	if from > 5 {
		<-time.After(time.Duration(random.IntN(900)) * time.Millisecond) // long enough for a second look
		return r.Do(ctx, lastPath, func(context.Context) error { return nil })
	}
	on := func(ctx context.Context) error { return climb(ctx, r, random, from+1) }
	l := r.Obtain(strconv.Itoa(from))
	if from%2 == 1 {
		if l = r.ReadWrite(strconv.Itoa(from)).Reader(); random.IntN(3) == 0 {
			l = r.ReadWrite(strconv.Itoa(from)).Writer()
		}
	}
	switch kind := random.IntN(4); {
	case kind == 0 && from%2 == 0:
		return r.Do(ctx, l.Path(), on)
	case kind == 1:
		h, err := l.Acquire(ctx)
		if err != nil {
			return err
		}
		return errors.Join(on(h.Context(ctx)), h.Release(context.Background()))
	case kind == 2:
		timed, cancel := context.WithTimeout(ctx, time.Second)
		defer cancel()
		if err := l.Lock(timed); err != nil {
			return err
		}
	default:
		if err := l.Lock(ctx); err != nil {
			return err
		}
	}
	return errors.Join(on(ctx), l.Unlock(context.WithoutCancel(ctx)))
}
