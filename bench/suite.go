package main

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"time"
)

// suite is one run of the program: the server, the contenders and how thorough to be.
type suite struct {
	ctx       context.Context
	addr      string
	binary    string // the redis-server; empty: the one on PATH
	observer  observer
	random    *rand.Rand
	quick     bool
	deadlines bool      // see contention
	narration io.Writer // says what is being done right now
}

// scenario is one row of figures of the comparison.
type scenario struct {
	name string
	run  func(*suite) ([]*result, error)
	slow bool // not part of a quick run, unless asked for
}

// scenarios in the order in which they run and are shown.
var scenarios = []scenario{
	{name: "paths", run: (*suite).ownPaths},
	{name: "several", run: (*suite).several},
	{name: "slow-caller", run: (*suite).slowCaller},
	{name: "one-path", run: (*suite).onePath},
	{name: "handoff", run: (*suite).handoff},
	{name: "long", run: (*suite).long},
	{name: "rush-2", run: func(s *suite) ([]*result, error) { return s.rush(2) }},
	{name: "rush-8", run: func(s *suite) ([]*result, error) { return s.rush(8) }},
	{name: "rush-32", run: func(s *suite) ([]*result, error) { return s.rush(32) }},
	{name: "waiting", run: (*suite).waiting},
	{name: "idle", run: (*suite).idle},
	{name: "idle-permits", run: (*suite).permitsIdle, slow: true},
	{name: "crash", run: (*suite).crash},
	{name: "crash-100", run: (*suite).crashBeforeMany},
	{name: "cluster-wake", run: (*suite).clusterWake},
	{name: "held", run: (*suite).manyHeld},
	{name: "cached", run: (*suite).manyCached},
	{name: "readers", run: (*suite).readers},
	{name: "permits", run: (*suite).permits, slow: true},
	{name: "jvm", run: (*suite).java, slow: true},
	{name: "sending-near", run: sending(0), slow: true},
	{name: "sending-1ms", run: sending(time.Millisecond), slow: true},
	{name: "sending-5ms", run: sending(5 * time.Millisecond), slow: true},
	{name: "sending-impatient", run: (*suite).sendingImpatient, slow: true},
	{name: "sending-cluster", run: (*suite).sendingOnACluster, slow: true},
	growths[0].scenario(), growths[1].scenario(), growths[2].scenario(), growths[3].scenario(), growths[4].scenario(),
}

// either is the thorough run's value or the quick run's.
func either[T any](s *suite, thorough, quick T) T {
	if s.quick {
		return quick
	}
	return thorough
}

// open is a contender that this process has opened.
type open struct {
	contender
	opening opening
	locks   locks
}

func (c *open) reopen() error {
	go c.locks.close() // closing may hang, too
	var err error
	if c.locks, err = c.open(c.opening); err != nil {
		return fmt.Errorf("open %s again: %w", c.name, err)
	}
	return nil
}

// openAll opens every contender that takes part.
func (s *suite) openAll(o opening, takesPart func(contender) bool) ([]*open, error) {
	var opened []*open
	o.addr = s.addr
	for _, c := range contenders {
		if !takesPart(c) {
			continue
		}
		ls, err := c.open(o)
		if err != nil {
			closeAll(opened)
			return nil, fmt.Errorf("open %s: %w", c.name, err)
		}
		opened = append(opened, &open{c, o, ls})
	}
	return opened, nil
}

func closeAll(opened []*open) {
	for _, c := range opened {
		c.locks.close()
	}
}

// turns calls do once a round for each contender, in an order shuffled anew each round, so that whatever the machine does
// affects all of them alike.
func turns[T any](s *suite, rounds int, of []T, do func(round int, t T) error) error {
	for round := range rounds {
		for _, i := range s.random.Perm(len(of)) {
			if err := s.ctx.Err(); err != nil {
				return err
			}
			if err := do(round, of[i]); err != nil {
				return err
			}
		}
	}
	return nil
}

func (s *suite) say(format string, args ...any) {
	fmt.Fprintf(s.narration, "%s "+format+"\n", append([]any{time.Now().Format(time.TimeOnly)}, args...)...)
}

func pathNames(n int) []string {
	names := make([]string, n)
	for i := range names {
		names[i] = fmt.Sprintf("orders/%06d", i)
	}
	return names
}
