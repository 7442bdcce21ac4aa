package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strconv"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/lockregistry/lockregistry"
	"github.com/lockregistry/lockregistry/lockhttp"
)

// Store is the service's database: numbers by name, 0 if never set.
type Store interface {
	Get(ctx context.Context, name string) (int, error)
	Set(ctx context.Context, name string, value int) error
}

// Service ships orders, keeps the customers' credit, and has a price list. Many processes may run it on one store.
type Service struct {
	Locks   *lockregistry.Registry
	Store   Store
	Ready   func(context.Context) error // whether Redis answers
	Leading func() bool                 // whether this process dispatches
	Metrics http.Handler                // nil: none

	// Patience is how long a request waits for a lock. It has three times as long to wait and to work.
	Patience time.Duration
}

const parcels = 3 // of each order

var errBadRequest = errors.New("bad request")

// Handler serves the service's requests.
func (s *Service) Handler() http.Handler {
	mux := http.NewServeMux()
	handle := func(pattern string, serve func(ctx context.Context, r *http.Request) (text string, err error)) {
		mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) {
			ctx, cancel := context.WithTimeout(r.Context(), 3*s.Patience)
			defer cancel()
			text, err := serve(ctx, r)
			answer(w, r, text, err)
		})
	}
	handle("POST /orders/{id}/ship", func(ctx context.Context, r *http.Request) (string, error) {
		return "shipped", s.Ship(ctx, r.PathValue("id"))
	})
	handle("POST /customers/{id}/credit/{cents}", func(ctx context.Context, r *http.Request) (string, error) {
		cents, err := number(r, "cents")
		if err != nil {
			return "", err
		}
		balance, err := s.Credit(ctx, r.PathValue("id"), cents)
		return strconv.Itoa(balance), err
	})
	handle("POST /customers/{id}/transfer/{to}/{cents}", func(ctx context.Context, r *http.Request) (string, error) {
		cents, err := number(r, "cents")
		if err != nil {
			return "", err
		}
		return "", s.Transfer(ctx, r.PathValue("id"), r.PathValue("to"), cents)
	})
	handle("PUT /price/{net}", func(ctx context.Context, r *http.Request) (string, error) {
		net, err := number(r, "net")
		if err != nil {
			return "", err
		}
		return "", s.SetPrice(ctx, net)
	})
	handle("GET /price", func(ctx context.Context, _ *http.Request) (string, error) {
		net, tax, err := s.Price(ctx)
		return fmt.Sprintf("%d %d", net, tax), err
	})
	handle("GET /leading", func(context.Context, *http.Request) (string, error) {
		return strconv.FormatBool(s.Leading()), nil
	})
	// Alive does not ask Redis: a Redis outage must not restart all processes.
	handle("GET /alive", func(context.Context, *http.Request) (string, error) { return "alive", nil })
	mux.HandleFunc("GET /ready", func(w http.ResponseWriter, r *http.Request) {
		ctx, cancel := context.WithTimeout(r.Context(), 3*s.Patience)
		defer cancel()
		if err := s.Ready(ctx); err != nil {
			http.Error(w, "Redis does not answer", http.StatusServiceUnavailable)
			return
		}
		_, _ = fmt.Fprintln(w, "ready")
	})
	// Stats sends nothing to Redis, except to ask a cluster for its slots.
	handle("GET /stats", func(context.Context, *http.Request) (string, error) {
		return fmt.Sprintf("%+v", s.Locks.Stats()), nil
	})
	if s.Metrics != nil {
		mux.Handle("GET /metrics", s.Metrics)
	}
	return mux
}

func number(r *http.Request, name string) (int, error) {
	n, err := strconv.Atoi(r.PathValue(name))
	if err != nil {
		return 0, errors.Join(errBadRequest, err)
	}
	return n, nil
}

// answer says how it went. A client may repeat what is answered with 503, so that is said only of what was not begun: an error of
// the release, or of the work, is 500.
func answer(w http.ResponseWriter, r *http.Request, text string, err error) {
	switch {
	case err == nil:
		_, _ = fmt.Fprintln(w, text)
	case errors.Is(err, errBadRequest):
		http.Error(w, "bad request", http.StatusBadRequest)
	default:
		if lockhttp.Status(err) == http.StatusInternalServerError {
			slog.ErrorContext(r.Context(), "request failed", "path", r.URL.Path, "error", err)
		}
		lockhttp.Error(w, err)
	}
}

// Ship packs the parcels of an order, all at once, and marks it as shipped. An order that was shipped is not shipped again.
func (s *Service) Ship(ctx context.Context, order string) error {
	return s.Locks.Do(ctx, "order:"+order, func(ctx context.Context) error {
		shipped, err := s.Store.Get(ctx, "shipped:"+order)
		if err != nil || shipped == 1 {
			return err
		}
		packers, packing := errgroup.WithContext(ctx) // packing ends when the lock is lost, or a parcel fails
		for parcel := range parcels {
			packers.Go(func() error { return s.pack(packing, order, parcel) })
		}
		if err := packers.Wait(); err != nil {
			return err
		}
		return s.Store.Set(ctx, "shipped:"+order, 1)
	}, lockregistry.Wait(s.Patience))
}

func (s *Service) pack(ctx context.Context, order string, parcel int) error {
	name := fmt.Sprintf("packed:%s:%d", order, parcel)
	times, err := s.Store.Get(ctx, name)
	if err != nil {
		return err
	}
	return s.Store.Set(ctx, name, times+1)
}

// Credit adds to a customer's balance, and returns it. Customers do not wait for each other.
func (s *Service) Credit(ctx context.Context, customer string, cents int) (int, error) {
	return lockregistry.DoValue(ctx, s.Locks.Obtain("customer:"+customer), func(ctx context.Context) (int, error) {
		return s.add(ctx, customer, cents)
	}, lockregistry.Wait(s.Patience))
}

// Transfer moves credit from one customer to another. Two transfers in opposite directions never deadlock.
func (s *Service) Transfer(ctx context.Context, from, to string, cents int) (err error) {
	hold, err := s.Locks.AcquireAll(ctx, []string{"customer:" + from, "customer:" + to}, lockregistry.Wait(s.Patience))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, hold.Release(context.WithoutCancel(ctx))) }()
	held := hold.Context(ctx) // ends when one of the two locks is lost
	if _, err = s.add(held, from, -cents); err != nil {
		return err
	}
	_, err = s.add(held, to, cents) // a database does both in one transaction
	return err
}

// add adds to a customer's balance. The caller has the customer's lock.
func (s *Service) add(ctx context.Context, customer string, cents int) (balance int, err error) {
	name := "balance:" + customer
	balance, err = s.Store.Get(ctx, name)
	if err != nil {
		return 0, err
	}
	return balance + cents, s.Store.Set(ctx, name, balance+cents)
}

// SetPrice changes the price and its tax, which belong together.
func (s *Service) SetPrice(ctx context.Context, net int) (err error) {
	hold, err := s.Locks.ReadWrite("price").Writer().Acquire(ctx, lockregistry.Wait(s.Patience))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, hold.Release(context.WithoutCancel(ctx))) }()
	held := hold.Context(ctx)
	if err = s.Store.Set(held, "net", net); err != nil {
		return err
	}
	return s.Store.Set(held, "tax", net/5)
}

// Price returns the price and its tax. Any number of requests read at a time.
func (s *Service) Price(ctx context.Context) (net, tax int, err error) {
	err = s.Locks.ReadWrite("price").Reader().Do(ctx, func(held context.Context) (failed error) {
		if net, failed = s.Store.Get(held, "net"); failed != nil {
			return failed
		}
		tax, failed = s.Store.Get(held, "tax")
		return failed
	}, lockregistry.Wait(s.Patience))
	return net, tax, err
}
