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
	"github.com/lockregistry/lockregistry/inspect"
	"github.com/lockregistry/lockregistry/internal/scan"
)

const (
	partEach    = time.Second // how often a long listing prints what it has found
	mostLongest = 20          // queues that are named at its end
)

// byQueue has those first that most wait for, then by name.
func byQueue(a, b inspect.Lock) int {
	return cmp.Or(cmp.Compare(view.Waiting(b), view.Waiting(a)), strings.Compare(a.Path, b.Path))
}

// gather is all of them, in order. With an error they are not all.
func gather(all iter.Seq2[inspect.Lock, error], p *progress) (infos []inspect.Lock, err error) {
	for info, why := range all {
		if why != nil {
			err = why
			break
		}
		infos = append(infos, info)
		p.count(len(infos))
	}
	slices.SortFunc(infos, byQueue)
	return infos, err
}

// found is a lock, or why there are no more.
type found struct {
	inspect.Lock

	err error
}

// stream sends locks as they are found. Stop has all end; after it nothing is sent any more once the returned function is called.
func stream(all iter.Seq2[inspect.Lock, error], stop func()) (locks <-chan found, end func()) {
	into, over := make(chan found), make(chan struct{})
	var reads sync.WaitGroup
	reads.Go(func() {
		defer close(into)
		for info, err := range all {
			select {
			case into <- found{info, err}:
			case <-over:
				return
			}
		}
	})
	return into, func() {
		close(over)
		stop()
		reads.Wait()
	}
}

// listing is a list that is printed in parts, each in order, when the locks come slowly.
type listing struct {
	*app

	progress *progress
	marks    func() marks // see knots
	nothing  func() string

	part, longest []inspect.Lock
	count, parts  int
}

// list prints locks. When they come slowly it does so in parts, each in order, and names the longest queues at the end. Where
// there is none it prints what nothing returns. When it ends before all are found, it says so where the locks are.
func (l *listing) list(all iter.Seq2[inspect.Lock, error], stop func()) error {
	locks, end := stream(all, stop)
	defer end()
	each := time.NewTicker(partEach)
	defer each.Stop()
	for {
		select {
		case <-each.C:
			if err := l.flush(); err != nil {
				return err
			}
		case lock, more := <-locks:
			switch {
			case !more:
				return l.end()
			case lock.err != nil:
				return cmp.Or(l.cut(), lock.err)
			}
			l.part = append(l.part, lock.Lock)
			l.count++
			l.progress.count(l.count)
		}
	}
}

// flush prints what was found since the last time.
func (l *listing) flush() error {
	if len(l.part) == 0 {
		return nil
	}
	slices.SortFunc(l.part, byQueue)
	waited := slices.IndexFunc(l.part, func(i inspect.Lock) bool { return view.Waiting(i) == 0 })
	if waited < 0 {
		waited = len(l.part)
	}
	l.longest = append(l.longest, l.part[:waited]...)
	slices.SortFunc(l.longest, byQueue)
	l.longest = l.longest[:min(len(l.longest), mostLongest)]
	known := l.marks()
	l.progress.clear()
	err := l.printLocks(l.part, known)
	l.part, l.parts = nil, l.parts+1
	return err
}

// end prints what comes after the last lock.
func (l *listing) end() error {
	if l.count == 0 {
		text := l.nothing()
		l.progress.clear()
		_, err := fmt.Fprintln(l.out, text)
		return err
	}
	if err := l.flush(); err != nil {
		return err
	}
	l.progress.clear()
	if l.parts == 1 {
		return nil
	}
	fmt.Fprintf(l.out, "\n%d locks\n", l.count)
	if len(l.longest) == 0 {
		return nil
	}
	fmt.Fprintln(l.out, "\nthe longest queues:")
	return l.printLocks(l.longest, l.marks())
}

// cut prints what was found before the list was cut off, and that it was.
func (l *listing) cut() error {
	if l.count == 0 {
		return nil
	}
	if err := l.flush(); err != nil {
		return err
	}
	l.progress.clear()
	_, err := fmt.Fprintf(l.out, "\nnot complete: %d locks%s\n", l.count, l.progress.far())
	return err
}

// progress says on a terminal how far a command is that takes longer than a second. Elsewhere it is silent.
type progress struct {
	to    io.Writer // nil: silent
	began time.Time
	done  chan struct{}
	ended sync.WaitGroup

	mu    sync.Mutex
	found int
	looks scan.Progress
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
				fmt.Fprintf(p.to, "\r\x1b[Klockreg: reading for %s, %d locks so far%s",
					short(time.Since(p.began).Round(partEach)), p.found, p.part())
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

// at notes how far the SCAN of all keys is.
func (p *progress) at(now scan.Progress) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.looks = now
}

// far says how far it is; empty if it has not begun.
func (p *progress) far() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.part()
}

// part is far with the mutex.
func (p *progress) part() string {
	if p.looks.Keys == 0 {
		return ""
	}
	return fmt.Sprintf(", in %.0f %% of the keys", 100*p.looks.Part)
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
