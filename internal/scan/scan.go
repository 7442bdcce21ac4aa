// Package scan goes through the keys of a database by SCAN, and leaves the servers most of their time for others. How a server is
// asked, and what is done with the keys, it is given as functions.
package scan

import (
	"strings"
	"time"

	"github.com/lockregistry/lockregistry/internal/clock"
)

// Pass is one time through the keys of all servers.
//
//	at once ──250 calls──▶ paced: after each call the server is left alone for 19 times as long as it took
//
// What was found is read when there is a Batch of it, or after half a second when there is less.
type Pass struct {
	Clock clock.Clock

	// Pause waits for a while, which may be none. It returns why the pass is to end, if it is.
	Pause func(d time.Duration) error

	// Servers are the ways to call SCAN once on each server.
	Servers []func(cursor string) (Step, error)

	// Pick says what a key stands for, if for anything that is looked for.
	Pick func(key string) (found string, ok bool)

	// Read takes what was found, Batch at most. It may ask the servers more about it: its time counts as theirs.
	Read  func(found []string) error
	Batch int

	// Tell, when set, is called after Read, and may take any time.
	Tell func() error

	// TooLong, when set, takes the beginnings of names that are too long to be looked at.
	TooLong func(names []string) error

	found []string      // yet to be read
	calls int           // of SCAN
	due   clock.Instant // when the servers may be asked again
	read  clock.Instant // when something was read last
}

// Step is what one call of SCAN replies.
type Step struct {
	Cursor  string // of the next call; "0": there is none
	Keys    []string
	TooLong []string // the beginnings of names that are too long
}

const (
	unpaced  = 250                  // so many calls of SCAN follow one another
	shareOf  = 20                   // then the pass may take this part of the server's time
	mostBusy = 5 * time.Millisecond // that a command can have taken; when it took longer, the network or this process did
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
		// What was found is told soon, also when little is.
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

// readFirst reads the first of what was found.
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

// ask has do ask the servers, once they were left alone for long enough, and notes when they may be asked again: a while later,
// once the pass is a long one. What came before that is not made up for. It would be due at once, a minute of it when many locks
// were found.
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

// Literal is a text as it stands in a pattern of SCAN.
func Literal(text string) string {
	return strings.NewReplacer(`\`, `\\`, `*`, `\*`, `?`, `\?`, `[`, `\[`, `]`, `\]`, `^`, `\^`).Replace(text)
}
