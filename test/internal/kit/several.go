package kit

import (
	"context"
	"math/rand/v2"
	"strconv"
	"sync/atomic"
	"testing"

	"github.com/lockregistry/lockregistry"
)

// AcquiresAll acquires several paths for the test.
func (w *World) AcquiresAll(
	r *lockregistry.Registry, paths []string, opts ...lockregistry.AcquireOption,
) (h *lockregistry.Hold) {
	w.Helper()
	w.obtains(func() (err error) {
		h, err = r.AcquireAll(w.Context(), paths, opts...)
		return err
	})
	return h
}

// AllOf acquires several paths in a goroutine.
func (w *World) AllOf(
	ctx context.Context, r *lockregistry.Registry, paths []string, opts ...lockregistry.AcquireOption,
) (got <-chan *lockregistry.Hold, failed <-chan error) {
	holds, errs := make(chan *lockregistry.Hold, 1), make(chan error, 1)
	go func() {
		h, err := r.AcquireAll(ctx, paths, opts...)
		if err != nil {
			errs <- err
			return
		}
		holds <- h
	}()
	return holds, errs
}

// Sections count how many owners are inside of each.
type Sections [6]atomic.Int32

// Enter checks that nobody else is inside of the sections in which.
func (s *Sections) Enter(w testing.TB, which []int, during func()) {
	for _, i := range which {
		if s[i].Add(1) != 1 {
			w.Error("two are inside of ", i)
		}
	}
	during()
	for _, i := range which {
		s[i].Add(-1)
	}
}

// RandomPaths returns some paths in random order, and their numbers.
func RandomPaths() (which []int, paths []string) {
	which = rand.Perm(len(Sections{}))[:1+rand.IntN(4)]
	for _, i := range which {
		paths = append(paths, "path "+strconv.Itoa(i))
	}
	return which, paths
}
