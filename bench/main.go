// Command bench runs this library alongside its peers and the bare floor, on a real redis-server that it starts itself, and
// prints the results.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"os/signal"
	"strings"
	"time"

	"github.com/lockregistry/lockregistry/internal/peer"
	"github.com/lockregistry/lockregistry/internal/redistest"
)

func main() {
	peer.Main(newWorker().run)
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func run() error {
	quick := flag.Bool("quick", false, "take about five minutes instead of 35 to 50: fewer rounds, smaller crowds")
	deadlines := flag.Bool("deadlines", false, "in a rush, give calls contexts that have a deadline instead of such as can be cancelled only")
	only := flag.String("only", "", "run only the scenarios whose name starts with this: "+scenarioNames()+", or fleets: "+fleetNames())
	seed := flag.Uint64("seed", uint64(time.Now().UnixNano()), "of the order in which contenders take turns")
	into := flag.String("write", "", "write the results into the repository in this folder: bench/results, bench/RESULTS.md, docs/performance.md and its charts, docs/comparison.md, README.md")
	verdictsInto := flag.String("targets", "", "write the table of the targets into this file, with commas")
	server := flag.String("server", "", "the redis-server to start; default: the one on PATH")
	flag.Parse()
	if flag.NArg() > 0 {
		return fmt.Errorf("unexpected argument %q; see -help", flag.Arg(0))
	}

	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if strings.HasPrefix(*only, "fleet") {
		if *into != "" && *quick {
			return errors.New("-write and -quick: the page needs a thorough run")
		}
		return fleets(ctx, *only, *server, *into, *quick, os.Stderr)
	}
	some := strings.HasPrefix(*only, "growth") || strings.HasPrefix(*only, "permits")
	if *into != "" && *only != "" && !some {
		return errors.New("-write and -only: the pages need all scenarios, except for fleets, growth and permits")
	}

	redis, err := redistest.Run(*server)
	if err != nil {
		return err
	}
	defer redis.Stop()
	o, err := observe(ctx, redis.Addr())
	if err != nil {
		return fmt.Errorf("connect to the server just started: %w", err)
	}
	defer o.client.Close()

	s := &suite{
		ctx: ctx, addr: redis.Addr(), binary: *server, observer: o, quick: *quick, deadlines: *deadlines, narration: os.Stderr,
		random: rand.New(rand.NewPCG(*seed, *seed)),
	}
	var (
		results  []*result
		failures []error
	)
	began := time.Now()
	for _, sc := range scenarios {
		if !strings.HasPrefix(sc.name, *only) || (*quick && sc.slow && *only == "") {
			continue
		}
		s.say("%s", sc.name)
		more, err := sc.run(s)
		if err != nil {
			err = fmt.Errorf("scenario %s: %w", sc.name, err)
			if ctx.Err() != nil {
				return err
			}
			s.say("%v", err)
			failures = append(failures, err)
			more = append(more, &result{scenario: sc.name, title: sc.name + " failed", how: err.Error()})
		}
		if err := o.flush(ctx); err != nil {
			return fmt.Errorf("empty the server after scenario %s: %w", sc.name, err)
		}
		results = append(results, more...)
	}
	if len(results) == 0 {
		return fmt.Errorf("no scenario starts with %q; there are %s", *only, scenarioNames())
	}
	s.say("done after %v", time.Since(began).Round(time.Second))
	m := describe(s, *seed)
	m.print(os.Stdout)
	for _, r := range results {
		fmt.Printf("\n%s\n%s\n\n", r.title, r.how)
		if len(r.rows) > 0 {
			r.table().print(os.Stdout)
		}
		for _, note := range r.notes {
			fmt.Println(note)
		}
	}
	fmt.Printf("\nThe targets\n\n")
	verdicts(results).print(os.Stdout)
	if *verdictsInto != "" {
		failures = append(failures, verdicts(results).csv(*verdictsInto))
	}
	switch {
	case *into != "" && some:
		failures = append(failures, writeSome(*into, results))
	case *into != "":
		failures = append(failures, write(*into, m, results))
	}
	return errors.Join(failures...)
}

func fleetNames() string {
	var names []string
	for _, run := range fleetRuns {
		names = append(names, run.name)
	}
	return strings.Join(names, ", ")
}

func scenarioNames() string {
	var names []string
	for _, sc := range scenarios {
		names = append(names, sc.name)
	}
	return strings.Join(names, ", ")
}
