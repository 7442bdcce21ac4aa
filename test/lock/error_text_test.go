package lock_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry"
	"github.com/lockregistry/lockregistry/observe"
	"github.com/lockregistry/lockregistry/test/internal/kit"
)

// What errors say.

// In an outage the log has many such errors: each says once what is wrong.
func TestErrorText_Unavailable(t *testing.T) {
	t.Parallel()
	for text, fate := range map[string]kit.Fate{
		"lockregistry: lock orders:42: Redis did not answer in time":           kit.Silence,
		"lockregistry: lock orders:42: Redis cannot serve now: " + kit.Loading: kit.Refused(kit.Loading),
		"lockregistry: lock orders:42: Redis did not answer: EOF":              kit.CutAfter,
	} {
		t.Run(text, func(t *testing.T) {
			kit.FakeWorld(t, func(w *kit.World) {
				f := w.Flaky()
				r := f.Registry()
				w.Known(r)
				f.Fate("obtain", fate)
				err := r.Obtain("42").Lock(w.Context())
				w.Unavailable(err, "lock")
				require.EqualError(w, err, text)
			})
		})
	}
}

// Names may be long, and errors are logged: the text shortens them, and LockError has them whole.
func TestErrorText_LongNames(t *testing.T) {
	kit.FakeWorld(t, func(w *kit.World) {
		path := strings.Repeat("ä", 1<<19)
		err := w.Registry().Obtain(path).Unlock(w.Context())
		require.ErrorIs(w, err, lockregistry.ErrNotOwner)
		require.Less(w, len(err.Error()), 300)
		require.Contains(w, err.Error(), "orders:ää")
		require.Contains(w, err.Error(), "ä...: ")
		var failed *lockregistry.LockError
		require.ErrorAs(w, err, &failed)
		require.Equal(w, "orders:"+path, failed.Key)
	})
}

// A duration without a unit is in nanoseconds: probably a mistake.
func TestErrorText_LeasesOutOfRange(t *testing.T) {
	const month = 30 * 24 * time.Hour
	kit.FakeWorld(t, func(w *kit.World) {
		r := w.Registry()
		for text, option := range map[string]lockregistry.LockOption{
			"margin for clocks; 30 is 30 ns: write 30*time.Second":       lockregistry.Lease(30),
			"AtMost(30ns): a lease must be at least 2ms":                 lockregistry.AtMost(30),
			"30000 is 30000 ns: write 30000*time.Millisecond":            lockregistry.Lease(30000),
			"Lease(720h0m0.001s): a lease must be at most 30 days":       lockregistry.Lease(month + time.Millisecond),
			"AtMost(720h0m0.001s): a lease must be at most 30 days":      lockregistry.AtMost(month + time.Millisecond),
			"Lease(1ms): a lease must be at least 2ms, since 1 % and a ": lockregistry.Lease(time.Millisecond),
		} {
			require.ErrorContains(w, r.Obtain("42").Lock(w.Context(), option), text)
		}
		w.Lock(r.Obtain("42"), lockregistry.Lease(month), lockregistry.AtMost(month))
		require.ErrorContains(w, r.Obtain("42").Renew(w.Context(), month+1), "at most 30 days")
		require.NoError(w, r.Obtain("42").Renew(w.Context(), month))
		w.Unlock(r.Obtain("42"))
		w.Lock(r.Obtain("42"), lockregistry.AtLeast(2*month)) // not a lease

		_, err := lockregistry.New(w.Client(), "orders", lockregistry.WithLease(30))
		require.ErrorContains(w, err, "30 is 30 ns: write 30*time.Second")
		_, err = lockregistry.New(w.Client(), "orders", lockregistry.WithLease(month+1))
		require.ErrorContains(w, err, "at most 30 days")
		ran, err := r.Once(w.Context(), "yearly", 12*month, func(context.Context) error { return nil })
		require.True(w, ran)
		require.NoError(w, err)
	})
}

// A call whose context ends says who had the lock, as ErrTaken does.
func TestErrorText_WhoHadTheLock(t *testing.T) {
	kit.FakeWorld(t, func(w *kit.World) {
		r := w.Registry()
		here, there := r.Obtain("here"), r.Obtain("there")
		w.Lock(here)
		w.Lock(w.Registry().Obtain("there"))
		for l, who := range map[*lockregistry.Lock]string{here: " of this process has it", there: ": it is taken in Redis"} {
			ctx, end := context.WithTimeout(w.Context(), time.Second)
			err := <-kit.LockElsewhere(l, ctx)
			end()
			w.Fails(err, context.DeadlineExceeded, "lock", kit.Key(l))
			require.ErrorContains(w, err, who)

			why := errors.New("the user went home")
			cancelled, cancel := context.WithCancelCause(w.Context())
			result := kit.LockElsewhere(l, cancelled)
			w.Settle()
			cancel(why)
			err = <-result
			w.Fails(err, context.Canceled, "lock", kit.Key(l))
			require.ErrorIs(w, err, why)
			require.ErrorContains(w, err, who)
		}
		cancelled, cancel := context.WithCancel(w.Context())
		cancel()
		require.EqualError(w, <-kit.LockElsewhere(r.Obtain("free"), cancelled), "lockregistry: lock orders:free: context canceled")
	})
}

// While an observer is told of a new Hold, it is not yet known which goroutine has it.
func TestErrorText_AHoldThatIsNew(t *testing.T) {
	kit.FakeWorld(t, func(w *kit.World) {
		told, goOn := make(chan struct{}), make(chan struct{})
		l := w.Registry(lockregistry.WithObserver(observe.Observer{Acquired: func(_ context.Context, a observe.Acquired) {
			if a.Op == "acquire" {
				close(told)
				<-goOn
			}
		}})).Obtain("42")
		got := w.Acquiring(l)
		<-told
		err := l.Lock(w.Context(), lockregistry.NoWait())
		require.EqualError(w, err, "lockregistry: lock orders:42: the lock was not free: a Hold of this process has it")
		close(goOn)
		w.Release(w.Got(got))
	})
}
