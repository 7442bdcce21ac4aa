// Command progress reads the output of go test -json. It prints what go test would print, and at times how far the tests are.
package main

import (
	"bufio"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path"
	"slices"
	"strings"
	"time"
)

// pause is the time between two lines about progress.
const pause = 20 * time.Second

// event has the needed fields of a line of go test -json. Field names there begin with a capital, but JSON decoding ignores
// case.
type event struct {
	Action  string `json:"action"`
	Package string `json:"package"`
	Test    string `json:"test"`
	Output  string `json:"output"`

	Elapsed float64 `json:"elapsed"` // seconds
}

// slowest is how many of the slowest tests are named at the end, with their times.
const slowest = 15

type progress struct {
	to      io.Writer
	began   time.Time
	now     string // the package and the test of the latest event
	passed  int
	failed  int
	running map[string][]string // the tests of a package that have begun and not ended, in order
	output  map[string][]string // of a test that has not ended, by package and test
	ended   map[string][]string // printed when a package ends: the output of failed tests, and its own lines
	took    []event             // the ends of all tests
}

func main() {
	p := progress{
		to: os.Stdout, began: time.Now(), now: "the build",
		running: map[string][]string{}, output: map[string][]string{}, ended: map[string][]string{},
	}
	if err := p.read(os.Stdin, time.Tick(pause)); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// read takes lines, and prints the progress at each tick.
func (p *progress) read(from io.Reader, ticks <-chan time.Time) error {
	lines := make(chan string)
	var ended error
	go func() {
		defer close(lines)
		for reader := bufio.NewReader(from); ended == nil; {
			var line string
			line, ended = reader.ReadString('\n')
			lines <- line
		}
	}()
	for {
		select {
		case line, more := <-lines:
			var e event
			switch {
			case !more && ended == io.EOF:
				p.slowest()
				return nil
			case !more:
				return ended
			case json.Unmarshal([]byte(line), &e) != nil || e.Action == "":
				p.print(line) // from go itself
			default:
				p.take(e)
			}
		case now := <-ticks:
			p.tell(now)
		}
	}
}

func (p *progress) print(text ...string) { _, _ = io.WriteString(p.to, strings.Join(text, "")) }

func (p *progress) take(e event) {
	top, _, _ := strings.Cut(e.Test, "/")
	key := e.Package + " " + top
	switch e.Action {
	case "build-output":
		p.print(e.Output)
	case "output":
		switch {
		case strings.HasPrefix(e.Output, "=== "): // a test begins, waits or continues
		case e.Test != "":
			p.output[key] = append(p.output[key], e.Output)
		case e.Output != "PASS\n": // go test prints no PASS when it runs a list of packages
			p.ended[e.Package] = append(p.ended[e.Package], e.Output)
		}
	case "run":
		if e.Test == top {
			p.running[e.Package] = append(p.running[e.Package], top)
		}
	case "pass", "fail", "skip":
		p.end(e, top, key)
	}
	if e.Test != "" {
		p.now = path.Base(e.Package) + ": " + e.Test
	}
}

// end ends a test, or a package with all of its tests.
func (p *progress) end(e event, top, key string) {
	switch e.Test {
	case "":
		for _, name := range p.running[e.Package] { // the package ended without ending them, by a panic for instance
			p.print(p.output[e.Package+" "+name]...)
			delete(p.output, e.Package+" "+name)
		}
		p.print(p.ended[e.Package]...)
		delete(p.ended, e.Package)
		delete(p.running, e.Package)
	case top:
		if e.Action == "fail" {
			p.failed++
			p.ended[e.Package] = append(p.ended[e.Package], p.output[key]...)
		} else {
			p.passed++
		}
		p.took = append(p.took, e)
		delete(p.output, key)
		p.running[e.Package] = slices.DeleteFunc(p.running[e.Package], func(name string) bool { return name == top })
	}
}

// tell prints how far the tests are.
func (p *progress) tell(now time.Time) {
	p.print(fmt.Sprintf("... after %.0f s: %d tests passed, %d failed; now in %s\n",
		now.Sub(p.began).Seconds(), p.passed, p.failed, p.now))
}

// slowest names the tests that took longest.
func (p *progress) slowest() {
	slices.SortStableFunc(p.took, func(a, b event) int { return cmp.Compare(b.Elapsed, a.Elapsed) })
	for _, e := range p.took[:min(slowest, len(p.took))] {
		if e.Elapsed >= 1 {
			p.print(fmt.Sprintf("... %.0f s: %s in %s\n", e.Elapsed, e.Test, path.Base(e.Package)))
		}
	}
}
