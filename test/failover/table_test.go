package failover

import (
	"encoding/csv"
	"errors"
	"flag"
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/lockregistry/lockregistry/internal/protocol"
	"github.com/lockregistry/lockregistry/internal/redistest"
)

var (
	long  = flag.Bool("long", false, "ten rounds of everything, and thirty kills of a master")
	times = flag.Int("rounds", 0, "so many rounds of each event; 0: as usual")
	table = flag.String("table", "", "write the table to this file, with commas")
)

func TestMain(m *testing.M) {
	// All scripts report keys that they touch without declaring them; the server's test then fails.
	for _, script := range protocol.Scripts() {
		*script = *protocol.NewScript(redistest.WatchKeys + script.Source)
	}
	flag.Parse()
	// Tests mostly wait for servers. A long run prints measured times: there each test has the machine to itself.
	atOnce := "4"
	if *long {
		atOnce = "1"
	}
	if err := flag.Set("test.parallel", atOnce); err != nil {
		panic(err)
	}
	code := m.Run()
	for _, line := range results.lines() {
		fmt.Println(strings.Join(line, " | "))
	}
	fmt.Print("\n" + results.causesText())
	if *table != "" && code == 0 {
		if err := writeTable(*table); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	os.Exit(code)
}

func writeTable(name string) error {
	file, err := os.Create(name)
	if err != nil {
		return err
	}
	return errors.Join(csv.NewWriter(file).WriteAll(results.lines()), file.Close())
}

// outcome is the outcome of one event.
type outcome struct {
	event, variant string
	patient        int           // errors of calls with Wait
	first          int           // errors of calls without
	unlock         int           // errors of Unlock, except for a lost lock
	promoted       time.Duration // from the event until another server was the master; 0: there was none
	pause          time.Duration // the longest time in which nobody entered a path
	still          time.Duration // the longest pause after the promotion
	served         time.Duration // from the promotion, or the event, until all paths were entered again
	doubles        int           // pairs of owners inside at once
	lostUpdates    int
	losers         int           // lost holds
	atUnlock       int           // those that learned of it from Unlock, the others from their contexts
	causes         []string      // of the errors
	told           time.Duration // the longest time from the switch of its client until an owner was told
	late           time.Duration // by how much a goroutine of this process ran late, at most; with Sentinel
}

// judge sums up what happened after the event, and ends the fleet.
func (f *fleet) judge(event string, v variant, at, promoted time.Time) outcome {
	f.Helper()
	from := promoted
	if promoted.IsZero() {
		from = at
	}
	f.awaitServed(from)
	wait(calmAfter)
	until := time.Now()
	o := outcome{event: event, variant: v.name}
	for _, path := range f.busy {
		o.pause = max(o.pause, f.gap(path, at, until))
		o.still = max(o.still, f.gap(path, from, until))
		if again, ok := f.next(path, from); ok {
			o.served = max(o.served, again.Sub(from))
		}
	}
	if !promoted.IsZero() {
		o.promoted = promoted.Sub(at)
	}
	f.end()
	o.late = f.late
	o.patient, o.first, o.unlock = f.failed(patientLock), f.failed(firstTry), f.failed(unlocking)
	o.doubles, o.lostUpdates, o.losers = len(f.doubles), f.lostUpdates(), len(f.losers)
	for _, v := range f.losers {
		since := f.switchedAt(v.process)
		if since.IsZero() {
			since = from
		}
		if v.entered.After(since) {
			since = v.entered
		}
		told, how := v.told, "its context"
		if told.IsZero() {
			told, how = v.refused, "Unlock"
			o.atUnlock++
		}
		o.told = max(o.told, told.Sub(since))
		f.Logf("told by %s: path %s, process %d, entered at %v, told at %v, %v after the switch", how, v.path, v.process,
			v.entered.Sub(at).Round(time.Millisecond), told.Sub(at).Round(time.Millisecond), told.Sub(since).Round(time.Millisecond))
	}
	for _, d := range f.doubles {
		f.Logf("inside at once: %s", d.text(at))
	}
	for _, operation := range []string{patientLock, firstTry, unlocking} {
		for _, why := range slices.Sorted(maps.Keys(f.failures[operation])) {
			f.Logf("%s: %d × %s", operation, f.failures[operation][why], why)
			o.causes = append(o.causes, operation+": "+why)
		}
	}
	f.Logf("promoted after %v, served after another %v, longest pause %v, %d pairs inside at once",
		o.promoted, o.served, o.pause, o.doubles)
	results.add(o)
	return o
}

// sheet gathers outcomes.
type sheet struct {
	mu   sync.Mutex
	rows []*row
}

// row is the outcome of all rounds of one event. Errors of calls with Wait, doubles and losses are sums; other errors and times
// are those of the worst round.
type row struct {
	outcome
	rounds int
}

var results sheet

func (s *sheet) add(o outcome) {
	s.mu.Lock()
	defer s.mu.Unlock()
	i := slices.IndexFunc(s.rows, func(r *row) bool { return r.event == o.event && r.variant == o.variant })
	if i < 0 {
		s.rows = append(s.rows, &row{outcome: o, rounds: 1})
		return
	}
	r := s.rows[i]
	r.rounds++
	r.patient += o.patient
	r.first = max(r.first, o.first)
	r.unlock = max(r.unlock, o.unlock)
	r.promoted = max(r.promoted, o.promoted)
	r.pause = max(r.pause, o.pause)
	r.served = max(r.served, o.served)
	r.doubles += o.doubles
	r.lostUpdates += o.lostUpdates
	r.losers += o.losers
	r.atUnlock += o.atUnlock
	r.told = max(r.told, o.told)
	for _, why := range o.causes {
		if !slices.Contains(r.causes, why) {
			r.causes = append(r.causes, why)
		}
	}
}

func seconds(d time.Duration) string {
	if d < 100*time.Millisecond {
		return strconv.FormatInt(d.Milliseconds(), 10) + " ms"
	}
	return strconv.FormatFloat(d.Seconds(), 'f', 2, 64) + " s"
}

// lines returns the table as test/failover/results.csv has it, from the long run.
func (s *sheet) lines() [][]string {
	all := [][]string{{
		"event", "rounds", "errors of calls with Wait", "errors of first tries", "errors of Unlock",
		"promoted after", "served after that", "longest pause", "pairs inside at once", "updates lost",
		"holds lost, told by their context", "holds lost, told by Unlock", "told after",
	}}
	for _, r := range s.rows {
		name, promoted, told := r.event, "", ""
		if r.variant != "" {
			name += ", " + strings.ReplaceAll(r.variant, "`", "")
		}
		if r.promoted > 0 {
			promoted = seconds(r.promoted)
		}
		if r.losers > 0 {
			told = seconds(r.told)
		}
		all = append(all, []string{
			name, strconv.Itoa(r.rounds), strconv.Itoa(r.patient), strconv.Itoa(r.first), strconv.Itoa(r.unlock), promoted,
			seconds(r.served), seconds(r.pause), strconv.Itoa(r.doubles), strconv.Itoa(r.lostUpdates), strconv.Itoa(r.losers - r.atUnlock),
			strconv.Itoa(r.atUnlock), told,
		})
	}
	return all
}

// causesText lists the causes of the errors.
func (s *sheet) causesText() string {
	var b strings.Builder
	for _, r := range s.rows {
		if len(r.causes) > 0 {
			slices.Sort(r.causes)
			fmt.Fprintf(&b, "- %s: %s\n", r.event, strings.Join(r.causes, ", "))
		}
	}
	return b.String()
}
