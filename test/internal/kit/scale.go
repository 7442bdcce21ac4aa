package kit

import (
	"context"
	"strconv"
	"sync"

	"github.com/lockregistry/lockregistry"
)

// SetAll sets that many keys, "orders:0" and so on, without this library.
func (w *World) SetAll(count int) {
	w.Helper()
	w.Do("EVAL", "for i = 0, ARGV[1] - 1 do redis.call('SET', 'orders:' .. i, 'somebody') end", "0", strconv.Itoa(count))
}

// Saturate has many goroutines of a registry lock and unlock without end.
func (w *World) Saturate(ctx context.Context, r *lockregistry.Registry, section func()) (done *sync.WaitGroup) {
	done = new(sync.WaitGroup)
	for range 64 {
		done.Go(func() {
			l := r.Obtain("42")
			for l.Lock(ctx) == nil {
				section()
				if err := w.UnlessBusy(l.Unlock(context.WithoutCancel(ctx))); err != nil {
					w.Error(err)
				}
			}
		})
	}
	return done
}
