package lockregistry_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry"
)

// processes are registries of a prefix, each as another process would have one, with the alarms of each.
func (w *world) processes(n int, opts ...lockregistry.Option) (registries []*lockregistry.Registry, all []*alarms) {
	w.Helper()
	for range n {
		a := &alarms{}
		all = append(all, a)
		registries = append(registries, w.registry(append(opts, a.option(), lockregistry.WithRenewal())...))
	}
	return registries, all
}

func paths(n int) (all []string) {
	for i := range n {
		all = append(all, path(i, n))
	}
	return all
}

// Two and five owners, in as many processes, and five in two.
func TestDeadlock_OverProcesses(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ owners, processes int }{"two": {2, 2}, "five": {5, 5}, "five in two": {5, 2}} {
		t.Run(name, func(t *testing.T) {
			worlds(t, func(w *world) {
				registries, all := w.processes(c.processes)
				in := func(i int) *lockregistry.Registry { return registries[i%c.processes] }
				ctx, cancel := context.WithCancel(w.Context())
				_, results := w.ring(c.owners, func(i int) func() error {
					return func() error { return in(i).Obtain(path(i, c.owners)).Lock(ctx) }
				}, func(i int) func() error {
					return func() error { return in(i).Obtain(path(i+1, c.owners)).Lock(ctx) }
				})
				for _, a := range all {
					d := a.one(w, paths(c.owners)...)
					for i, wait := range d.Waits {
						require.Contains(w, d.Waits[(i+1)%c.owners].Holds, wait.Path)
						require.True(w, wait.Label.Known())
						require.WithinDuration(w, time.Now(), wait.Since, time.Minute)
					}
				}
				observer := w.registry()
				found, err := observer.Deadlocks(w.Context())
				require.NoError(w, err)
				require.Len(w, found, 1)
				require.Len(w, found[0].Waits, c.owners)
				require.Regexp(w, `goroutine \d+ \(.*process \d+\) holds "path a" and waits for "path b"`, found[0].String())

				// Nothing remains once it is over.
				cancel()
				for _, result := range results {
					require.Error(w, <-result)
				}
				w.await("no deadlock", func() bool {
					found, err := observer.Deadlocks(w.Context())
					require.NoError(w, err)
					return len(found) == 0
				})
			})
		})
	}
}

// One that another process has held all the time is in no cycle, nor is a call that gives up and comes again.
func TestDeadlock_NoDeadlockOverProcesses(t *testing.T) {
	fakeWorld(t, func(w *world) {
		registries, all := w.processes(2)
		one, two := w.goroutine(), w.goroutine()
		require.NoError(w, one.lock(registries[0].Obtain("a")))
		require.NoError(w, two.lock(registries[1].Obtain("b")))
		// Each waits for the other one, but never at the same time.
		for range 5 {
			ok, err := one.try(registries[0].Obtain("b"), lockregistry.Wait(2*time.Second))
			require.NoError(w, err)
			require.False(w, ok)
			ok, err = two.try(registries[1].Obtain("a"), lockregistry.Wait(2*time.Second))
			require.NoError(w, err)
			require.False(w, ok)
		}
		// Both for less than two looks.
		for range 5 {
			first := one.starts(registries[0].Obtain("b"), lockregistry.Wait(900*time.Millisecond))
			require.ErrorIs(w, two.lock(registries[1].Obtain("a"), lockregistry.Wait(900*time.Millisecond)), lockregistry.ErrTaken)
			require.ErrorIs(w, <-first, lockregistry.ErrTaken)
		}
		for _, a := range all {
			a.none(w)
		}
	})
}

// A cycle of readers and writers.
func TestDeadlock_OfReadersOverProcesses(t *testing.T) {
	fakeWorld(t, func(w *world) {
		registries, all := w.processes(3)
		one, two, three := w.goroutine(), w.goroutine(), w.goroutine()
		require.NoError(w, one.lock(registries[0].ReadWrite("a").Reader()))
		require.NoError(w, three.lock(registries[2].ReadWrite("a").Reader()))
		require.NoError(w, two.lock(registries[1].Obtain("b")))
		ctx, cancel := context.WithCancel(w.Context())
		first := one.start(func() error { return registries[0].Obtain("b").Lock(ctx) })
		second := two.start(func() error { return registries[1].ReadWrite("a").Writer().Lock(ctx) })
		for _, a := range all[:2] {
			d := a.one(w, "a", "b")
			require.Contains(w, d.String(), `waits for the writer of "a"`)
		}
		require.Empty(w, all[2].list())
		cancel()
		require.Error(w, <-first)
		require.Error(w, <-second)
	})
}

// Java's holders have no record: a cycle with one of them is not seen, by anybody.
func TestDeadlock_WithJavaIsNotSeen(t *testing.T) {
	fakeWorld(t, func(w *world) {
		registries, all := w.processes(1)
		r, g := registries[0], w.goroutine()
		require.NoError(w, g.lock(r.Obtain("a")))
		require.Equal(w, "OK", w.do("SET", "orders:b", "7a5fd0ad-8d32-4d11-9c6b-0e8b3f6d2d5c", "PX", "600000"))
		waits := g.starts(r.Obtain("b"))
		w.pass(10 * time.Second)
		all[0].none(w)
		found, err := r.Deadlocks(w.Context())
		require.NoError(w, err)
		require.Empty(w, found)
		w.do("DEL", "orders:b")
		require.NoError(w, <-waits)
	})
}

// A record says within a moment that a wait is over: nobody sees it for longer.
func TestDeadlock_RecordOfAWaitThatIsOver(t *testing.T) {
	fakeWorld(t, func(w *world) {
		registries, _ := w.processes(2)
		one, two := w.goroutine(), w.goroutine()
		require.NoError(w, one.lock(registries[0].Obtain("a")))
		require.NoError(w, two.lock(registries[1].Obtain("b")))
		ctx, cancel := context.WithCancel(w.Context())
		waits := one.start(func() error { return registries[0].Obtain("b").Lock(ctx) })
		record := "orders:{" + strings.SplitN(w.do("GET", "orders:a"), ":", 2)[0] + "}:registry"
		w.await("the record", func() bool { return strings.Contains(w.do("GET", record), `"waits":[`) })
		require.Contains(w, w.do("GET", record), `"path":"b","kind":"lock","owner":"goroutine `)
		require.Contains(w, w.do("GET", record), `"holds":["a"]`)
		cancel()
		require.Error(w, <-waits)
		w.settle()
		require.NotContains(w, w.do("GET", record), "waits")
	})
}
