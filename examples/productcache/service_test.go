package main

import (
	"context"
	"errors"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/lockregistry/lockregistry"
	"github.com/lockregistry/lockregistry/internal/fault"
	"github.com/lockregistry/lockregistry/internal/redistest"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(redistest.Patient{M: m, Leaks: leaks})
}

func leaks() error { return goleak.Find() }

// services are instances of the service in processes of their own, as far as Redis can tell, on one server and one store.
func services(t *testing.T, store Store, n int) ([]*Service, *redistest.Server) {
	t.Helper()
	server := redistest.Start(t)
	all := make([]*Service, n)
	for i := range all {
		client, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{server.Addr()}, ForceSingleClient: true})
		require.NoError(t, err)
		t.Cleanup(client.Close)
		locks, err := lockregistry.New(client, "product-locks")
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, locks.Close()) })
		all[i] = &Service{redis: client, locks: locks, store: store}
	}
	return all, server
}

func ttl(t *testing.T, server *redistest.Server, id int64) time.Duration {
	t.Helper()
	seconds, err := strconv.Atoi(server.Command(t, "TTL", cacheKey(id)))
	require.NoError(t, err)
	return time.Duration(seconds) * time.Second
}

// answer repeats a call of the service whose locks Redis answered too late, as on a busy machine.
func answer(call func() error) error {
	for {
		err := call()
		switch {
		case errors.Is(err, fault.NoAnswer), errors.Is(err, fault.Late), errors.Is(err, fault.NotSent):
		case errors.Is(err, lockregistry.ErrLockLost): // a release grants it for a second, in which it must be renewed
		default:
			return err
		}
	}
}

func get(ctx context.Context, s *Service, id int64) (p Product, err error) {
	err = answer(func() error {
		p, err = s.Get(ctx, id)
		return err
	})
	return p, err
}

func put(ctx context.Context, s *Service, p Product) error {
	return answer(func() error { return s.Put(ctx, p) })
}

func TestAProductIsLoadedOnce(t *testing.T) {
	store := newMemory(20*time.Millisecond, Product{ID: 42, Name: "teapot"})
	instances, _ := services(t, store, 3)
	var all sync.WaitGroup
	for i := range 60 {
		all.Go(func() {
			p, err := get(t.Context(), instances[i%len(instances)], 42)
			if err != nil || p.Name != "teapot" {
				t.Error(p, err)
			}
		})
	}
	all.Wait()
	require.Equal(t, 1, store.loaded())
}

func TestThatThereIsNoProductIsCached(t *testing.T) {
	store := newMemory(0)
	instances, server := services(t, store, 2)
	for range 3 {
		for _, s := range instances {
			_, err := get(t.Context(), s, 43)
			require.ErrorIs(t, err, ErrNoProduct)
		}
	}
	require.Equal(t, 1, store.loaded())
	left := ttl(t, server, 43)
	require.Greater(t, left, absent-10*time.Second)
	require.LessOrEqual(t, left, absent+absentSpread)

	require.NoError(t, put(t.Context(), instances[0], Product{ID: 43, Name: "kettle"}))
	p, err := get(t.Context(), instances[1], 43)
	require.NoError(t, err)
	require.Equal(t, "kettle", p.Name, "a new product replaces what was remembered")
}

func TestExpiryIsSpreadOut(t *testing.T) {
	instances, server := services(t, newMemory(0), 1)
	seen := map[time.Duration]bool{}
	for id := range int64(20) {
		require.NoError(t, put(t.Context(), instances[0], Product{ID: id}))
		left := ttl(t, server, id)
		require.Greater(t, left, cached-time.Minute)
		require.LessOrEqual(t, left, cached+cachedSpread)
		seen[left] = true
	}
	require.Greater(t, len(seen), 10, "of 20")
}

// paused is a store whose loads wait until they are told to go on.
type paused struct {
	*memory
	loading chan struct{} // closed when a load has read the product
	goOn    chan struct{}
	saving  chan struct{} // closed when a save begins

	load, save sync.Once
}

func (p *paused) Load(ctx context.Context, id int64) (Product, error) {
	product, err := p.memory.Load(ctx, id)
	p.load.Do(func() { close(p.loading) })
	<-p.goOn
	return product, err
}

func (p *paused) Save(ctx context.Context, product Product) error {
	p.save.Do(func() { close(p.saving) })
	return p.memory.Save(ctx, product)
}

// An update that comes while another instance rebuilds the cache must not be overwritten with what that one loaded before.
func TestAnUpdateIsNotOverwrittenByARebuild(t *testing.T) {
	store := &paused{
		memory:  newMemory(0, Product{ID: 42, Cents: 1}),
		loading: make(chan struct{}), goOn: make(chan struct{}), saving: make(chan struct{}),
	}
	instances, _ := services(t, store, 2)
	got := make(chan error, 1)
	updated := make(chan error, 1)
	go func() {
		_, err := get(t.Context(), instances[0], 42)
		got <- err
	}()
	<-store.loading
	go func() { updated <- put(t.Context(), instances[1], Product{ID: 42, Cents: 2}) }()
	select {
	case <-store.saving:
		t.Error("the update did not wait for the rebuild")
	case <-time.After(200 * time.Millisecond): // long enough for an update that does not wait
	}
	close(store.goOn)
	require.NoError(t, <-got)
	require.NoError(t, <-updated)
	p, err := get(t.Context(), instances[0], 42)
	require.NoError(t, err)
	require.Equal(t, int64(2), p.Cents)
}

// leaving is a store whose caller has gone when a save is done.
type leaving struct {
	*memory
	leave context.CancelFunc
}

func (l leaving) Save(ctx context.Context, p Product) error {
	defer l.leave()
	return l.memory.Save(ctx, p)
}

// An update that reaches the store but not the cache leaves no old product there.
func TestAnUpdateEndsBeforeItIsCached(t *testing.T) {
	ctx, leave := context.WithCancel(t.Context())
	instances, _ := services(t, leaving{newMemory(0, Product{ID: 42, Cents: 1}), leave}, 2)
	_, err := get(t.Context(), instances[1], 42)
	require.NoError(t, err)
	require.ErrorIs(t, put(ctx, instances[0], Product{ID: 42, Cents: 2}), context.Canceled)
	p, err := get(t.Context(), instances[1], 42)
	require.NoError(t, err)
	require.Equal(t, int64(2), p.Cents)
}

func TestFailuresOfTheStoreAreReported(t *testing.T) {
	broken := errors.New("the database is down")
	instances, server := services(t, failing{broken}, 1)
	_, err := get(t.Context(), instances[0], 42)
	require.ErrorIs(t, err, broken)
	require.ErrorIs(t, put(t.Context(), instances[0], Product{ID: 42}), broken)
	require.True(t, redistest.Await(time.Minute, func() bool {
		return server.Command(t, "EVAL", "return #redis.call('KEYS', '*') - #redis.call('KEYS', '*:registry')", "0") == "0"
	}), "nothing is cached, no lock is left")
}

type failing struct{ err error }

func (f failing) Load(context.Context, int64) (Product, error) { return Product{}, f.err }
func (f failing) Save(context.Context, Product) error          { return f.err }

func TestTheProgramRuns(t *testing.T) {
	address := "redis://" + redistest.Start(t).Addr()
	require.NoError(t, answer(func() error { return run(t.Context(), address) }))
	require.NoError(t, run(t.Context(), ""))
}
