package main

import (
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"strings"
	"time"

	"github.com/lockregistry/lockregistry/internal/peer"
)

// redissonName is the name of fleets of Redisson's clients, which share one JVM.
const redissonName = "Redisson 4.7"

// redissons measures a JVM with as many clients of Redisson as there are members. Each has one connection for commands and one
// for messages, where Redisson has 24 and 1 by default.
func (w *fleetWork) redissons() error {
	project := peer.Java{Dir: filepath.Join("..", "test", "interop", "jvm")}
	if reason := (&suite{ctx: w.ctx}).noJava(project); reason != "" {
		return errors.New(reason)
	}
	started, err := project.Start(redissonName, peer.Redisson)
	if err != nil {
		return err
	}
	jvm := process{started}
	defer func() { _ = jvm.Kill() }()
	_, port, err := net.SplitHostPort(strings.TrimPrefix(w.servers.url, "redis://"))
	if err != nil {
		return err
	}
	if w.before, err = look(w.servers.data); err != nil {
		return err
	}
	w.add("the fleet", "processes", whole, 1)
	w.add("the fleet", "registries", whole, float64(w.members))
	began := time.Now()
	for i := range w.members {
		fields := peer.Fields{"registry": clientNumber(i), "port": port, "prefix": "java"}
		if _, err := jvm.ask(w.ctx, "main", doOpen, fields); err != nil {
			return err
		}
	}
	if err := w.holdEach(jvm, func(time.Time, int) {}); err != nil {
		return err
	}
	w.add("the fleet", "all opened, and had a lock, after", nanoseconds, float64(time.Since(began)))
	if err := w.watch("idle"); err != nil {
		return err
	}
	const part = "the server restarts, empty"
	came := watchArrivals(w.servers.data)
	failed, again := w.servers.fail()
	w.add(part, "another serves after", nanoseconds, float64(again.Sub(failed)))
	var after []float64
	fails := 0
	err = w.holdEach(jvm, func(at time.Time, errors int) {
		after = append(after, max(0, float64(at.Sub(again))))
		fails += errors
	})
	if err != nil {
		return err
	}
	w.add(part, "half are served after", nanoseconds, median(after))
	w.add(part, "99 % are served after", nanoseconds, quantile(after, 0.99))
	w.add(part, "all are served after", nanoseconds, quantile(after, 1))
	w.add(part, "calls that failed", whole, float64(fails))
	all, most, took := came.end()
	w.add(part, "connections made", whole, all)
	w.add(part, "the most of them in a second", whole, most)
	w.add(part, "98 % of them within", nanoseconds, float64(took))
	return nil
}

func clientNumber(i int) string { return fmt.Sprintf("client %d", i) }

// holdEach has each client lock and unlock a path of its own, all at once, and again after an error. It tells when each
// succeeded, and how many of its calls failed.
func (w *fleetWork) holdEach(jvm process, tell func(at time.Time, errors int)) error {
	type end struct {
		at    time.Time
		fails int
		err   error
	}
	ends := make(chan end, w.members)
	for i := range w.members {
		go func() {
			e := end{}
			for {
				var reply peer.Reply
				fields := peer.Fields{"registry": clientNumber(i), "path": fmt.Sprintf("own/%06d", i), "for": "0"}
				if reply, e.err = jvm.ask(w.ctx, clientNumber(i), doHold, fields); e.err == nil || e.fails == 100 {
					e.at = reply.End
					break
				}
				e.fails++
				time.Sleep(soon)
			}
			ends <- e
		}()
	}
	for range w.members {
		e := <-ends
		if e.err != nil {
			return e.err
		}
		tell(e.at, e.fails)
	}
	return nil
}
