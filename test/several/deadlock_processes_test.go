package several_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry"
	"github.com/lockregistry/lockregistry/inspect"
	"github.com/lockregistry/lockregistry/test/internal/kit"
)

func paths(n int) (all []string) {
	for i := range n {
		all = append(all, path(i, n))
	}
	return all
}

// Deadlocks of two and of five owners, in as many processes, and of five in two.
func TestDeadlock_OverProcesses(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ owners, processes int }{"two": {2, 2}, "five": {5, 5}, "five in two": {5, 2}} {
		t.Run(name, func(t *testing.T) {
			kit.Worlds(t, func(w *kit.World) {
				registries, all := w.Processes(c.processes)
				in := func(i int) *lockregistry.Registry { return registries[i%c.processes] }
				ctx, cancel := context.WithCancel(w.Context())
				_, results := ring(w, c.owners, func(i int) func() error {
					return func() error { return in(i).Obtain(path(i, c.owners)).Lock(ctx) }
				}, func(i int) func() error {
					return func() error { return in(i).Obtain(path(i+1, c.owners)).Lock(ctx) }
				})
				for _, a := range all {
					d := oneAlarm(a, w, paths(c.owners)...)
					for i, wait := range d.Waits {
						require.Contains(w, d.Waits[(i+1)%c.owners].Holds, wait.Path)
						require.True(w, wait.Label.Known())
						require.WithinDuration(w, time.Now(), wait.Since, time.Minute)
					}
				}
				observer := w.Registry()
				found, err := inspect.Of(observer).Deadlocks(w.Context())
				require.NoError(w, err)
				require.Len(w, found, 1)
				require.Len(w, found[0].Waits, c.owners)
				require.Regexp(w, `goroutine \d+ \(.*process \d+\) holds "path a" and waits for "path b"`, found[0].String())

				// Nothing remains once the deadlock is over.
				cancel()
				for _, result := range results {
					require.Error(w, <-result)
				}
				w.Await("no deadlock", func() bool {
					found, err := inspect.Of(observer).Deadlocks(w.Context())
					require.NoError(w, err)
					return len(found) == 0
				})
			})
		})
	}
}

// A lock that another process holds all the time is in no cycle, nor is a call that gives up and comes again.
func TestDeadlock_NoDeadlockOverProcesses(t *testing.T) {
	kit.FakeWorld(t, func(w *kit.World) {
		registries, all := w.Processes(2)
		one, two := w.Goroutine(), w.Goroutine()
		require.NoError(w, one.Lock(registries[0].Obtain("a")))
		require.NoError(w, two.Lock(registries[1].Obtain("b")))
		// Each waits for the other one, but never at the same time.
		for range 5 {
			ok, err := one.Try(registries[0].Obtain("b"), lockregistry.Wait(2*time.Second))
			require.NoError(w, err)
			require.False(w, ok)
			ok, err = two.Try(registries[1].Obtain("a"), lockregistry.Wait(2*time.Second))
			require.NoError(w, err)
			require.False(w, ok)
		}
		// Both wait, but for less than the time between two looks.
		for range 5 {
			first := one.Starts(registries[0].Obtain("b"), lockregistry.Wait(900*time.Millisecond))
			require.ErrorIs(w, two.Lock(registries[1].Obtain("a"), lockregistry.Wait(900*time.Millisecond)), lockregistry.ErrTaken)
			require.ErrorIs(w, <-first, lockregistry.ErrTaken)
		}
		for _, a := range all {
			a.None(w)
		}
	})
}

// A cycle of readers and writers is found.
func TestDeadlock_OfReadersOverProcesses(t *testing.T) {
	kit.FakeWorld(t, func(w *kit.World) {
		registries, all := w.Processes(3)
		one, two, three := w.Goroutine(), w.Goroutine(), w.Goroutine()
		require.NoError(w, one.Lock(registries[0].ReadWrite("a").Reader()))
		require.NoError(w, three.Lock(registries[2].ReadWrite("a").Reader()))
		require.NoError(w, two.Lock(registries[1].Obtain("b")))
		ctx, cancel := context.WithCancel(w.Context())
		first := one.Start(func() error { return registries[0].Obtain("b").Lock(ctx) })
		second := two.Start(func() error { return registries[1].ReadWrite("a").Writer().Lock(ctx) })
		for _, a := range all[:2] {
			d := oneAlarm(a, w, "a", "b")
			require.Contains(w, d.String(), `waits for the writer of "a"`)
		}
		require.Empty(w, all[2].List())
		cancel()
		require.Error(w, <-first)
		require.Error(w, <-second)
	})
}

// Java's holders have no record: nobody sees a cycle with one of them.
func TestDeadlock_WithJavaIsNotSeen(t *testing.T) {
	kit.FakeWorld(t, func(w *kit.World) {
		registries, all := w.Processes(1)
		r, g := registries[0], w.Goroutine()
		require.NoError(w, g.Lock(r.Obtain("a")))
		require.Equal(w, "OK", w.Do("SET", "orders:b", "7a5fd0ad-8d32-4d11-9c6b-0e8b3f6d2d5c", "PX", "600000"))
		waits := g.Starts(r.Obtain("b"))
		w.Pass(10 * time.Second)
		all[0].None(w)
		found, err := inspect.Of(r).Deadlocks(w.Context())
		require.NoError(w, err)
		require.Empty(w, found)
		w.Do("DEL", "orders:b")
		require.NoError(w, <-waits)
	})
}

// A record soon says that a wait is over, so that no old wait is seen.
func TestDeadlock_RecordOfAWaitThatIsOver(t *testing.T) {
	kit.FakeWorld(t, func(w *kit.World) {
		registries, _ := w.Processes(2)
		one, two := w.Goroutine(), w.Goroutine()
		require.NoError(w, one.Lock(registries[0].Obtain("a")))
		require.NoError(w, two.Lock(registries[1].Obtain("b")))
		ctx, cancel := context.WithCancel(w.Context())
		waits := one.Start(func() error { return registries[0].Obtain("b").Lock(ctx) })
		record := "orders:{" + strings.SplitN(w.Do("GET", "orders:a"), ":", 2)[0] + "}:registry"
		w.Await("the record", func() bool { return strings.Contains(w.Do("GET", record), `"waits":[`) })
		require.Contains(w, w.Do("GET", record), `"path":"b","kind":"lock","owner":"goroutine `)
		require.Contains(w, w.Do("GET", record), `"holds":["a"]`)
		cancel()
		require.Error(w, <-waits)
		w.Settle()
		require.NotContains(w, w.Do("GET", record), "waits")
	})
}
