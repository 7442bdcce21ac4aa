// Command deadlock shows what happens when calls wait for each other. Two money transfers lock the same two accounts, in opposite
// order: first two goroutines of one process, then two processes.
//
//	go run ./examples/deadlock                                on a Redis embedded in this program
//	REDIS_URL=redis://host:6379 go run ./examples/deadlock    on a real server
//
// The goroutine that closes the cycle gets ErrDeadlock at once. Processes cannot see each other's goroutines that fast: the cycle
// is reported after a few seconds, and ends when the contexts of the calls do.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"sync"
	"time"

	"github.com/alicebob/miniredis/v2"

	"github.com/lockregistry/lockregistry"
	"github.com/lockregistry/lockregistry/inspect"
	"github.com/lockregistry/lockregistry/observe"
)

const (
	prefix = "deadlock-example"

	// How long a transfer of one of two processes waits: long enough for the report.
	patience = time.Minute
)

func main() {
	ctx, run := context.Background(), both
	if len(os.Args) == 3 { // a process of the second part
		run = func(ctx context.Context, out io.Writer, url string) error {
			return process(ctx, out, url, os.Args[1], os.Args[2])
		}
	}
	if err := run(ctx, os.Stdout, os.Getenv("REDIS_URL")); err != nil {
		fmt.Fprintln(os.Stderr, "deadlock:", err)
		os.Exit(1)
	}
}

func both(ctx context.Context, out io.Writer, url string) error {
	if url == "" {
		embedded, err := miniredis.Run()
		if err != nil {
			return err
		}
		defer embedded.Close()
		url = "redis://" + embedded.Addr()
	}
	return errors.Join(goroutines(ctx, out, url), processes(ctx, out, url))
}

// transfer locks one account, and then the other one, as soon as the opposite transfer has locked that.
func transfer(ctx context.Context, locks *lockregistry.Registry, from, to string, ready func()) error {
	return locks.Do(ctx, from, func(ctx context.Context) error {
		ready()
		return locks.Do(ctx, to, func(context.Context) error { return nil })
	})
}

// goroutines is the first part.
func goroutines(ctx context.Context, out io.Writer, url string) error {
	locks, stop, err := connect(ctx, url, nil)
	if err != nil {
		return err
	}
	defer stop()
	fmt.Fprintln(out, "Two goroutines:")
	var transfers, started sync.WaitGroup
	var mu sync.Mutex
	started.Add(2)
	var failed error
	for _, accounts := range [][2]string{{"alice", "bob"}, {"bob", "alice"}} {
		transfers.Go(func() {
			from, to := accounts[0], accounts[1]
			err := transfer(ctx, locks, from, to, func() {
				started.Done()
				started.Wait()
			})
			mu.Lock()
			defer mu.Unlock()
			switch {
			case err == nil:
				fmt.Fprintf(out, "  %s to %s: done\n", from, to)
			case errors.Is(err, lockregistry.ErrDeadlock):
				fmt.Fprintf(out, "  %s to %s: refused: %v\n", from, to, err)
			default:
				failed = err
			}
		})
	}
	transfers.Wait()
	return failed
}

// processes is the second part.
func processes(ctx context.Context, out io.Writer, url string) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	fmt.Fprintln(out, "Two processes:")
	lines := &lines{out: out}
	var all sync.WaitGroup
	errs := make([]error, 2)
	for i, accounts := range [][2]string{{"alice", "bob"}, {"bob", "alice"}} {
		all.Go(func() {
			command := exec.CommandContext(ctx, self, accounts[0], accounts[1]) //nolint:gosec // it is this program
			command.Env = append(os.Environ(), "REDIS_URL="+url)
			command.Stdout, command.Stderr = lines, os.Stderr
			errs[i] = command.Run()
		})
	}
	all.Wait()
	return errors.Join(errs...)
}

// lines is a writer for several processes.
type lines struct {
	mu  sync.Mutex
	out io.Writer
}

func (l *lines) Write(text []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.out.Write(text)
}

// process is one of the two processes. It gives up once the deadlock is reported.
func process(ctx context.Context, out io.Writer, url, from, to string) error {
	ctx, giveUp := context.WithTimeout(ctx, patience)
	defer giveUp()
	reported := make(chan observe.Deadlock, 1)
	locks, stop, err := connect(ctx, url, func(d observe.Deadlock) { reported <- d })
	if err != nil {
		return err
	}
	defer stop()
	ctx, end := context.WithCancelCause(ctx)
	go func() {
		select {
		case d := <-reported:
			fmt.Fprintf(out, "  %s to %s: deadlock: %v\n", from, to, d)
			end(lockregistry.ErrDeadlock)
		case <-ctx.Done():
		}
	}()
	err = transfer(ctx, locks, from, to, func() {
		for ctx.Err() == nil && !held(ctx, locks, to) {
			<-time.After(10 * time.Millisecond)
		}
	})
	switch {
	case err == nil:
		fmt.Fprintf(out, "  %s to %s: done\n", from, to)
	case errors.Is(err, lockregistry.ErrDeadlock):
		fmt.Fprintf(out, "  %s to %s: given up\n", from, to)
	default:
		return err
	}
	return nil
}

// held reports whether an account is held.
func held(ctx context.Context, locks *lockregistry.Registry, account string) bool {
	info, err := inspect.Of(locks).Inspect(ctx, account)
	return err == nil && info.HolderCount > 0
}

func connect(ctx context.Context, url string, deadlocked func(observe.Deadlock)) (*lockregistry.Registry, func(), error) {
	var options []lockregistry.Option
	if deadlocked != nil {
		options = append(options, lockregistry.WithObserver(observe.Observer{Deadlocked: deadlocked}))
	}
	locks, err := lockregistry.Open(ctx, url, prefix, options...)
	if err != nil {
		return nil, nil, err
	}
	return locks, func() { _ = locks.Close() }, nil
}
