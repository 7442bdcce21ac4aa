package gocronlock_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/go-co-op/gocron/v2"

	"github.com/lockregistry/lockregistry"
	"github.com/lockregistry/lockregistry/contrib/gocronlock"
)

// newRegistry makes a registry on a Redis inside this program, so that the examples run anywhere, and what ends both. Your
// program has the URL of a server, such as redis://redis.example.com:6379.
func newRegistry() (registry *lockregistry.Registry, stop func()) {
	server, err := miniredis.Run()
	if err != nil {
		panic(err)
	}
	server.ClockTTL(true)
	registry, err = lockregistry.Open(context.Background(), "redis://"+server.Addr(), "jobs")
	if err != nil {
		panic(err)
	}
	return registry, func() {
		_ = registry.Close()
		server.Close()
	}
}

// Two schedulers start a job each hour, one of them runs it. They stand for two nodes here, with a program each.
func ExampleNewLocker() {
	registry, stop := newRegistry()
	defer stop()
	ran := make(chan string)
	report := func() { ran <- "reported" }

	var nodes []gocron.Scheduler
	for range 2 {
		scheduler, err := gocron.NewScheduler()
		if err != nil {
			panic(err)
		}
		_, err = scheduler.NewJob(
			gocron.DurationJob(time.Hour), gocron.NewTask(report), gocron.WithName("report"),
			gocron.WithDistributedJobLocker(gocronlock.NewLocker(registry, lockregistry.AtLeast(54*time.Minute))),
			gocron.WithStartAt(gocron.WithStartImmediately()),
		)
		if err != nil {
			panic(err)
		}
		scheduler.Start()
		nodes = append(nodes, scheduler)
	}
	fmt.Println(<-ran)
	for _, scheduler := range nodes {
		fmt.Println(scheduler.Shutdown())
	}
	// Output:
	// reported
	// <nil>
	// <nil>
}

// The leader runs all jobs.
func ExampleNewElector() {
	registry, stop := newRegistry()
	defer stop()
	elector, err := gocronlock.NewElector(registry, "scheduler")
	if err != nil {
		panic(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	stopped := make(chan error)
	go func() { stopped <- elector.Run(ctx) }()

	scheduler, err := gocron.NewScheduler(gocron.WithDistributedElector(elector))
	if err != nil {
		panic(err)
	}
	ran := make(chan string)
	_, err = scheduler.NewJob(gocron.DurationJob(10*time.Millisecond), gocron.NewTask(func() {
		select {
		case ran <- "reported":
		case <-ctx.Done():
		}
	}))
	if err != nil {
		panic(err)
	}
	scheduler.Start()
	fmt.Println(<-ran)

	cancel() // the job of this example waits for it; a program shuts the scheduler down first
	fmt.Println(scheduler.Shutdown())
	fmt.Println(errors.Is(<-stopped, context.Canceled))
	// Output:
	// reported
	// <nil>
	// true
}
