// Package scan goes through the keys of a database by SCAN, and leaves the servers most of their time for others.
//
// What comes in, with a [Pass]: functions that ask a server, and get the keys. What goes out: steps, paced by the time that the
// server says they took, and [Progress].
package scan

import (
	"context"
	"math/bits"
	"strconv"
	"strings"
	"time"

	"github.com/lockregistry/lockregistry/internal/clock"
)

// Pass goes through the keys of all servers once.
//
//	at once ──125 000 keys──▶ paced: the server's own time for a call is a tenth of the time until the next call
//
// Found keys are read when there is a Batch of them, or after half a second.
type Pass struct {
	Clock clock.Clock

	// Known are found already, and are read before the first call of SCAN.
	Known []string

	// Pause waits for d, which may be 0. An error ends the pass.
	Pause func(d time.Duration) error

	// Servers has a function for each server that calls SCAN once, to look at some keys.
	Servers []func(cursor string, count int) (Step, error)

	// Pick returns what a key stands for, if the pass looks for it.
	Pick func(key string) (found string, ok bool)

	// Read handles found keys, Batch at most. It may ask the servers more about them: its time counts as server time.
	Read  func(found []string) error
	Batch int

	// Tell, if set, is called after Read, and may take any time.
	Tell func() error

	// TooLong, if set, gets the beginnings of names that are too long.
	TooLong func(names []string) error

	// Watch, if set, is told after each call of SCAN how far along the pass is. It must be quick.
	Watch func(now Progress)

	found []string      // not read yet
	looks int           // how many keys the calls of SCAN have looked at, about
	count int           // how many keys the next call looks at
	due   clock.Instant // when the servers may be asked again
	read  clock.Instant // when something was last read
}

// Step is the reply to one call of SCAN.
type Step struct {
	Cursor  string // for the next call; "0": there is none
	Keys    []string
	TooLong []string      // the beginnings of names that are too long
	Took    time.Duration // the server's own time for it; 0: not known

	// Anew: another server may have answered than before, which has its keys in another order. So the pass goes through all its
	// keys, and finds some again.
	Anew bool
}

// Progress is how far along a pass is.
type Progress struct {
	Keys int     // that were looked at, about
	Part float64 // of all keys, from 0 to 1
}

type watching struct{}

// Watched returns a context whose passes report how far along they are.
func Watched(ctx context.Context, watch func(Progress)) context.Context {
	return context.WithValue(ctx, watching{}, watch)
}

// WatcherOf returns the function that a context of Watched carries, or nil.
func WatcherOf(ctx context.Context) func(Progress) {
	watch, _ := ctx.Value(watching{}).(func(Progress))
	return watch
}

const (
	unpaced  = 125_000 // this many keys are looked at in calls of SCAN without a pause in between
	shareOf  = 10      // then the pass takes this fraction of one of the server's cores
	readEach = 500 * time.Millisecond

	fewest, most = 500, 4000            // keys that one call looks at
	longCall     = 2 * time.Millisecond // of the server's time; then the next call looks at fewer keys

	// The most that a command counts. Where the server's own time is not known, a longer time is the network's or this process's;
	// where it is, the server stood still.
	mostBusy, mostTook = 5 * time.Millisecond, 50 * time.Millisecond
)

// Run goes through the keys. An error of any of the functions ends the pass, and is returned.
func (p *Pass) Run() error {
	p.read = p.Clock.Now()
	p.count = fewest
	for p.found = p.Known; len(p.found) > 0; {
		if err := p.readFirst(); err != nil {
			return err
		}
	}
	for i, server := range p.Servers {
		if err := p.server(i, server); err != nil {
			return err
		}
	}
	if len(p.found) == 0 {
		return nil
	}
	return p.readFirst()
}

// server goes through the keys of one server.
func (p *Pass) server(i int, scan func(cursor string, count int) (Step, error)) error {
	far, counts := 0.0, true
	for cursor := "0"; ; {
		var next Step
		err := p.ask(func() (took time.Duration, err error) {
			next, err = scan(cursor, p.count)
			return next.Took, err
		})
		p.looks += p.count
		if err != nil {
			return err
		}
		part := passed(next.Cursor)
		if next.Anew {
			part, far, counts = 0, 0, true
		}
		counts = counts && part >= far
		if far = part; !counts && next.Cursor != "0" {
			far = 0
		}
		if p.Watch != nil {
			p.Watch(Progress{p.looks, (float64(i) + far) / float64(len(p.Servers))})
		}
		for _, key := range next.Keys {
			if found, ok := p.Pick(key); ok {
				p.found = append(p.found, found)
			}
		}
		if p.TooLong != nil && len(next.TooLong) > 0 {
			if err := p.TooLong(next.TooLong); err != nil {
				return err
			}
		}
		// Keys are read soon, even if there are only a few.
		for len(p.found) >= p.Batch || len(p.found) > 0 && p.read.Until(p.Clock.Now()) >= readEach {
			if err := p.readFirst(); err != nil {
				return err
			}
		}
		switch cursor = next.Cursor; {
		case next.Anew:
			cursor = "0"
		case cursor == "0":
			return nil
		}
	}
}

// readFirst reads the first batch of the found keys.
func (p *Pass) readFirst() error {
	first := p.found[:min(len(p.found), p.Batch)]
	p.found = p.found[len(first):]
	err := p.ask(func() (time.Duration, error) {
		p.read = p.Clock.Now()
		return 0, p.Read(first)
	})
	if err != nil || p.Tell == nil {
		return err
	}
	return p.Tell()
}

// ask calls do, which asks the servers, after the pause that is due, and notes when they may be asked again: a while later,
// once the pass is long. It does not make up for the unpaced beginning, which could be a minute if many locks were found. Do
// returns the server's own time, or 0; then it counts how long do took.
func (p *Pass) ask(do func() (took time.Duration, err error)) error {
	if err := p.Pause(max(0, p.Clock.Now().Until(p.due))); err != nil {
		return err
	}
	began := p.Clock.Now()
	took, err := do()
	now := p.Clock.Now()
	p.due = now
	if p.looks < unpaced {
		return err
	}
	if took == 0 {
		p.due = now.Add((shareOf - 1) * min(mostBusy, began.Until(now)))
		return err
	}
	// On the way to the server and back, the server rests, too.
	if due := began.Add(shareOf * min(mostTook, took)); due > now {
		p.due = due
	} else if took < longCall/2 {
		p.count = min(2*p.count, most) // far away: otherwise the pass would last as many trips as it has calls
	}
	if took > longCall {
		p.count = max(p.count/2, fewest)
	}
	return err
}

// passed returns which part of a server's keys a cursor has passed, from 0 to 1. The bits of the cursor of Redis count up in
// reverse order, so as a binary fraction, whatever the size of the table. Other cursors do not, for instance those whose lowest
// bits are the slot of a cluster: soon one has passed less than the one before. Then only whole servers count.
func passed(cursor string) float64 {
	n, err := strconv.ParseUint(cursor, 10, 64)
	switch {
	case err != nil:
		return 0
	case n == 0:
		return 1
	}
	return float64(bits.Reverse64(n)) / (1 << 64)
}

// Literal escapes a text for a pattern of SCAN.
func Literal(text string) string {
	return strings.NewReplacer(`\`, `\\`, `*`, `\*`, `?`, `\?`, `[`, `\[`, `]`, `\]`, `^`, `\^`).Replace(text)
}
