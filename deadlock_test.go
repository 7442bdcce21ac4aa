package lockregistry_test

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
	"github.com/lockregistry/lockregistry/observe"
)

// alarms are the deadlocks that an observer was told of.
type alarms struct {
	mu  sync.Mutex
	all []observe.Deadlock
}

func (a *alarms) option() lockregistry.Option {
	return lockregistry.WithObserver(observe.Observer{Deadlocked: func(d observe.Deadlock) {
		a.mu.Lock()
		defer a.mu.Unlock()
		a.all = append(a.all, d)
	}})
}

func (a *alarms) list() []observe.Deadlock {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.Clone(a.all)
}

// none checks that nobody was alarmed, in a time in which second looks are over.
func (a *alarms) none(w *world) {
	w.Helper()
	w.pass(3 * time.Second)
	require.Empty(w, a.list())
}

// one waits for the only alarm that there is, and checks its paths, from whichever call on.
func (a *alarms) one(w *world, paths ...string) observe.Deadlock {
	w.Helper()
	w.await("an alarm", func() bool { return len(a.list()) > 0 })
	if w.fake {
		w.pass(3 * time.Second)
	}
	all := a.list()
	require.Len(w, all, 1)
	var got []string
	for _, wait := range all[0].Waits {
		got = append(got, wait.Path)
	}
	require.Len(w, got, len(paths))
	require.Contains(w, strings.Join(append(got, got...), ", "), strings.Join(paths, ", "))
	return all[0]
}

// ring has each of n goroutines lock one of n paths. Then each waits for the next one's, the last one for the first one's. It
// returns the results of these.
func (w *world) ring(
	n int, first func(i int) func() error, second func(i int) func() error,
) (goroutines []*goroutine, results []<-chan error) {
	w.Helper()
	for i := range n {
		g := w.goroutine()
		goroutines = append(goroutines, g)
		require.NoError(w, g.do(first(i)))
	}
	for i, g := range goroutines {
		results = append(results, g.start(second(i)))
	}
	return goroutines, results
}

// refused is the only one of several calls that has an error, while the others wait.
func (w *world) refused(results []<-chan error) (at int, err error) {
	w.Helper()
	at = -1
	w.await("a call is refused", func() bool {
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
			w.pending(result)
		}
	}
	return at, err
}

func path(i, n int) string { return "path " + string(rune('a'+i%n)) }

func TestDeadlock_OfGoroutines(t *testing.T) {
	t.Parallel()
	for _, n := range []int{1, 2, 5} {
		t.Run(strconv.Itoa(n), func(t *testing.T) {
			worlds(t, func(w *world) {
				var a alarms
				r := w.registry(a.option())
				again := func(i int) func() error { // as another owner, so that a single goroutine waits for itself
					l := r.Obtain(path(i+1, n))
					if n == 1 {
						return func() error { _, err := l.Acquire(w.Context()); return err }
					}
					return func() error { return l.Lock(w.Context()) }
				}
				goroutines, results := w.ring(n, func(i int) func() error {
					return func() error { return r.Obtain(path(i, n)).Lock(w.Context()) }
				}, again)
				at, err := w.refused(results)
				op := map[bool]string{true: "acquire", false: "lock"}[n == 1]
				w.fails(err, lockregistry.ErrDeadlock, op, "orders:"+path(at+1, n))
				d := a.one(w, slices.Collect(func(yield func(string) bool) {
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
				// It has left nothing behind: the others go on once it unlocks.
				for i := range n {
					g := (at - i + n) % n
					if i > 0 {
						require.NoError(w, <-results[g])
						require.NoError(w, goroutines[g].unlock(r.Obtain(path(g+1, n))))
					}
					require.NoError(w, goroutines[g].unlock(r.Obtain(path(g, n))))
				}
				w.leftNothing()
			})
		})
	}
}

// A cycle may go over several registries of a process.
func TestDeadlock_OverRegistries(t *testing.T) {
	fakeWorld(t, func(w *world) {
		var a alarms
		registries := []*lockregistry.Registry{w.registry(a.option()), w.registry()}
		other, err := lockregistry.New(w.client(), "other", a.option())
		require.NoError(w, err)
		defer func() { require.NoError(w, other.Close()) }()
		registries[1] = other
		goroutines, results := w.ring(2, func(i int) func() error {
			return func() error { return registries[i].Obtain("42").Lock(w.Context()) }
		}, func(i int) func() error {
			return func() error { return registries[1-i].Obtain("42").Lock(w.Context()) }
		})
		at, err := w.refused(results)
		require.ErrorIs(w, err, lockregistry.ErrDeadlock)
		a.one(w, "42", "42")
		require.NoError(w, goroutines[at].unlock(registries[at].Obtain("42")))
		require.NoError(w, <-results[1-at])
	})
}

func TestDeadlock_OfDo(t *testing.T) {
	fakeWorld(t, func(w *world) {
		r := w.registry()
		var both sync.WaitGroup
		both.Add(2)
		inner := func(path string) func(context.Context) error {
			return func(ctx context.Context) error {
				both.Done()
				both.Wait()
				return r.Do(ctx, path, func(context.Context) error { return nil })
			}
		}
		a := w.goroutine().start(func() error { return r.Do(w.Context(), "a", inner("b")) })
		b := w.goroutine().start(func() error { return r.Do(w.Context(), "b", inner("a")) })
		errs := []error{<-a, <-b}
		require.ErrorIs(w, errors.Join(errs...), lockregistry.ErrDeadlock)
		require.Contains(w, errs, error(nil))
		w.leftNothing()
	})
}

func TestDeadlock_OfReadersAndWriters(t *testing.T) {
	t.Parallel()
	// A goroutine reads 42, and another one has 43.
	stage := func(w *world, r *lockregistry.Registry) (reader, other *goroutine) {
		reader, other = w.goroutine(), w.goroutine()
		require.NoError(w, reader.lock(r.ReadWrite("42").Reader()))
		require.NoError(w, other.lock(r.Obtain("43")))
		return reader, other
	}
	t.Run("a writer waits for each reader", func(t *testing.T) {
		fakeWorld(t, func(w *world) {
			var a alarms
			r := w.registry(a.option())
			reader, other := stage(w, r)
			for range 20 {
				require.NoError(w, w.goroutine().lock(r.ReadWrite("42").Reader()))
			}
			waits := reader.starts(r.Obtain("43"))
			w.settle()
			w.fails(other.lock(r.ReadWrite("42").Writer()), lockregistry.ErrDeadlock, "lock", theKey)
			d := a.one(w, "42", "43")
			require.Equal(w, []observe.Kind{observe.KindWriter, observe.KindLock}, []observe.Kind{d.Waits[0].Kind, d.Waits[1].Kind})
			require.NoError(w, other.unlock(r.Obtain("43")))
			require.NoError(w, <-waits)
		})
	})
	t.Run("a reader waits for the writer", func(t *testing.T) {
		fakeWorld(t, func(w *world) {
			r := w.registry()
			writer, other := w.goroutine(), w.goroutine()
			require.NoError(w, writer.lock(r.ReadWrite("42").Writer()))
			require.NoError(w, other.lock(r.Obtain("43")))
			waits := other.starts(r.ReadWrite("42").Reader())
			w.settle()
			w.fails(writer.lock(r.Obtain("43")), lockregistry.ErrDeadlock, "lock", "orders:43")
			require.NoError(w, writer.unlock(r.ReadWrite("42").Writer()))
			require.NoError(w, <-waits)
		})
	})
	// Three calls: the reader of 42 waits for 43, whose owner waits to read 42, behind a writer that waits for the reader.
	for name, wait := range map[string][]lockregistry.LockOption{"endless": nil, "timed": {lockregistry.Wait(20 * time.Second)}} {
		t.Run("a reader waits for a writer that waits, "+name, func(t *testing.T) {
			fakeWorld(t, func(w *world) {
				var a alarms
				r := w.registry(a.option())
				reader, other := stage(w, r)
				writer := w.goroutine()
				writes := writer.starts(r.ReadWrite("42").Writer(), wait...)
				w.settle()
				waits := reader.starts(r.Obtain("43"))
				w.settle()
				w.pending(writes)
				reads := other.starts(r.ReadWrite("42").Reader())
				if wait == nil {
					w.fails(<-reads, lockregistry.ErrDeadlock, "lock", theKey)
				} else {
					w.settle()
					w.pending(reads)
				}
				d := a.one(w, "42", "42", "43")
				require.Empty(w, d.Waits[1].Holds, d)
				if wait != nil { // it ends by itself
					w.fails(<-writes, lockregistry.ErrTaken, "lock", theKey)
					require.NoError(w, <-reads)
					require.NoError(w, other.unlock(r.ReadWrite("42").Reader()))
				}
				require.NoError(w, other.unlock(r.Obtain("43")))
				require.NoError(w, <-waits)
			})
		})
	}
	t.Run("nobody waits for the readers behind a writer", func(t *testing.T) {
		fakeWorld(t, func(w *world) {
			var a alarms
			r := w.registry(a.option())
			reader, other := stage(w, r)
			waits := w.goroutine().starts(r.ReadWrite("42").Writer())
			w.settle()
			reads := other.starts(r.ReadWrite("42").Reader())
			w.settle()
			require.NoError(w, reader.lock(r.ReadWrite("42").Reader())) // once more
			a.none(w)
			require.NoError(w, reader.unlock(r.ReadWrite("42").Reader()))
			require.NoError(w, reader.unlock(r.ReadWrite("42").Reader()))
			require.NoError(w, <-waits)
			w.pending(reads)
			require.NoError(w, elsewhere(func() error { return r.ForceUnlock(w.Context(), "42") }))
			require.NoError(w, <-reads)
		})
	})
}

// What ends by itself, or by others, is reported, and gives no error.
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
		opts          []lockregistry.Option
	}{
		"a deadline": {same, lock, func(ctx context.Context, r *lockregistry.Registry, path string) error {
			ctx, cancel := context.WithTimeout(ctx, time.Minute)
			defer cancel()
			return r.Obtain(path).Lock(ctx)
		}, nil},
		"Wait": {same, lock, func(ctx context.Context, r *lockregistry.Registry, path string) error {
			_, err := r.Obtain(path).TryLock(ctx, lockregistry.Wait(time.Minute))
			return err
		}, nil},
		"holds as values":             {same, acquire, acquire, nil},
		"holds as values, then locks": {same, acquire, lock, nil},
		"NewOwner":                    {lockregistry.NewOwner, lock, lock, nil},
		"a context of the lock": {same, func(ctx context.Context, r *lockregistry.Registry, path string) error {
			err := r.Obtain(path).Lock(ctx)
			_ = r.Obtain(path).Context(ctx)
			return err
		}, lock, nil},
		"the option": {same, lock, lock, []lockregistry.Option{lockregistry.WithoutDeadlockErrors()}},
	} {
		t.Run(name, func(t *testing.T) {
			fakeWorld(t, func(w *world) {
				var a alarms
				var lines strings.Builder
				r := w.registry(append(c.opts, a.option(), lockregistry.WithLogger(slog.New(slog.NewTextHandler(&lines, nil))))...)
				base, cancel := context.WithCancel(w.Context())
				ctxs := []context.Context{c.ctx(base), c.ctx(base)}
				_, results := w.ring(2, func(i int) func() error {
					return func() error { return c.first(ctxs[i], r, path(i, 2)) }
				}, func(i int) func() error {
					return func() error { return c.second(ctxs[i], r, path(i+1, 2)) }
				})
				w.settle()
				d := a.one(w, path(0, 2), path(1, 2))
				for _, result := range results {
					w.pending(result)
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

// A call with the context of a hold waits for that hold's sake, in whichever goroutine.
func TestDeadlock_ByContext(t *testing.T) {
	fakeWorld(t, func(w *world) {
		var a alarms
		r := w.registry(a.option())
		hold, err := elsewhere2(func() (*lockregistry.Hold, error) { return r.Acquire(w.Context(), "a") })
		require.NoError(w, err)
		other := w.goroutine()
		require.NoError(w, other.lock(r.Obtain("b")))
		ctx := hold.Context(w.Context())
		waits := lockElsewhere(r.Obtain("b"), ctx)
		w.settle()
		back := other.starts(r.Obtain("a"))
		a.one(w, "a", "b")
		require.NoError(w, hold.Release(w.Context()))
		require.ErrorIs(w, <-waits, context.Canceled)
		require.NoError(w, <-back)
	})
}

// A hold that its goroutine has passed on, and that another one releases within half a second, is no alarm.
func TestDeadlock_NoDeadlockOfAHoldThatIsPassedOn(t *testing.T) {
	fakeWorld(t, func(w *world) {
		var a alarms
		r := w.registry(a.option())
		g, other := w.goroutine(), w.goroutine()
		var hold *lockregistry.Hold
		require.NoError(w, g.do(func() (err error) { hold, err = r.Acquire(w.Context(), "a"); return err }))
		require.NoError(w, other.lock(r.Obtain("b")))
		back := other.starts(r.Obtain("a"))
		w.settle()
		waits := g.starts(r.Obtain("b"))
		w.pass(400 * time.Millisecond)
		require.NoError(w, hold.Release(w.Context()))
		require.NoError(w, <-back)
		require.NoError(w, other.unlock(r.Obtain("b")))
		require.NoError(w, <-waits)
		a.none(w)
	})
}

// Who nests in the hold of Do in a goroutine that outlasts fn unlocks it: the goroutine that waits meanwhile is not all that
// keeps it.
func TestDeadlock_NoDeadlockOfADoThatIsOutlasted(t *testing.T) {
	fakeWorld(t, func(w *world) {
		r := w.registry()
		a, b := r.Obtain("a"), r.Obtain("b")
		one, two, child := w.goroutine(), w.goroutine(), w.goroutine()
		var inner context.Context
		require.NoError(w, one.do(func() error {
			return r.Do(w.Context(), "a", func(ctx context.Context) error {
				inner = ctx
				return child.do(func() error { return a.Lock(ctx) })
			})
		}))
		require.NoError(w, two.lock(b))
		first := one.starts(b)
		w.settle()
		second := two.starts(a)
		w.settle()
		require.NoError(w, child.do(func() error { return a.Unlock(inner) }))
		require.NoError(w, <-second)
		require.NoError(w, two.unlock(b))
		require.NoError(w, <-first)
	})
}

// Who writes reads anew while its last hold on reading is still being removed, and another goroutine waits to write: it waits
// for the removal only.
func TestDeadlock_NoDeadlockOfAWriterThatReads(t *testing.T) {
	fakeWorld(t, func(w *world) {
		f := w.flaky()
		p := pairOf(f.registry())
		g, other := w.goroutine(), w.goroutine()
		require.NoError(w, g.lock(p.writer))
		require.NoError(w, g.lock(p.reader))
		waits := other.starts(p.writer)
		w.settle()
		until := make(chan struct{})
		f.all("read", heldUp(until))
		require.ErrorIs(w, g.unlock(p.reader), lockregistry.ErrUnavailable)
		again := g.starts(p.reader)
		w.settle()
		f.Forget()
		close(until)
		require.NoError(w, <-again)
		require.NoError(w, g.unlock(p.reader))
		require.NoError(w, g.unlock(p.writer))
		require.NoError(w, <-waits)
	})
}

func TestDeadlock_NoEdges(t *testing.T) {
	fakeWorld(t, func(w *world) {
		var a alarms
		r := w.registry(a.option())
		one, two := w.goroutine(), w.goroutine()
		require.NoError(w, one.lock(r.Obtain("a")))
		require.NoError(w, two.lock(r.Obtain("b")))
		waits := one.starts(r.Obtain("b"))
		w.settle()
		ok, err := two.try(r.Obtain("a"))
		require.NoError(w, err)
		require.False(w, ok)
		require.ErrorIs(w, two.lock(r.Obtain("a"), lockregistry.NoWait()), lockregistry.ErrTaken)
		a.none(w)
		require.NoError(w, two.unlock(r.Obtain("b")))
		require.NoError(w, <-waits)
	})
}

// A goroutine that has the local half, and waits for another process, may get the lock: those behind it are in no cycle.
func TestDeadlock_NoDeadlockOfACallThatWaitsForRedis(t *testing.T) {
	fakeWorld(t, func(w *world) {
		var a alarms
		r, elsewhere := w.registry(a.option()), w.registry()
		w.lock(elsewhere.Obtain("a"))
		one, two := w.goroutine(), w.goroutine()
		require.NoError(w, one.lock(r.Obtain("b")))
		first := one.starts(r.Obtain("a"))
		w.settle()
		second := two.starts(r.Obtain("b"))
		a.none(w)
		w.unlock(elsewhere.Obtain("a"))
		require.NoError(w, <-first)
		require.NoError(w, one.unlock(r.Obtain("b")))
		require.NoError(w, <-second)
	})
}

// A hold that is lost is no edge: whoever waits for it gets in.
func TestDeadlock_ALostHoldIsNoEdge(t *testing.T) {
	fakeWorld(t, func(w *world) {
		var a alarms
		r := w.registry(a.option())
		one, two := w.goroutine(), w.goroutine()
		require.NoError(w, one.lock(r.Obtain("a"), lockregistry.Lease(time.Second)))
		require.NoError(w, two.lock(r.Obtain("b")))
		waits := one.starts(r.Obtain("b"))
		w.pass(time.Second)
		require.NoError(w, two.lock(r.Obtain("a")))
		a.none(w)
		require.NoError(w, two.unlock(r.Obtain("b")))
		require.NoError(w, <-waits)
	})
}

// Goroutines lock plain and read-write locks, each in the order of the paths, so that no cycle is possible:
// with contexts that are cancelled, deadlines, holds as values, and owners.
func TestDeadlock_NoFalseAlarm(t *testing.T) {
	t.Parallel()
	const runs, batch = 160, 40
	for first := 0; first < runs; first += batch {
		t.Run(strconv.Itoa(first), func(t *testing.T) {
			fakeWorld(t, func(w *world) {
				var a alarms
				client := w.client()
				for run := range batch {
					acyclic(w, client, a.option(), uint64(first+run))
				}
				require.Empty(w, a.list())
			})
		})
	}
}

// acyclic is one run.
func acyclic(w *world, client rueidis.Client, opt lockregistry.Option, seed uint64) {
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
				ctx = lockregistry.NewOwner(ctx)
			}
			if err := climb(ctx, r, random, 0); err != nil && !errors.Is(err, context.DeadlineExceeded) {
				w.Errorf("seed %d: %v", seed, err)
			}
		})
	}
	all.Wait()
}

// climb takes some of the locks from one path on, and releases them on the way back.
func climb(ctx context.Context, r *lockregistry.Registry, random *rand.Rand, from int) error {
	from += random.IntN(3)
	if from > 5 {
		<-time.After(time.Duration(random.IntN(900)) * time.Millisecond) // long enough for a second look
		return nil
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
