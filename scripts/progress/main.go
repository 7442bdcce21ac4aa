// Command progress reads what go test -json says and prints what go test would print, and now and then where it is.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path"
	"slices"
	"strings"
	"time"
)

// pause is the least time between two lines about where the tests are.
const pause = 20 * time.Second

// event is what go test -json says in a line, as far as it matters here. Its names begin with a capital there, which is the same.
type event struct {
	Time    time.Time `json:"time"`
	Action  string    `json:"action"`
	Package string    `json:"package"`
	Test    string    `json:"test"`
	Output  string    `json:"output"`
}

type progress struct {
	to      io.Writer
	began   time.Time
	told    time.Time
	passed  int
	failed  int
	running map[string][]string // the tests of a package that have begun and not ended, in order
	output  map[string][]string // of a test that has not ended, by package and test
	ended   map[string][]string // what is printed when a package has ended: of what failed, and its own lines
}

func main() {
	p := progress{to: os.Stdout, running: map[string][]string{}, output: map[string][]string{}, ended: map[string][]string{}}
	if err := p.read(os.Stdin); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func (p *progress) read(from io.Reader) error {
	lines := bufio.NewReader(from)
	for {
		line, err := lines.ReadString('\n')
		if line != "" {
			var e event
			if json.Unmarshal([]byte(line), &e) != nil || e.Action == "" {
				p.print(line) // of go itself
			} else {
				p.take(e)
			}
		}
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
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
		case strings.HasPrefix(e.Output, "=== "): // where a test begins, waits and goes on
		case e.Test != "":
			p.output[key] = append(p.output[key], e.Output)
		case e.Output != "PASS\n": // go test says so for a package that fails only
			p.ended[e.Package] = append(p.ended[e.Package], e.Output)
		}
	case "run":
		if e.Test == top {
			p.running[e.Package] = append(p.running[e.Package], top)
		}
	case "pass", "fail", "skip":
		p.end(e, top, key)
	}
	p.tell(e)
}

// end is that of a test, or of a package, with which all of its tests end.
func (p *progress) end(e event, top, key string) {
	switch e.Test {
	case "":
		for _, name := range p.running[e.Package] { // it ended otherwise than with its tests
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
		delete(p.output, key)
		p.running[e.Package] = slices.DeleteFunc(p.running[e.Package], func(name string) bool { return name == top })
	}
}

// tell prints where the tests are, when that has not been told for a while.
func (p *progress) tell(e event) {
	if p.began.IsZero() {
		p.began, p.told = e.Time, e.Time
	}
	if e.Time.Sub(p.told) < pause || e.Test == "" {
		return
	}
	p.told = e.Time
	p.print(fmt.Sprintf("... after %.0f s: %d tests passed, %d failed; now in %s: %s\n",
		e.Time.Sub(p.began).Seconds(), p.passed, p.failed, path.Base(e.Package), e.Test))
}
