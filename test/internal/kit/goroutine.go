package kit

import (
	"context"

	"github.com/lockregistry/lockregistry"
)

// Goroutine is a goroutine that does one thing after another, as told. It is an owner of its own.
type Goroutine struct {
	w    *World
	todo chan func()
}

// Goroutine starts one, which ends with the test.
func (w *World) Goroutine() *Goroutine {
	g := &Goroutine{w, make(chan func(), 8)}
	w.Cleanup(func() { close(g.todo) })
	go func() {
		for do := range g.todo {
			do()
		}
	}()
	return g
}

// Start has the goroutine do something after what it is doing now.
func (g *Goroutine) Start(do func() error) <-chan error {
	result := make(chan error, 1)
	g.todo <- func() { result <- do() }
	return result
}

// Do has the goroutine do something, and waits for it.
func (g *Goroutine) Do(do func() error) error { return <-g.Start(do) }

// Starts has the goroutine lock, and does not wait for it.
func (g *Goroutine) Starts(l *lockregistry.Lock, opts ...lockregistry.LockOption) <-chan error {
	return g.Start(func() error { return l.Lock(g.w.Context(), opts...) })
}

// Lock has the goroutine lock, and waits for it, see Answer.
func (g *Goroutine) Lock(l *lockregistry.Lock, opts ...lockregistry.LockOption) error {
	return g.Do(func() error { return g.w.Answer(func() error { return l.Lock(g.w.Context(), opts...) }) })
}

// Try has the goroutine call TryLock, see Answer.
func (g *Goroutine) Try(l *lockregistry.Lock, opts ...lockregistry.LockOption) (ok bool, err error) {
	err = g.Do(func() error {
		return g.w.Answer(func() (err error) {
			ok, err = l.TryLock(g.w.Context(), opts...)
			return err
		})
	})
	return ok, err
}

// Unlock has the goroutine unlock. On a real server it is no error if the answer took too long.
func (g *Goroutine) Unlock(l *lockregistry.Lock) error {
	return g.w.UnlessLate(g.Do(func() error { return l.Unlock(g.w.Context()) }))
}

// Elsewhere runs a function on another goroutine and returns its result: for a second owner.
func Elsewhere[T any](f func() T) T {
	result := make(chan T)
	go func() { result <- f() }()
	return <-result
}

// LockElsewhere locks in another goroutine.
//
//nolint:revive // the order of l.Lock(ctx)
func LockElsewhere(l *lockregistry.Lock, ctx context.Context, opts ...lockregistry.LockOption) <-chan error {
	result := make(chan error, 1)
	go func() { result <- l.Lock(ctx, opts...) }()
	return result
}

// TryElsewhere reports whether another goroutine gets the lock, and unlocks it if so.
func (w *World) TryElsewhere(l *lockregistry.Lock) bool {
	w.Helper()
	return Elsewhere(func() (ok bool) {
		err := w.Answer(func() (err error) {
			ok, err = l.TryLock(w.Context())
			return err
		})
		if err != nil {
			w.Error(err)
		}
		if !ok {
			return false
		}
		if err = l.Unlock(w.Context()); err != nil && (w.Fake || !TookLong(err)) {
			w.Error(err)
		}
		return true
	})
}

// Elsewhere2 is Elsewhere for a function with two results.
func Elsewhere2[A, B any](f func() (A, B)) (A, B) {
	type both struct {
		a A
		b B
	}
	result := Elsewhere(func() both {
		a, b := f()
		return both{a, b}
	})
	return result.a, result.b
}

// Watch returns the context of the goroutine's hold.
func (g *Goroutine) Watch(l *lockregistry.Lock) (ctx context.Context) {
	_ = g.Do(func() error {
		ctx = l.Context(context.Background())
		return nil
	})
	return ctx
}
