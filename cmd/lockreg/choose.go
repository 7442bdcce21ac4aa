package main

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"iter"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/lockregistry/lockregistry/cmd/lockreg/internal/printable"
	"github.com/lockregistry/lockregistry/cmd/lockreg/internal/view"
	"github.com/lockregistry/lockregistry/inspect"
	"github.com/lockregistry/lockregistry/internal/scan"
)

// choice is which locks ls shows, and in which order.
type choice struct {
	sort    string
	limit   int
	dead    bool // only what is probably dead
	pattern string
	watch   bool
	each    span
}

// orders are how ls can sort.
var orders = map[string]func(a, b inspect.Lock) int{
	"waiting": byQueue,
	"path":    func(a, b inspect.Lock) int { return strings.Compare(a.Path, b.Path) },
	"held":    func(a, b inspect.Lock) int { return cmp.Or(heldSince(a).Compare(heldSince(b)), byQueue(a, b)) },
	"lease": func(a, b inspect.Lock) int {
		return cmp.Or(cmp.Compare(leaseLeft(a), leaseLeft(b)), byQueue(a, b))
	},
}

// heldSince returns since when a lock is held; unknown times sort last.
func heldSince(info inspect.Lock) time.Time {
	oldest := time.Unix(1<<40, 0)
	for _, h := range info.Holders {
		since := h.Granted
		if since.IsZero() {
			since = h.Since
		}
		if !since.IsZero() && since.Before(oldest) {
			oldest = since
		}
	}
	return oldest
}

// leaseLeft returns the rest of the lease that ends first; leases without an end sort last.
func leaseLeft(info inspect.Lock) time.Duration {
	first := time.Duration(1<<63 - 1)
	for _, h := range info.Holders {
		if h.Lease >= 0 {
			first = min(first, h.Lease)
		}
	}
	return first
}

// check judges the flags.
func (c *choice) check(pattern string) error {
	if orders[c.sort] == nil {
		return usage("--sort is %q: it is waiting, path, held or lease", c.sort)
	}
	if c.limit < 0 || c.each <= 0 {
		return usage("--limit must not be negative, and --interval must be positive")
	}
	c.pattern = pattern
	return nil
}

// matches reports whether a path contains a pattern or, if that has a *, whether all of it matches. A path may be any bytes.
func matches(pattern, path string) bool {
	begin, rest, wild := strings.Cut(pattern, "*")
	if !wild {
		return strings.Contains(path, pattern)
	}
	path, ok := strings.CutPrefix(path, begin)
	for ok {
		part, more, again := strings.Cut(rest, "*")
		if !again {
			return strings.HasSuffix(path, part)
		}
		_, path, ok = strings.Cut(path, part) // the first place leaves the most for what follows
		rest = more
	}
	return false
}

// plain reports whether all is shown in the usual order, as it is found.
func (c *choice) plain() bool { return c.sort == "waiting" && c.limit == 0 && !c.watch }

// of returns the chosen locks.
func (c *choice) of(all iter.Seq2[inspect.Lock, error]) iter.Seq2[inspect.Lock, error] {
	return func(yield func(inspect.Lock, error) bool) {
		for info, err := range all {
			if (err != nil || c.shows(info)) && !yield(info, err) {
				return
			}
		}
	}
}

// shows reports whether a lock is chosen.
func (c *choice) shows(info inspect.Lock) bool {
	if c.dead && !slices.ContainsFunc(info.Holders, view.Dead) &&
		!slices.ContainsFunc(info.Waiters, func(w inspect.Waiter) bool { return w.Gone }) {
		return false
	}
	return matches(c.pattern, info.Path)
}

// nothing says that no lock is chosen.
func (c *choice) nothing() string {
	if c.dead {
		return "no holder or waiter is probably dead"
	}
	return "nothing is locked, and nobody waits"
}

// ordered are all of them, in order, and how many are left out.
func (c *choice) ordered(infos []inspect.Lock) (shown []inspect.Lock, more int) {
	slices.SortFunc(infos, orders[c.sort])
	if c.limit > 0 && len(infos) > c.limit {
		return infos[:c.limit], len(infos) - c.limit
	}
	return infos, 0
}

// watching prints the list again and again, until ctx ends.
func (a *app) watching(
	ctx context.Context, c *choice, locks func(context.Context) iter.Seq2[inspect.Lock, error],
	find func(context.Context) func() marks, why func() string,
) error {
	file, _ := a.out.(*os.File)
	screen := file != nil && isTerminal(file)
	for hint, asked := "", false; ; {
		var text bytes.Buffer
		page := a.to(&text)
		if file != nil && a.width == 0 {
			page.width = widthOf(file) // it may be another one than in the last round
		}
		looking, cancel := context.WithTimeout(ctx, limit)
		known := find(looking)
		p := &progress{}
		infos, err := gather(c.of(locks(scan.Watched(looking, p.at))), p)
		marked := known()
		cancel()
		shown, more := c.ordered(infos)
		switch {
		case err != nil && len(infos) == 0:
			fmt.Fprintf(&text, "%s: %s\n", time.Now().Format(time.TimeOnly), printable.Text(err.Error()))
		case err != nil:
			fmt.Fprintf(&text, "%s: not complete, %d locks%s: %s\n", time.Now().Format(time.TimeOnly), len(infos), p.far(),
				printable.Text(err.Error()))
			if err := page.printLocks(shown, marked); err != nil {
				return err
			}
			page.more(more)
		default:
			if len(infos) > 0 {
				hint = ""
			} else if !asked {
				hint = why()
			}
			asked = true // once: it reads the names of all keys
			fmt.Fprintf(&text, "%s: %d locks%s\n", time.Now().Format(time.TimeOnly), len(infos), hint)
			if len(shown) == 0 {
				fmt.Fprintln(&text, c.nothing())
			} else if err := page.printLocks(shown, marked); err != nil {
				return err
			}
			page.more(more)
		}
		before := "\n"
		if screen {
			before = "\x1b[H\x1b[2J"
		}
		if _, err := a.out.Write(append([]byte(before), text.Bytes()...)); err != nil {
			return err
		}
		select {
		case <-time.After(time.Duration(c.each)):
		case <-ctx.Done():
			return nil
		}
	}
}
