package main

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lockregistry/lockregistry"
	"github.com/lockregistry/lockregistry/leader"
	"github.com/lockregistry/lockregistry/locktest"
)

// memory is a store that takes a moment, so that what is not locked collides.
type memory struct {
	mu      sync.Mutex
	numbers map[string]int
}

func newMemory() *memory { return &memory{numbers: map[string]int{}} }

func (m *memory) Get(ctx context.Context, name string) (int, error) {
	moment(ctx)
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.numbers[name], ctx.Err()
}

func (m *memory) Set(ctx context.Context, name string, value int) error {
	moment(ctx)
	m.mu.Lock()
	defer m.mu.Unlock()
	m.numbers[name] = value
	return ctx.Err()
}

func moment(ctx context.Context) {
	select {
	case <-ctx.Done():
	case <-time.After(time.Millisecond):
	}
}

func (m *memory) number(name string) int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.numbers[name]
}

// instances are two processes on one store.
func instances(t *testing.T) (locks *locktest.Registry, store *memory, first, second *Service) {
	t.Helper()
	locks, store = locktest.New(t), newMemory()
	service := func(r *lockregistry.Registry) *Service {
		return &Service{Locks: r, Store: store, Patience: time.Second}
	}
	return locks, store, service(locks.Registry), service(locks.Peer().Registry)
}

func request(t *testing.T, s *Service, method, path string) (status int, text string) {
	t.Helper()
	w := httptest.NewRecorder()
	s.Handler().ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), method, path, nil))
	return w.Code, strings.TrimSpace(w.Body.String())
}

// post has each instance serve a request as often, all at a time.
func post(t *testing.T, path string, each int, instances ...*Service) {
	t.Helper()
	var all sync.WaitGroup
	for range each {
		for _, s := range instances {
			all.Go(func() {
				if status, text := request(t, s, http.MethodPost, path); status != http.StatusOK {
					t.Error(status, text)
				}
			})
		}
	}
	all.Wait()
}

func TestAnOrderIsShippedOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, store, first, second := instances(t)
		post(t, "/orders/42/ship", 5, first, second)
		for _, parcel := range []string{"packed:42:0", "packed:42:1", "packed:42:2", "shipped:42"} {
			if n := store.number(parcel); n != 1 {
				t.Error(parcel, n)
			}
		}
	})
}

func TestNoCreditIsLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, store, first, second := instances(t)
		post(t, "/customers/alice/credit/5", 20, first, second)
		if n := store.number("balance:alice"); n != 200 {
			t.Error("balance:", n)
		}
	})
}

func TestTransfersInOppositeDirections(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, store, first, second := instances(t)
		var all sync.WaitGroup
		transfer := func(s *Service, path string) {
			all.Go(func() {
				if status, text := request(t, s, http.MethodPost, path); status != http.StatusOK {
					t.Error(path, status, text)
				}
			})
		}
		for range 10 {
			transfer(first, "/customers/alice/transfer/bob/3")
			transfer(second, "/customers/bob/transfer/alice/2")
			transfer(second, "/customers/alice/credit/5")
		}
		all.Wait()
		if alice, bob := store.number("balance:alice"), store.number("balance:bob"); alice != 40 || bob != 10 {
			t.Error("balances:", alice, bob)
		}
	})
}

func TestPriceAndTaxFit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, _, first, second := instances(t)
		if err := first.SetPrice(t.Context(), 100); err != nil {
			t.Fatal(err)
		}
		var all sync.WaitGroup
		for i := range 10 {
			all.Go(func() {
				if err := second.SetPrice(t.Context(), 100+50*i); err != nil {
					t.Error(err)
				}
			})
			all.Go(func() {
				if net, tax, err := first.Price(t.Context()); err != nil || tax != net/5 {
					t.Error(net, tax, err)
				}
			})
		}
		all.Wait()
	})
}

func TestStatus(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		locks, _, s, _ := instances(t)
		status := func(method, path string, want int) {
			t.Helper()
			if got, text := request(t, s, method, path); got != want {
				t.Errorf("%s %s: %d, want %d: %s", method, path, got, want, text)
			}
		}
		release := locks.HoldElsewhere("order:42", time.Minute)
		status(http.MethodPost, "/orders/42/ship", http.StatusConflict)
		release()
		status(http.MethodPost, "/orders/42/ship", http.StatusOK)
		status(http.MethodPost, "/customers/alice/credit/much", http.StatusBadRequest)
		status(http.MethodGet, "/alive", http.StatusOK)
		status(http.MethodGet, "/stats", http.StatusOK)

		locks.Disconnect()
		status(http.MethodPost, "/orders/43/ship", http.StatusServiceUnavailable)
		status(http.MethodGet, "/alive", http.StatusOK)
		locks.Reconnect()
		status(http.MethodPost, "/orders/43/ship", http.StatusOK)

		if err := s.Locks.Close(); err != nil {
			t.Error(err)
		}
		status(http.MethodPost, "/orders/44/ship", http.StatusServiceUnavailable)
	})
}

// silenced is a store that has Redis fall silent once a number is set.
type silenced struct {
	Store
	locks *locktest.Registry
}

func (s *silenced) Set(ctx context.Context, name string, value int) error {
	err := s.Store.Set(ctx, name, value)
	s.locks.Disconnect()
	return err
}

// The money has moved when the release gets no answer: the client must not be told to try again.
func TestWorkThatIsDoneIsNotAskedForAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		locks, store, s, _ := instances(t)
		s.Store = &silenced{store, locks}
		w := httptest.NewRecorder()
		s.Handler().ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/customers/alice/credit/5", nil))
		if again := w.Header().Get("Retry-After"); w.Code != http.StatusInternalServerError || again != "" {
			t.Errorf("%d, to be tried again after %q", w.Code, again)
		}
		if n := store.number("balance:alice"); n != 5 {
			t.Error("the balance is", n)
		}
		locks.Reconnect()
	})
}

func TestReady(t *testing.T) {
	s := &Service{Patience: time.Second, Ready: func(context.Context) error { return nil }}
	if status, _ := request(t, s, http.MethodGet, "/ready"); status != http.StatusOK {
		t.Error(status)
	}
	s.Ready = func(context.Context) error { return context.DeadlineExceeded }
	if status, _ := request(t, s, http.MethodGet, "/ready"); status != http.StatusServiceUnavailable {
		t.Error(status)
	}
}

// A lock that is lost ends the work, and the answer says that it did not succeed.
func TestALostLock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		locks, store, s, _ := instances(t)
		s.Store = losing{store, func() { locks.Lose("order:42") }}
		if status, _ := request(t, s, http.MethodPost, "/orders/42/ship"); status != http.StatusInternalServerError {
			t.Error(status)
		}
		if store.number("shipped:42") != 0 {
			t.Error("shipped without the lock")
		}
	})
}

// losing is a store during whose first answer something happens.
type losing struct {
	Store

	happens func()
}

func (l losing) Get(ctx context.Context, name string) (int, error) {
	if name == "shipped:42" {
		l.happens()
	}
	return l.Store.Get(ctx, name)
}

func TestBilledOnceANight(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const night = time.Minute // the clients greet their server each second, also of fake time
		_, store, first, second := instances(t)
		ctx, cancel := context.WithCancel(t.Context())
		var both sync.WaitGroup
		for _, s := range []*Service{first, second} {
			both.Go(func() {
				if err := s.Nightly(ctx, night); err != nil {
					t.Error(err)
				}
			})
		}
		time.AfterFunc(10*night+night/10, cancel)
		both.Wait()
		if n := store.number("nights"); n != 10 {
			t.Error("billed", n, "times in ten nights")
		}
	})
}

// After a short outage at the strike, or an error of the store, the night is billed a little later, and the next night in time.
func TestBilledAfterAnError(t *testing.T) {
	for _, name := range []string{"of Redis", "of the store"} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				const night = time.Hour
				locks, store := locktest.New(t), newMemory()
				nodes, broken := []*locktest.Registry{locks, locks.Peer()}, &failing{Store: store}
				ctx, cancel := context.WithCancel(t.Context())
				var both sync.WaitGroup
				strike := time.Now().Truncate(night).Add(night)
				for _, r := range nodes {
					both.Go(func() {
						if err := (&Service{Locks: r.Registry, Store: broken}).Nightly(ctx, night); err != nil {
							t.Error(err)
						}
					})
				}
				<-time.After(time.Until(strike) - time.Millisecond)
				broken.fails.Store(name == "of the store")
				for _, r := range nodes {
					if name == "of Redis" {
						r.Disconnect()
					}
				}
				<-time.After(time.Second)
				if n := store.number("nights"); n != 0 {
					t.Error("billed", n, "times while nothing worked")
				}
				broken.fails.Store(false)
				for _, r := range nodes {
					r.Reconnect()
				}
				for nights := range 3 {
					<-time.After(time.Until(strike.Add(time.Duration(nights)*night + night/10)))
					if n := store.number("nights"); n != nights+1 {
						t.Error("billed", n, "times in", nights+1, "nights")
					}
				}
				cancel()
				both.Wait()
			})
		})
	}
}

// A night that is billed is not billed again, even if the lock could not be released.
func TestBilledOnceWithAnErrorAfterwards(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const night = time.Hour
		locks, store := locktest.New(t), newMemory()
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		strike := time.Now().Truncate(night).Add(night)
		go func() {
			s := &Service{Locks: locks.Registry, Store: &failing{Store: store, set: locks.Disconnect}}
			if err := s.Nightly(ctx, night); err != nil {
				t.Error(err)
			}
		}()
		<-time.After(time.Until(strike.Add(30 * time.Second)))
		locks.Reconnect()
		<-time.After(time.Until(strike.Add(night / 2)))
		if n := store.number("nights"); n != 1 {
			t.Error("billed", n, "times in a night")
		}
	})
}

// failing is a store that may fail.
type failing struct {
	Store

	fails atomic.Bool
	set   func() // nil: nothing happens
}

func (f *failing) Set(ctx context.Context, name string, value int) error {
	if f.set != nil {
		defer f.set()
	}
	return f.Store.Set(ctx, name, value)
}

func (f *failing) Get(ctx context.Context, name string) (int, error) {
	if f.fails.Load() {
		return 0, errors.New("out of order")
	}
	return f.Store.Get(ctx, name)
}

func TestOneDispatches(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, store, first, second := instances(t)
		ctx, cancel := context.WithCancel(t.Context())
		var (
			both       sync.WaitGroup
			candidates []*leader.Candidate
		)
		for _, s := range []*Service{first, second} {
			candidate, err := leader.New(s.Locks, "dispatcher", s.Dispatch)
			if err != nil {
				t.Fatal(err)
			}
			candidates = append(candidates, candidate)
			both.Go(func() {
				if err := candidate.Run(ctx); !errors.Is(err, context.Canceled) {
					t.Error(err)
				}
			})
		}
		<-time.After(time.Second)
		if candidates[0].IsLeader() == candidates[1].IsLeader() {
			t.Error("not one leader")
		}
		cancel()
		both.Wait()
		if n := store.number("dispatched"); n < 40 || n > 50 {
			t.Error("dispatched", n, "times")
		}
	})
}
