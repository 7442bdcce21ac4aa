//go:build !race

package alone_test

import (
	"context"
	"flag"
	"runtime"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry"
	"github.com/lockregistry/lockregistry/test/internal/kit"
)

var countedNames = flag.Int("names", 6_000, "how many names TestMemory_OfNames counts the memory of")

// least is less than the lock of one name takes by itself.
const least = 200

// bytesANameTakes has a registry use many names, and returns for each how much memory is freed when the registry is gone,
// including the name's text. Another registry keeps the client's connections open, so that their buffers do not count.
//
// A timer of a client that another test has closed may keep megabytes for a second. If it let go of them meanwhile, they would
// count. So the heap must be as large before as after; otherwise the measurement is repeated.
func bytesANameTakes(w *kit.World, use func(r *lockregistry.Registry, path string) error) int {
	w.Helper()
	client := w.Client()
	other := w.RegistryOn(client)
	for i := range 100 {
		require.NoError(w, use(other, "warm:"+strconv.Itoa(i)))
	}
	bytes := 0
	w.Await("nothing else is freed meanwhile", func() bool {
		before := heap()
		r, err := lockregistry.New(client, "orders", lockregistry.WithLease(time.Hour), lockregistry.WithRenewal())
		require.NoError(w, err)
		useNames(w, r, use)
		with := heap()
		require.NoError(w, r.Close())
		w.Do("FLUSHALL") // held keys
		after := 0
		w.Await("it is collected", func() bool { // a goroutine or a timer may refer to it for a moment
			after = heap()
			bytes = (with - after) / *countedNames
			return bytes >= least
		})
		const most = 10 // bytes for each name
		return before-after <= most**countedNames
	})
	return bytes
}

// heap returns how many bytes of the heap are in use.
func heap() int {
	runtime.GC()
	runtime.GC() // what finalizers and pools kept until now
	var stats runtime.MemStats
	runtime.ReadMemStats(&stats)
	return int(stats.HeapAlloc)
}

// useNames has 50 goroutines use the names.
func useNames(w *kit.World, r *lockregistry.Registry, use func(r *lockregistry.Registry, path string) error) {
	w.Helper()
	var all sync.WaitGroup
	const goroutines = 50
	for g := range goroutines {
		all.Go(func() {
			for i := range *countedNames / goroutines {
				if err := use(r, "some-name:"+strconv.Itoa(10_000_000+g**countedNames+i)); err != nil {
					w.Error(err)
				}
			}
		})
	}
	all.Wait()
}

// A service may lock a name for each of its customers. A name that was used takes a few hundred bytes of memory, whatever it
// was used for, and a held one little more. The figures are in docs/operations.md.
func TestMemory_OfNames(t *testing.T) { //nolint:paralleltest // what others allocate would count
	none := func(context.Context) error { return nil }
	for name, c := range map[string]struct {
		most int
		use  func(ctx context.Context, r *lockregistry.Registry, path string) error
	}{
		"obtained": {400, func(_ context.Context, r *lockregistry.Registry, path string) error {
			r.Obtain(path)
			return nil
		}},
		"Do": {400, func(ctx context.Context, r *lockregistry.Registry, path string) error {
			return r.Do(ctx, path, none)
		}},
		"Acquire": {400, func(ctx context.Context, r *lockregistry.Registry, path string) error {
			h, err := r.Acquire(ctx, path)
			if err != nil {
				return err
			}
			return h.Release(ctx)
		}},
		"reader": {700, func(ctx context.Context, r *lockregistry.Registry, path string) error {
			return r.ReadWrite(path).Reader().Do(ctx, none)
		}},
		"writer": {700, func(ctx context.Context, r *lockregistry.Registry, path string) error {
			return r.ReadWrite(path).Writer().Do(ctx, none)
		}},
		"held and renewed": {600, func(ctx context.Context, r *lockregistry.Registry, path string) error {
			return r.Obtain(path).Lock(ctx)
		}},
	} {
		t.Run(name, func(t *testing.T) {
			kit.RealWorldsAlone(t, func(w *kit.World) {
				bytes := bytesANameTakes(w, func(r *lockregistry.Registry, path string) error { return c.use(w.Context(), r, path) })
				w.Logf("%d bytes for a name: %s", bytes, name)
				require.LessOrEqual(w, bytes, c.most)
			})
		})
	}
}
