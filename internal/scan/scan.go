// Package scan goes through the keys of a database by SCAN, and leaves the servers most of their time for others. Functions say
// how to ask a server, and what to do with the keys.
package scan

import (
	"strings"
	"time"

	"github.com/lockregistry/lockregistry/internal/clock"
)

// Pass goes through the keys of all servers once.
//
//	at once ──250 calls──▶ paced: after each call the server is left alone for 19 times as long as it took
//
// Found keys are read when there is a Batch of them, or after half a second.
type Pass struct {
	Clock clock.Clock

	// Pause waits for d, which may be 0. An error ends the pass.
	Pause func(d time.Duration) error

	// Servers has a function for each server that calls SCAN once.
	Servers []func(cursor string) (Step, error)

	// Pick returns what a key stands for, if the pass looks for it.
	Pick func(key string) (found string, ok bool)

	// Read handles found keys, Batch at most. It may ask the servers more about them: its time counts as server time.
	Read  func(found []string) error
	Batch int

	// Tell, if set, is called after Read, and may take any time.
	Tell func() error

	// TooLong, if set, gets the beginnings of names that are too long.
	TooLong func(names []string) error

	found []string      // not read yet
	calls int           // of SCAN
	due   clock.Instant // when the servers may be asked again
	read  clock.Instant // when something was last read
}

// Step is the reply to one call of SCAN.
type Step struct {
	Cursor  string // for the next call; "0": there is none
	Keys    []string
	TooLong []string // the beginnings of names that are too long
}

const (
	unpaced  = 250                  // this many calls of SCAN follow each other at once
	shareOf  = 20                   // then the pass takes this fraction of the server's time
	mostBusy = 5 * time.Millisecond // the most that a command counts: a longer time is the network's or this process's
	readEach = 500 * time.Millisecond
)

// Run goes through the keys. An error of any of the functions ends the pass, and is returned.
func (p *Pass) Run() error {
	p.read = p.Clock.Now()
	for _, server := range p.Servers {
		if err := p.server(server); err != nil {
			return err
		}
	}
	if len(p.found) == 0 {
		return nil
	}
	return p.readFirst()
}

// server goes through the keys of one server.
func (p *Pass) server(scan func(cursor string) (Step, error)) error {
	for cursor := "0"; ; {
		var next Step
		err := p.ask(func() (err error) {
			next, err = scan(cursor)
			return err
		})
		p.calls++
		if err != nil {
			return err
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
		if cursor = next.Cursor; cursor == "0" {
			return nil
		}
	}
}

// readFirst reads the first batch of the found keys.
func (p *Pass) readFirst() error {
	first := p.found[:min(len(p.found), p.Batch)]
	p.found = p.found[len(first):]
	err := p.ask(func() error {
		p.read = p.Clock.Now()
		return p.Read(first)
	})
	if err != nil || p.Tell == nil {
		return err
	}
	return p.Tell()
}

// ask calls do, which asks the servers, after the pause that is due, and notes when they may be asked again: a while later,
// once the pass is long. It does not make up for the unpaced beginning, which could be a minute if many locks were found.
func (p *Pass) ask(do func() error) error {
	if err := p.Pause(max(0, p.Clock.Now().Until(p.due))); err != nil {
		return err
	}
	began := p.Clock.Now()
	err := do()
	now := p.Clock.Now()
	p.due = now
	if p.calls >= unpaced {
		p.due = now.Add((shareOf - 1) * min(mostBusy, began.Until(now)))
	}
	return err
}

// Literal escapes a text for a pattern of SCAN.
func Literal(text string) string {
	return strings.NewReplacer(`\`, `\\`, `*`, `\*`, `?`, `\?`, `[`, `\[`, `]`, `\]`, `^`, `\^`).Replace(text)
}
