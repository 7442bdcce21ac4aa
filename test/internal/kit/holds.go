package kit

import (
	"context"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry"
)

// Acquires gets a hold for the test, which fails without it.
func (w *World) Acquires(l *lockregistry.Lock, opts ...lockregistry.LockOption) *lockregistry.Hold {
	w.Helper()
	var h *lockregistry.Hold
	w.obtains(func() (err error) {
		h, err = l.Acquire(w.Context(), opts...)
		return err
	})
	return h
}

// Acquiring is a call of Acquire in a goroutine of its own.
type Acquiring struct {
	Err  chan error
	Hold *lockregistry.Hold // set once err was sent
}

// Acquiring starts a call of Acquire.
func (w *World) Acquiring(l *lockregistry.Lock, opts ...lockregistry.LockOption) *Acquiring {
	a := &Acquiring{Err: make(chan error, 1)}
	ctx := w.Context()
	go func() {
		var err error
		a.Hold, err = l.Acquire(ctx, opts...)
		a.Err <- err
	}()
	return a
}

// Got waits for the hold.
func (w *World) Got(a *Acquiring) *lockregistry.Hold {
	w.Helper()
	require.NoError(w, <-a.Err)
	return a.Hold
}

// ContextEnd is what a test learns about the end of a context.
type ContextEnd struct {
	At    time.Time
	Cause error
	Left  time.Duration // of the key's lease at that moment
}

// BothLayouts runs a test with two registries of each layout.
func BothLayouts(
	t *testing.T, run func(*testing.T, func(*World)), test func(w *World, r, other *lockregistry.Registry),
	opts ...lockregistry.Option,
) {
	t.Helper()
	for name, layout := range Layouts {
		t.Run(name, func(t *testing.T) {
			run(t, func(w *World) {
				opts := append(slices.Clone(opts), WithLayout(layout))
				test(w, w.Registry(opts...), w.Registry(opts...))
			})
		})
	}
}

// Watch reports the end of a context, if it comes before the end of the test.
func (w *World) Watch(ctx context.Context, key string) <-chan ContextEnd {
	w.Helper()
	ended := make(chan ContextEnd, 1)
	done := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(done)
		ended <- ContextEnd{time.Now(), context.Cause(ctx), w.Pttl(key)}
	})
	w.Cleanup(func() {
		if !stop() {
			<-done
		}
	})
	return ended
}

// Unended checks that a context has not ended yet.
func (w *World) Unended(e <-chan ContextEnd) {
	w.Helper()
	w.Settle()
	select {
	case end := <-e:
		w.Fatalf("announced too soon: %+v", end)
	default:
	}
}

// DriftMargin allows for clocks that run at different rates, by up to 1 %.
func DriftMargin(lease time.Duration) time.Duration { return lease / 100 }

// Holder returns the value or field that the holder has written to the key.
func (w *World) Holder(key string) string {
	w.Helper()
	if w.Do("TYPE", key) == "hash" {
		return strings.Trim(w.Do("HKEYS", key), "[]")
	}
	return w.Do("GET", key)
}

// RefusedBy checks that the path is taken for each of these registries.
func (w *World) RefusedBy(registries ...*lockregistry.Registry) {
	w.Helper()
	for _, r := range registries {
		_, err := r.Acquire(w.Context(), "42", lockregistry.NoWait())
		w.Fails(err, lockregistry.ErrTaken, "acquire", TheKey)
	}
}

// Gone locks count times for an owner that nothing else uses, and returns its context.
func (w *World) Gone(l *lockregistry.Lock, count int, opts ...lockregistry.LockOption) (owner context.Context) {
	w.Helper()
	owner = lockregistry.ContextWithOwner(w.Context())
	for range count {
		require.NoError(w, l.Lock(owner, opts...))
	}
	return owner
}

// LockKinds are the kinds of locks of a registry, each for the path 42.
var LockKinds = map[string]func(r *lockregistry.Registry) *lockregistry.Lock{
	"plain":  func(r *lockregistry.Registry) *lockregistry.Lock { return r.Obtain("42") },
	"reader": func(r *lockregistry.Registry) *lockregistry.Lock { return r.ReadWrite("42").Reader() },
	"writer": func(r *lockregistry.Registry) *lockregistry.Lock { return r.ReadWrite("42").Writer() },
}

// KeepOnly acquires a lock and keeps of the hold only what keep returns.
//
//go:noinline
func KeepOnly[T any](w *World, l *lockregistry.Lock, keep func(*lockregistry.Hold) T, opts ...lockregistry.LockOption) T {
	return keep(w.Acquires(l, opts...))
}

// Collect collects garbage and waits for the cleanups. In fake time it then lets some time pass, since only then does the
// registry learn of it.
func (w *World) Collect() {
	var collected atomic.Bool
	runtime.AddCleanup(new(*int), func(collected *atomic.Bool) { collected.Store(true) }, &collected)
	for runtime.GC(); !collected.Load(); {
		runtime.Gosched()
	}
	if w.Fake {
		w.Pass(100 * time.Millisecond)
	}
}

// Noticed collects garbage, and reports whether the log says once that a hold has become unreachable.
func (w *World) Noticed(log *Journal) bool {
	w.Collect()
	return len(log.Lines(Forgotten, TheKey)) == 1
}

// Forgotten is what the log says then.
const Forgotten = "a hold was dropped without Release"

// Once runs a job that does nothing, and reports whether it ran.
func (w *World) Once(r *lockregistry.Registry, every time.Duration, opts ...lockregistry.OnceOption) bool {
	w.Helper()
	ran, err := r.Once(w.Context(), "42", every, DoNothing, opts...)
	require.NoError(w, err)
	return ran
}
