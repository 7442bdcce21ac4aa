package main

import (
	"cmp"
	"fmt"
	"io"
	"iter"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/lockregistry/lockregistry/cmd/lockreg/internal/view"
	"github.com/lockregistry/lockregistry/observe"
)

const (
	partEach    = time.Second // how often a long listing prints what it has found
	mostLongest = 20          // queues that are named at its end
)

// byQueue has those first that most wait for, then by name.
func byQueue(a, b observe.LockInfo) int {
	return cmp.Or(cmp.Compare(view.Waiting(b), view.Waiting(a)), strings.Compare(a.Path, b.Path))
}

// gather is all of them, in order.
func gather(all iter.Seq2[observe.LockInfo, error], p *progress) (infos []observe.LockInfo, err error) {
	for info, err := range all {
		if err != nil {
			return nil, err
		}
		infos = append(infos, info)
		p.count(len(infos))
	}
	slices.SortFunc(infos, byQueue)
	return infos, nil
}

// list prints locks. When they come slowly it does so in parts, each in order, and names the longest queues at the end. Where
// there is none it prints what nothing returns.
func (a *app) list(all iter.Seq2[observe.LockInfo, error], p *progress, nothing func() string) error {
	var part, longest []observe.LockInfo
	count, parts, began := 0, 0, time.Now()
	flush := func() error {
		slices.SortFunc(part, byQueue)
		waited := slices.IndexFunc(part, func(i observe.LockInfo) bool { return view.Waiting(i) == 0 })
		if waited < 0 {
			waited = len(part)
		}
		longest = append(longest, part[:waited]...)
		slices.SortFunc(longest, byQueue)
		longest = longest[:min(len(longest), mostLongest)]
		p.clear()
		err := a.printLocks(part)
		part, parts, began = nil, parts+1, time.Now()
		return err
	}
	for info, err := range all {
		if err != nil {
			return err
		}
		part = append(part, info)
		count++
		p.count(count)
		if time.Since(began) >= partEach {
			if err := flush(); err != nil {
				return err
			}
		}
	}
	if count == 0 {
		p.clear()
		_, err := fmt.Fprintln(a.out, nothing())
		return err
	}
	if len(part) > 0 {
		if err := flush(); err != nil {
			return err
		}
	}
	p.clear()
	if parts == 1 {
		return nil
	}
	fmt.Fprintf(a.out, "\n%d locks\n", count)
	if len(longest) == 0 {
		return nil
	}
	fmt.Fprintln(a.out, "\nthe longest queues:")
	return a.printLocks(longest)
}

// progress says on a terminal how far a command is that takes longer than a second. Elsewhere it is silent.
type progress struct {
	to    io.Writer // nil: silent
	began time.Time
	done  chan struct{}
	ended sync.WaitGroup

	mu    sync.Mutex
	found int
	shown bool
}

// progress begins one for a command that looks for locks.
func (a *app) progress() *progress {
	p := &progress{began: time.Now(), done: make(chan struct{})}
	if file, ok := a.err.(*os.File); ok && isTerminal(file) {
		p.to = a.err
	}
	p.begin()
	return p
}

func (p *progress) begin() {
	if p.to == nil {
		return
	}
	p.ended.Go(func() {
		each := time.NewTicker(partEach)
		defer each.Stop()
		for {
			select {
			case <-each.C:
				p.mu.Lock()
				fmt.Fprintf(p.to, "\r\x1b[Klockreg: reading for %s, %d locks so far", short(time.Since(p.began).Round(partEach)), p.found)
				p.shown = true
				p.mu.Unlock()
			case <-p.done:
				p.clear()
				return
			}
		}
	})
}

func (p *progress) count(found int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.found = found
}

// clear leaves the line to something else.
func (p *progress) clear() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.shown {
		fmt.Fprint(p.to, "\r\x1b[K")
		p.shown = false
	}
}

// end stops the progress when the listing is complete.
func (p *progress) end() {
	close(p.done)
	p.ended.Wait()
}
