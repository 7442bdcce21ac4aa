package registry_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry"
	"github.com/lockregistry/lockregistry/test/internal/kit"
)

func TestRegistry_Names(t *testing.T) {
	kit.FakeWorld(t, func(w *kit.World) {
		l := w.Registry().Obtain("a:b c")
		require.Equal(w, "orders:a:b c", kit.Key(l))
		require.Equal(w, "a:b c", l.Path())
		w.Lock(l)
		require.False(w, w.Free("orders:a:b c"))
	})
}

// A goroutine does not own through one registry what it locked through another.
func TestRegistry_RegistriesDoNotShareHolds(t *testing.T) {
	kit.Worlds(t, func(w *kit.World) {
		client := w.Client()
		for _, id := range []string{"", "billing"} {
			var opts []lockregistry.Option
			if id != "" {
				opts = append(opts, lockregistry.WithClientID(id))
			}
			a, b := w.RegistryOn(client, opts...).Obtain("42"), w.RegistryOn(client, opts...).Obtain("42")
			w.Lock(a)
			ok, err := b.TryLock(w.Context())
			require.NoError(w, err)
			require.False(w, ok)
			require.False(w, b.IsHeld())
			w.Fails(b.Unlock(w.Context()), lockregistry.ErrNotOwner, "unlock", "orders:42")
			w.Unlock(a)
		}
	})
}

func TestRegistry_PrefixesDoNotShareLocks(t *testing.T) {
	kit.FakeWorld(t, func(w *kit.World) {
		r := w.Registry()
		other, err := lockregistry.New(w.Client(), "invoices")
		require.NoError(w, err)
		w.Lock(r.Obtain("42"))
		w.Lock(other.Obtain("42"))
		require.Equal(w, "2", w.Keys())
		require.NoError(w, other.Close())
	})
}

func TestRegistry_ManyRegistriesOnOneKey(t *testing.T) {
	kit.Worlds(t, func(w *kit.World) {
		const registries, rounds = 8, 5
		var all sync.WaitGroup
		inside := make(chan int, 1)
		for i := range registries {
			l := w.Registry(lockregistry.WithPollInterval(5 * time.Millisecond)).Obtain("42")
			all.Go(func() {
				for range rounds {
					if err := w.Answer(func() error { return l.Lock(w.Context()) }); err != nil {
						w.Error(err)
						return
					}
					select {
					case inside <- i:
						<-inside
					default:
						w.Error("two at once")
					}
					if err := w.UnlessBusy(l.Unlock(w.Context())); err != nil {
						w.Error(err)
					}
				}
			})
		}
		all.Wait()
		w.LeftNothing()
	})
}

// The error for bad input says what is wrong.

func TestNew_RefusesBadInput(t *testing.T) {
	kit.FakeWorld(t, func(w *kit.World) {
		client := w.Client()
		for want, bad := range map[string]func() (*lockregistry.Registry, error){
			"client":           func() (*lockregistry.Registry, error) { return lockregistry.New(nil, "orders") },
			"prefix":           func() (*lockregistry.Registry, error) { return lockregistry.New(client, "") },
			"option is nil":    func() (*lockregistry.Registry, error) { return lockregistry.New(client, "orders", nil) },
			"WithLease(0s)":    option(client, lockregistry.WithLease(0)),
			"WithLease(-1s)":   option(client, lockregistry.WithLease(-time.Second)),
			"WithLease(1µs)":   option(client, lockregistry.WithLease(time.Microsecond)),
			"WithPollInterval": option(client, lockregistry.WithPollInterval(0)),
			"WithClientID":     option(client, lockregistry.WithClientID("")),
			"WithLogger":       option(client, lockregistry.WithLogger(nil)),
		} {
			r, err := bad()
			require.Nil(w, r, want)
			require.ErrorContains(w, err, want)
		}
		// Everything that is wrong is reported at once.
		_, err := lockregistry.New(nil, "", lockregistry.WithPollInterval(0), lockregistry.WithLease(0))
		for _, want := range []string{"client", "prefix", "WithPollInterval", "WithLease"} {
			require.ErrorContains(w, err, want)
		}
	})
}

func option(client rueidis.Client, o lockregistry.Option) func() (*lockregistry.Registry, error) {
	return func() (*lockregistry.Registry, error) { return lockregistry.New(client, "orders", o) }
}

func TestRegistry_LocksRefuseBadInput(t *testing.T) {
	kit.FakeWorld(t, func(w *kit.World) {
		r := w.Registry()
		nameless, l := r.Obtain(""), r.Obtain("42")
		require.NotNil(w, nameless)
		var none context.Context
		_, badTry := l.TryLock(w.Context(), lockregistry.Lease(time.Microsecond))
		_, noPath := nameless.TryLock(w.Context())
		for want, errs := range map[string][]error{
			"path is empty": {
				nameless.Lock(w.Context()), noPath, nameless.Unlock(w.Context()), nameless.Renew(w.Context(), time.Minute),
				r.Do(w.Context(), "", kit.DoNothing), r.Renew(w.Context(), "", time.Minute),
			},
			"context is nil": {
				l.Lock(none), l.Unlock(none), l.Renew(none, time.Minute), r.Do(none, "42", kit.DoNothing), r.Renew(none, "42", time.Minute),
			},
			"function is nil": {r.Do(w.Context(), "42", nil)},
			"Lease(0s)":       {l.Lock(w.Context(), lockregistry.Lease(0))},
			"Lease(-1s)":      {r.Do(w.Context(), "42", kit.DoNothing, lockregistry.Lease(-time.Second))},
			"Lease(1µs)":      {badTry},
			"Renew(1µs)":      {l.Renew(w.Context(), time.Microsecond)},
			"Renew(-1s)":      {r.Renew(w.Context(), "42", -time.Second)},
			"option is nil":   {l.Lock(w.Context(), nil)},
		} {
			for _, err := range errs {
				require.ErrorContains(w, err, want)
				var failed *lockregistry.LockError
				require.ErrorAs(w, err, &failed, want)
			}
		}
		require.False(w, nameless.IsHeld())
		require.Equal(w, "0", w.Keys())
		require.NotPanics(w, func() { require.Error(w, l.Context(none).Err()) })
	})
}
