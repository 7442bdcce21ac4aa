package operator_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry"
	"github.com/lockregistry/lockregistry/test/internal/kit"
)

func TestString_WhatIsPrinted(t *testing.T) {
	kit.FakeWorld(t, func(w *kit.World) {
		r := w.Registry(lockregistry.WithClientID("billing"))
		l, rw := r.Obtain("42"), r.ReadWrite("43")
		prints := func(v any, want string) {
			w.Helper()
			require.Equal(w, want, fmt.Sprint(v))
			require.Equal(w, want, fmt.Sprintf("%+v", v))
		}
		prints(r, "Registry(orders, client id billing)")
		prints(l, "Lock(orders:42, not held)")
		prints(rw, "ReadWriteLock(orders:43, not held)")
		w.Lock(l, lockregistry.Lease(time.Second))
		w.Lock(rw.Writer())
		prints(l, "Lock(orders:42, held)")
		prints(rw, "ReadWriteLock(orders:43, writer held)")
		prints(rw.Writer(), "Writer(orders:43, held)")
		prints(rw.Reader(), "Reader(orders:43, not held)")
		w.Lock(rw.Reader())
		prints(rw, "ReadWriteLock(orders:43, both held)")
		w.Unlock(rw.Writer())
		prints(rw, "ReadWriteLock(orders:43, reader held)")
		w.Pass(time.Second)
		prints(l, "Lock(orders:42, not held)")
		w.Unlock(rw.Reader())
	})
}

// Printing a lock does not race with its users.
func TestString_PrintingWhileOthersLock(t *testing.T) {
	kit.FakeWorld(t, func(w *kit.World) {
		r := w.Registry()
		l := r.Obtain("42")
		locked := w.Goroutine().Start(func() error {
			for range 50 {
				if err := l.Lock(w.Context()); err != nil {
					return err
				}
				if err := l.Unlock(w.Context()); err != nil {
					return err
				}
			}
			return nil
		})
		for range 200 {
			_ = fmt.Sprint(l, r)
			w.Pass(time.Microsecond)
		}
		require.NoError(w, <-locked)
	})
}
