package lockregistry_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"time"

	"github.com/alicebob/miniredis/v2"

	"github.com/lockregistry/lockregistry"
	"github.com/lockregistry/lockregistry/inspect"
	"github.com/lockregistry/lockregistry/leader"
)

// The code of docs/recipes.md; package docs has a test that it stands here.

// billNightly is started on every node at two o'clock. One node bills.
func billNightly(ctx context.Context, locks *lockregistry.Registry) error {
	ran, err := locks.Once(ctx, "nightly billing", 24*time.Hour, bill, lockregistry.RetryOnError())
	slog.DebugContext(ctx, "nightly billing", "ran", ran)
	return err
}

func bill(context.Context) error {
	fmt.Println("billing")
	return nil
}

func Example_nightlyJob() {
	node1, stop := newRegistry()
	defer stop()
	for range 3 { // as three nodes would
		if err := billNightly(context.Background(), node1); err != nil {
			panic(err)
		}
	}
	// Output: billing
}

// dispatchAlone runs on every node. One node dispatches at a time.
func dispatchAlone(ctx context.Context, locks *lockregistry.Registry) error {
	candidate, err := leader.New(locks, "dispatcher", dispatch, lockregistry.Lease(15*time.Second))
	if err != nil {
		return err
	}
	return candidate.Run(ctx) // until ctx ends; then the next node leads
}

// dispatch returns when ctx ends: the node stops, or no longer leads.
func dispatch(ctx context.Context) error {
	every := time.NewTicker(time.Millisecond)
	defer every.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-every.C:
			sendParcels(ctx)
		}
	}
}

var sendParcels func(context.Context) // of the example that runs

func Example_leader() {
	locks, stop := newRegistry()
	defer stop()
	ctx, shutdown := context.WithCancel(context.Background())
	sendParcels = func(context.Context) { shutdown() } // the node gets SIGTERM
	fmt.Println(errors.Is(dispatchAlone(ctx, locks), context.Canceled))
	// Output: true
}

// shop ships orders.
type shop struct {
	locks *lockregistry.Registry
	ship  func(context.Context) error
}

func (s *shop) shipOrder(w http.ResponseWriter, r *http.Request) {
	ctx, cancel := context.WithTimeout(r.Context(), 5*time.Second) // to wait and to work
	defer cancel()
	err := s.locks.Do(ctx, r.PathValue("id"), s.ship, lockregistry.Wait(time.Second))
	switch {
	case err == nil:
		w.WriteHeader(http.StatusNoContent)
	case errors.Is(err, lockregistry.ErrUnavailable), errors.Is(err, lockregistry.ErrClosed): // first: an error may match several
		w.Header().Set("Retry-After", "1")
		http.Error(w, "try again", http.StatusServiceUnavailable)
	case errors.Is(err, lockregistry.ErrTaken):
		http.Error(w, "the order is being shipped", http.StatusConflict)
	default: // for instance ErrLockLost: another process may have shipped the order, too
		slog.ErrorContext(ctx, "shipping failed", "error", err)
		http.Error(w, "internal error", http.StatusInternalServerError)
	}
}

func Example_httpHandler() {
	locks, stop := newRegistry()
	defer stop()
	s := &shop{locks, func(context.Context) error { return nil }}
	handler := http.NewServeMux()
	handler.HandleFunc("POST /orders/{id}", s.shipOrder)
	post := func() int {
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, httptest.NewRequestWithContext(context.Background(), http.MethodPost, "/orders/42", nil))
		return w.Code
	}
	fmt.Println("free:", post())
	ctx := context.Background()
	hold, err := locks.Acquire(ctx, "42")
	if err != nil {
		panic(err)
	}
	defer func() { _ = hold.Release(context.WithoutCancel(ctx)) }()
	fmt.Println("taken:", post())
	// Output:
	// free: 204
	// taken: 409
}

// shipFar ships an order. Redis is far away: the order's key is removed while the caller goes on.
func shipFar(ctx context.Context, locks *lockregistry.Registry, order string) error {
	hold, err := locks.Acquire(ctx, order)
	if err != nil {
		return err
	}
	defer func() {
		go func() {
			if err := hold.Release(context.WithoutCancel(ctx)); err != nil { // with ErrLockLost it may have been shipped twice
				slog.ErrorContext(ctx, "releasing an order failed", "order", order, "error", err)
			}
		}()
	}()
	return shipOrder(hold.Context(ctx), order)
}

func shipOrder(_ context.Context, order string) error {
	fmt.Println("shipping", order)
	return nil
}

func Example_farFromRedis() {
	locks, stop := newRegistry()
	defer stop()
	ctx := context.Background()
	for _, order := range []string{"42", "43"} {
		if err := shipFar(ctx, locks, order); err != nil {
			panic(err)
		}
	}
	fmt.Println(locks.Shutdown(ctx)) // waits for the releases
	// Output:
	// shipping 42
	// shipping 43
	// <nil>
}

// openPatiently opens a registry as soon as Redis answers, or returns when ctx ends.
func openPatiently(ctx context.Context, url string) (*lockregistry.Registry, error) {
	for {
		locks, err := lockregistry.Open(ctx, url, "orders")
		if !errors.Is(err, lockregistry.ErrUnavailable) || ctx.Err() != nil { // a wrong password stays wrong
			return locks, err
		}
		slog.WarnContext(ctx, "no locks yet", "error", err)
		select {
		case <-ctx.Done():
		case <-time.After(time.Second):
		}
	}
}

func Example_startWithoutRedis() {
	server := miniredis.NewMiniRedis()
	if err := server.Start(); err != nil { // only to find a free port
		panic(err)
	}
	address := server.Addr()
	server.Close()
	var start func()
	start = func() {
		if server.StartAddr(address) != nil { // another program has the port for a moment
			time.AfterFunc(10*time.Millisecond, start)
		}
	}
	time.AfterFunc(50*time.Millisecond, start)
	locks, err := openPatiently(context.Background(), "redis://"+address)
	if err != nil {
		panic(err)
	}
	defer server.Close()
	defer func() { _ = locks.Close() }()
	fmt.Println(locks.Do(context.Background(), "42", bill))
	// Output:
	// billing
	// <nil>
}

// serve runs until ctx ends. Make ctx by signal.NotifyContext(ctx, syscall.SIGTERM, os.Interrupt).
func serve(ctx context.Context, server *http.Server, socket net.Listener, locks *lockregistry.Registry) error {
	failed := make(chan error, 1)
	go func() { failed <- server.Serve(socket) }()
	var err error
	select {
	case err = <-failed:
	case <-ctx.Done():
	}
	late, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	err = errors.Join(err, server.Shutdown(late)) // no new requests; waits for handlers, which unlock
	return errors.Join(err, locks.Shutdown(late)) // waits for unlocks and removals; without it keys stay until their leases end
}

func Example_gracefulShutdown() {
	locks, stop := newRegistry()
	defer stop()
	inside := make(chan struct{})
	ctx, sigterm := context.WithCancel(context.Background())
	handler := func(w http.ResponseWriter, r *http.Request) {
		err := locks.Do(r.Context(), "42", func(ctx context.Context) error {
			close(inside)
			<-time.After(10 * time.Millisecond)
			return ctx.Err()
		})
		fmt.Fprintln(w, "error:", err)
	}
	socket, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		panic(err)
	}
	var both sync.WaitGroup
	both.Go(func() {
		request, err := http.NewRequestWithContext(context.Background(), http.MethodGet, "http://"+socket.Addr().String(), nil)
		if err != nil {
			panic(err)
		}
		answer, err := http.DefaultClient.Do(request)
		if err != nil {
			panic(err)
		}
		defer func() { _ = answer.Body.Close() }()
		var text string
		_, _ = fmt.Fscanln(answer.Body, &text, &text)
		fmt.Println("the request was served:", text)
	})
	both.Go(func() {
		<-inside
		sigterm()
	})
	err = serve(ctx, &http.Server{Handler: http.HandlerFunc(handler), ReadHeaderTimeout: time.Second}, socket, locks)
	both.Wait()
	fmt.Println("stopped:", err)
	// Output:
	// the request was served: <nil>
	// stopped: <nil>
}

// task is a job whose customer is locked.
type task struct {
	customer string
	hold     *lockregistry.Hold
}

// distribute locks the customer of each job, and passes customer and hold to a worker. It skips customers that are locked.
func distribute(ctx context.Context, locks *lockregistry.Registry, customers []string, tasks chan<- task) error {
	defer close(tasks)
	for _, customer := range customers {
		hold, err := locks.Acquire(ctx, "customer:"+customer, lockregistry.NoWait())
		if errors.Is(err, lockregistry.ErrTaken) {
			continue
		}
		if err != nil {
			return err
		}
		tasks <- task{customer, hold}
	}
	return nil
}

// worker releases what distribute has locked.
func worker(ctx context.Context, tasks <-chan task, do func(ctx context.Context, customer string) error) (err error) {
	for t := range tasks {
		err = errors.Join(err, t.run(ctx, do))
	}
	return err
}

// run releases the customer's lock when do has returned, or has panicked.
func (t task) run(ctx context.Context, do func(ctx context.Context, customer string) error) (err error) {
	defer func() { err = errors.Join(err, t.hold.Release(context.WithoutCancel(ctx))) }()
	return do(t.hold.Context(ctx), t.customer)
}

func Example_workerPool() {
	locks, stop := newRegistry(lockregistry.WithRenewal())
	defer stop()
	ctx := context.Background()
	busy, err := locks.Acquire(ctx, "customer:bob")
	if err != nil {
		panic(err)
	}
	defer func() { fmt.Println(busy.Release(context.WithoutCancel(ctx))) }()
	var (
		tasks   = make(chan task)
		workers sync.WaitGroup
		served  atomic.Int32
	)
	for range 4 {
		workers.Go(func() {
			err := worker(ctx, tasks, func(ctx context.Context, _ string) error {
				served.Add(1)
				return ctx.Err()
			})
			if err != nil {
				panic(err)
			}
		})
	}
	err = distribute(ctx, locks, []string{"alice", "bob", "carol"}, tasks)
	workers.Wait()
	fmt.Println(served.Load(), err)
	// Output:
	// 2 <nil>
	// <nil>
}

// orders is a table that keeps, with each row, the largest token that it was written with. Update stands for
//
//	UPDATE orders SET state = ?, token = ? WHERE id = ? AND token <= ?
//
// and returns the number of rows that it has changed.
type orders struct {
	mu    sync.Mutex
	token uint64
	state string
}

func (o *orders) update(state string, token uint64) (rows int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if token < o.token {
		return 0
	}
	o.token, o.state = token, state
	return 1
}

var errLate = errors.New("another process has had the lock since")

// shipOnce writes only if no later owner of the lock has written, even if its process was suspended and has lost the lock.
func shipOnce(ctx context.Context, locks *lockregistry.Registry, table *orders, pack func(context.Context) error) error {
	return locks.Do(ctx, "42", func(ctx context.Context) error {
		token, _ := lockregistry.TokenFrom(ctx) // larger than the token of every earlier owner
		if err := pack(ctx); err != nil {
			return err
		}
		if table.update("shipped", token) == 0 {
			return errLate
		}
		return nil
	})
}

func Example_databaseRow() {
	locks, stop := newRegistry(lockregistry.WithFencing())
	defer stop()
	ctx, table := context.Background(), &orders{state: "new"}
	err := shipOnce(ctx, locks, table, func(context.Context) error {
		if err := inspect.Of(locks).ForceUnlock(ctx, "42"); err != nil { // as when it is suspended for so long that the lock is lost
			return err
		}
		return locks.Do(lockregistry.ContextWithOwner(ctx), "42", func(ctx context.Context) error {
			token, _ := lockregistry.TokenFrom(ctx)
			table.update("sold elsewhere", token)
			return nil
		}, lockregistry.Lease(time.Minute))
	})
	fmt.Println(errors.Is(err, errLate), errors.Is(err, lockregistry.ErrLockLost), table.state)
	// Output: true true sold elsewhere
}

// ask makes a call to the partner. At most five run at once across all processes.
func ask(ctx context.Context, locks *lockregistry.Registry, call func(context.Context) error) error {
	partner := locks.Semaphore("partner", 5)
	return partner.Do(ctx, call, lockregistry.Lease(30*time.Second), lockregistry.Wait(10*time.Second))
}

func Example_fiveCallsAtATime() {
	locks, stop := newRegistry()
	defer stop()
	var all sync.WaitGroup
	var under, most atomic.Int32
	for range 20 {
		all.Go(func() {
			err := ask(context.Background(), locks, func(context.Context) error {
				n := under.Add(1)
				defer under.Add(-1)
				for was := most.Load(); n > was && !most.CompareAndSwap(was, n); was = most.Load() {
					continue
				}
				return nil
			})
			if err != nil {
				panic(err)
			}
		})
	}
	all.Wait()
	fmt.Println(most.Load() <= 5)
	// Output: true
}
