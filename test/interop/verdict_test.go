package interop

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/lockregistry/lockregistry/internal/peer"
)

// verdicts are the outcomes of the soaks. They are printed again at the end: hours of output may lie between a failure and the
// end.
var verdicts struct {
	mu    sync.Mutex
	lines []string
}

// verdict is the outcome of one soak.
type verdict struct {
	t     *testing.T
	began time.Time
	said  string // what it did, or why it failed
}

// judge begins a soak, and logs that: if the soak hangs, this is its last line.
func judge(t *testing.T, limit time.Duration) *verdict {
	t.Helper()
	v := &verdict{t: t, began: time.Now(), said: "see its output"}
	t.Logf("begins at %s, may take %v", v.began.Format(time.TimeOnly), limit)
	t.Cleanup(func() {
		how := "ok"
		if t.Failed() {
			how = "FAILED"
		}
		verdicts.mu.Lock()
		defer verdicts.mu.Unlock()
		verdicts.lines = append(verdicts.lines,
			fmt.Sprintf("%-6s %s, after %v: %s", how, t.Name(), time.Since(v.began).Round(time.Second), v.said))
	})
	return v
}

// saysf logs what a soak did.
func (v *verdict) saysf(format string, args ...any) {
	v.t.Helper()
	v.said = fmt.Sprintf(format, args...)
	v.t.Log(v.said)
}

// failsf ends a soak with a reason.
func (v *verdict) failsf(format string, args ...any) {
	v.t.Helper()
	v.said = fmt.Sprintf(format, args...)
	v.t.Fatal(v.said)
}

// printVerdicts prints them at the end of the program.
func printVerdicts(out io.Writer) {
	verdicts.mu.Lock()
	defer verdicts.mu.Unlock()
	for _, line := range verdicts.lines {
		_, _ = fmt.Fprintln(out, line)
	}
}

// shown is how many failed calls are reported in full: most likely the others failed because these did.
const shown = 3

// longest returns the longest time that any of the calls, which must succeed, waited for its lock.
func (v *verdict) longest(ctx context.Context, calls []*peer.Call) (longest time.Duration) {
	v.t.Helper()
	for _, call := range calls {
		reply, err := call.Wait(ctx)
		waited, _, unread := reply.Millis("longest")
		if err := errors.Join(err, unread); err != nil {
			v.failsf("%s: %v", call.What(), err)
		}
		longest = max(longest, waited)
	}
	return longest
}

// total returns the sum of the turns that calls report. If calls fail it reports them, the earliest first, and what their
// processes wrote to standard error.
func (v *verdict) total(ctx context.Context, calls []*peer.Call) (turns int) {
	v.t.Helper()
	type failure struct {
		at   time.Time
		text string
	}
	var failures []failure
	for _, call := range calls {
		reply, err := call.Wait(ctx)
		n := 0
		if err == nil {
			n, err = strconv.Atoi(reply.Fields["turns"])
		}
		turns += n
		if err == nil {
			continue
		}
		at := reply.End
		if at.IsZero() {
			at = time.Now()
		}
		text := fmt.Sprintf("%s, %s: %v", at.Format(time.TimeOnly), call.What(), err)
		var remote *peer.RemoteError
		if errors.As(err, &remote) { // other errors bring it themselves
			text += "\nits standard error ends:\n" + call.Stderr()
		}
		failures = append(failures, failure{at, text})
	}
	if len(failures) > 0 {
		slices.SortFunc(failures, func(a, b failure) int { return a.at.Compare(b.at) })
		var told []string
		for _, f := range failures[:min(shown, len(failures))] {
			told = append(told, f.text)
		}
		v.failsf("%d of %d calls failed, the first:\n%s", len(failures), len(calls), strings.Join(told, "\n"))
	}
	return turns
}
