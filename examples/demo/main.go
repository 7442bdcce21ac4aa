// Command demo shows what a lock registry is for. Several services add to counters in Redis, each by reading the value, thinking,
// and writing the sum back. If two of them do so at once, an update is lost; a lock for each counter prevents that.
//
//	go run ./examples/demo                                    on a Redis embedded in this program
//	REDIS_URL=redis://host:6379 go run ./examples/demo        on a real server
//	go run ./examples/demo -nolock                            the same without locks: see what gets lost
//
// job.go has the part that your own program would have, redis.go chooses the server, table.go shows what happened.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/google/uuid"
)

// What the program ends with. A shell expects 128 plus the signal's number after Ctrl-C.
const (
	exitOK          = 0
	exitFailed      = 1
	exitUsage       = 2
	exitInterrupted = 130
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	// After the first Ctrl-C the signal has its usual meaning again, so a second one ends the program at once.
	context.AfterFunc(ctx, stop)
	code := run(ctx, os.Args[1:], os.Getenv("REDIS_URL"), os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

func run(ctx context.Context, args []string, redisURL string, stdout, stderr io.Writer) int {
	cfg, err := parseFlags(args, stderr)
	if errors.Is(err, flag.ErrHelp) {
		return exitOK
	}
	if err != nil {
		return exitUsage
	}

	server, err := openRedis(redisURL)
	if err != nil {
		fmt.Fprintln(stderr, "demo:", err)
		return exitFailed
	}
	defer server.close()

	locks := "one lock per path"
	if cfg.noLock {
		locks = "no locks"
	}
	fmt.Fprintf(stdout, "%d services of %d goroutines make %d updates on %d paths, %s, on %s.\n",
		cfg.services, cfg.goroutines, cfg.updates, cfg.paths, locks, server.name)

	j := newJob(cfg)
	stopProgress := showProgress(stdout, j)
	err = j.run(ctx, server.connect)
	stopProgress()
	if j.checked {
		printTable(stdout, j)
	}

	if err != nil {
		fmt.Fprintln(stderr, "demo:", err)
		return exitFailed
	}
	if ctx.Err() != nil {
		fmt.Fprintln(stderr, "demo: interrupted; the table shows what was done until then")
	}
	return exitCode(ctx, j)
}

func exitCode(ctx context.Context, j *job) int {
	switch {
	case !j.noLock && j.lost() != 0:
		return exitFailed
	case ctx.Err() != nil:
		return exitInterrupted
	default:
		return exitOK
	}
}

// config is what the flags say.
type config struct {
	services, goroutines, paths, updates int
	noLock                               bool
	prefix                               string

	// think takes up the time between reading and writing. Tests put a barrier here.
	think func(ctx context.Context)
}

func parseFlags(args []string, stderr io.Writer) (config, error) {
	cfg := config{think: func(ctx context.Context) {
		select {
		case <-ctx.Done():
		case <-time.After(time.Millisecond):
		}
	}}
	f := flag.NewFlagSet("demo", flag.ContinueOnError)
	f.SetOutput(stderr)
	f.IntVar(&cfg.services, "services", 4, "registries, each with its own client as a service would have")
	f.IntVar(&cfg.goroutines, "goroutines", 8, "goroutines of each service")
	f.IntVar(&cfg.paths, "paths", 4, "counters, each with a lock of its own")
	f.IntVar(&cfg.updates, "updates", 10_000, "updates in total")
	f.BoolVar(&cfg.noLock, "nolock", false, "take no locks, to see the updates that they save")
	f.StringVar(&cfg.prefix, "prefix", "lockregistry-demo-"+uuid.NewString()[:8],
		"prefix of the keys in Redis; by default a new one for each run")
	if err := f.Parse(args); err != nil {
		return cfg, err
	}

	var err error
	switch {
	case f.NArg() > 0:
		err = fmt.Errorf("unexpected argument %q: flags start with a dash", f.Arg(0))
	case cfg.services < 1 || cfg.goroutines < 1 || cfg.paths < 1 || cfg.updates < 1:
		err = errors.New("-services, -goroutines, -paths and -updates must be at least 1")
	case cfg.prefix == "":
		err = errors.New("-prefix must not be empty: leave it out for a new one")
	}
	if err != nil {
		fmt.Fprintln(stderr, "demo:", err)
	}
	return cfg, err
}
