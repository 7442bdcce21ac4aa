package main

import (
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

const (
	generatedBegin = "<!-- generated: begin -->"
	generatedEnd   = "<!-- generated: end -->"
)

// write writes the results into the repository at root: all of them into the tables in bench/results, the charts into
// docs/performance, a summary into bench/RESULTS.md, the most important ones into docs/performance.md, those of the peers into
// docs/comparison.md, and some figures into README.md. In the pages it replaces only the text between markers.
func write(root string, around surroundings, results []*result) error {
	charts, err := draw(filepath.Join(root, "docs", "performance"), results)
	if err != nil {
		return err
	}
	if err := writeTables(filepath.Join(root, "bench", "results"), results); err != nil {
		return err
	}
	var all, page, peers, some strings.Builder
	summary(&all, around, results, charts)
	overview(&page, results, charts)
	besidePeers(results, thisLibrary).markdown(&peers)
	someFigures(&some, results)
	for _, p := range []struct {
		name string
		text *strings.Builder
	}{
		{"bench/RESULTS.md", &all}, {"docs/performance.md", &page}, {"docs/comparison.md", &peers}, {"README.md", &some},
	} {
		if err := replace(filepath.Join(root, filepath.FromSlash(p.name)), p.text.String()); err != nil {
			return err
		}
	}
	return writePermits(root, results)
}

// replace writes text between the markers of a page.
func replace(file, text string) error {
	return replaceBetween(file, generatedBegin, generatedEnd, text)
}

// replaceBetween writes text between two markers of a page.
func replaceBetween(file, begin, end, text string) error {
	old, err := os.ReadFile(file) //nolint:gosec // a page of the repository that the caller named
	if err != nil {
		return fmt.Errorf("the page so far: %w", err)
	}
	before, rest, begins := strings.Cut(string(old), begin)
	_, after, ends := strings.Cut(rest, end)
	if !begins || !ends {
		return fmt.Errorf("%s has no %s and %s to write between", file, begin, end)
	}
	page := before + begin + "\n\n" + text + "\n" + end + after
	if err := os.WriteFile(file, []byte(page), 0o644); err != nil { //nolint:gosec // a page for everybody
		return fmt.Errorf("write the page: %w", err)
	}
	return nil
}

// headline is a figure that shows how this library compares with its peers.
type headline struct {
	what, scenario, metric string
	short                  string // for README.md; empty: it is not shown there
}

var headlines = []headline{
	{"lock and unlock, one goroutine", "paths-1", timePerOp.name, ""},
	{"the same, 64 goroutines, a path each", "paths-64", timePerOp.name, "to lock and unlock, with 64 goroutines, each on its own path"},
	{"the same, 64 goroutines, all want one path", "one-path", timePerOp.name,
		"to lock and unlock, with 64 goroutines of a process on one path"},
	{"three paths at once, 64 goroutines", "several-64", timePerOp.name, ""},
	{"from a release to the next of 8 processes, median", "handoff-8", handoffMedian.name,
		"until a released lock is held by the next of eight processes (median)"},
	{"the same of 3, after sections of 1 s", "long-1s", handoffMedian.name, ""},
	{"memory in the process, for a lock that is held and renewed", "held", bytesPerLock.name, ""},
}

// withPeers returns all, and the peers with their defaults.
func withPeers(all []contender) []contender {
	for _, c := range contenders {
		if c.role == rival && !c.contended {
			all = append(all, c)
		}
	}
	return all
}

// figure returns a median, NaN if there is none.
func figure(results []*result, scenario, contender, metric string) (float64, unit) {
	if r := find(results, scenario); r != nil {
		if row, ok := r.row(contender); ok {
			return row.median(metric), r.metric(metric).unit
		}
	}
	return math.NaN(), count
}

// besidePeers has a row for each headline, and a column for each contender in first and each peer.
func besidePeers(results []*result, first ...contender) grid {
	head, columns := []string{""}, withPeers(first)
	for _, c := range columns {
		head = append(head, c.name)
	}
	lines := grid{append(head, "again with")}
	for _, h := range headlines {
		line := []string{h.what}
		for _, c := range columns {
			value, in := figure(results, h.scenario, c.name, h.metric)
			line = append(line, in.write(value))
		}
		lines = append(lines, append(line, "`-only "+family(h.scenario)+"`"))
	}
	return lines
}

// The figures of semaphores in docs/performance.md are between these.
const (
	permitsBegin = "<!-- permits: begin -->"
	permitsEnd   = "<!-- permits: end -->"
)

// writePermits writes the table of semaphores into docs/performance.md if they were measured.
func writePermits(root string, results []*result) error {
	if find(results, "permits-thread") == nil {
		return nil
	}
	var page strings.Builder
	besideSemaphores(results).markdown(&page)
	fmt.Fprintf(&page, "\nMeasured on %s by `cd bench && GOWORK=off go run . -only permits -write ..`.\n", time.Now().UTC().Format("2 January 2006"))
	return replaceBetween(filepath.Join(root, "docs", "performance.md"), permitsBegin, permitsEnd, page.String())
}

// besideSemaphores has a row for each figure of semaphores, and a column for each contender.
func besideSemaphores(results []*result) grid {
	columns := []contender{semaphores, plainLock, redissonPermits, localPermits}
	head := []string{""}
	for _, c := range columns {
		head = append(head, c.name)
	}
	lines := grid{head}
	add := func(what, scenario, metric string) {
		line := []string{what}
		for _, c := range columns {
			value, in := figure(results, scenario, c.name, metric)
			line = append(line, in.write(value))
		}
		lines = append(lines, line)
	}
	add("acquire and release a permit of four, one goroutine", "permits-alone-1", timePerOp.name)
	add("the same, 64 goroutines, a semaphore each", "permits-alone-64", timePerOp.name)
	add("the same, one thread of a process or JVM, median", "permits-thread", javaTime.name)
	for _, n := range permitProcesses {
		for _, permits := range permitNumbers {
			what := fmt.Sprintf("handoff of one of %d permits, %d processes, median", permits, n)
			add(what, fmt.Sprintf("permits-%d-%d", n, permits), handoffMedian.name)
		}
	}
	return lines
}

// summary is the generated part of bench/RESULTS.md: where the run took place, which targets do not hold, and what follows from
// the figures. The figures themselves are in the tables beside it.
func summary(page *strings.Builder, around surroundings, results []*result, charts []chart) {
	for _, line := range around {
		fmt.Fprintf(page, "- %s: %s\n", line.what, line.value)
	}
	fmt.Fprintf(page, "\n%s.", held(results, "results/targets.csv"))
	if missed := missedTargets(results); len(missed) > 0 {
		page.WriteString(" These do not, as ratios to the floor or to the best peer:\n\n- " + strings.Join(missed, "\n- ") + "\n")
	}
	page.WriteString("\n")
	for _, c := range charts {
		if !slices.Contains(shownCharts, c.file) {
			fmt.Fprintf(page, "![%s](../docs/performance/%s)\n\n", c.title, c.file)
		}
	}
	onPaper(page, results)
}

// held says how many targets hold, with a link to all of them.
func held(results []*result, file string) string {
	all, kept := verdicts(results)[1:], 0
	for _, line := range all {
		if line[len(line)-1] == "yes" {
			kept++
		}
	}
	return fmt.Sprintf("%d of %d [targets](%s) hold in this run", kept, len(all), file)
}

// missedTargets returns a line for each ratio or figure that missed its target, with the target.
func missedTargets(results []*result) (missed []string) {
	for _, line := range verdicts(results)[1:] {
		if line[len(line)-1] == "yes" {
			continue
		}
		for _, ratio := range [][]string{line[3:5], line[6:8]} {
			if ratio[1] != "–" {
				is, _, _ := strings.Cut(ratio[0], " (")
				missed = append(missed, fmt.Sprintf("%s: %s (%s)", line[0], is, ratio[1]))
			}
		}
		if strings.Contains(line[1], " (") {
			missed = append(missed, line[0]+": "+line[1])
		}
	}
	return missed
}

// shownCharts are the charts in the overview; bench/RESULTS.md has the others.
var shownCharts = []string{"own-paths.svg", "one-path.svg", "handoff.svg"}

// overview is the generated part of docs/performance.md.
func overview(page *strings.Builder, results []*result, charts []chart) {
	besidePeers(results, thisLibrary, bareFloor).markdown(page)
	fmt.Fprintf(page, "\n%s.\n", held(results, "../bench/results/targets.csv"))
	for _, c := range charts {
		if slices.Contains(shownCharts, c.file) {
			fmt.Fprintf(page, "\n![%s](performance/%s)\n", c.title, c.file)
		}
	}
}

// someFigures is the generated part of README.md.
func someFigures(page *strings.Builder, results []*result) {
	for _, h := range headlines {
		r := find(results, h.scenario)
		if h.short == "" || r == nil {
			continue
		}
		own, in := figure(results, h.scenario, thisLibrary.name, h.metric)
		fmt.Fprintf(page, "- **%s** %s", in.write(own), h.short)
		if best, ok := r.bestPlainPeer(r.metric(h.metric)); ok {
			fmt.Fprintf(page, "; the best peer, %s: %s", best.contender, in.write(best.median(h.metric)))
		}
		fmt.Fprintf(page, " (`-only %s`)\n", family(h.scenario))
	}
}

// reproduce is the command that measures a result again.
func reproduce(result string) string {
	return fmt.Sprintf("`cd bench && GOWORK=off go run . -only %s`", family(result))
}

// family returns the scenario that a result belongs to.
func family(result string) string {
	name := ""
	for _, sc := range scenarios {
		if strings.HasPrefix(result, sc.name) && len(sc.name) > len(name) {
			name = sc.name
		}
	}
	return name
}

// onPaper says what the figures mean on other machines.
func onPaper(page *strings.Builder, results []*result) {
	of := func(scenario, metric string) float64 {
		value, _ := figure(results, scenario, thisLibrary.name, metric)
		return value
	}
	pair, renewal := of("paths-64", serverCPU.name), of("held", renewalServerCPU.name)
	inRedis, inProcess := of("held", serverBytes.name), of("held", bytesPerLock.name)
	conns, own := of("held", connections.name), of("held", renewalCPU.name)
	if math.IsNaN(pair) || math.IsNaN(renewal) {
		return
	}
	const locks, processes, lease = 1e6, 1e4, 60.0
	perSecond := locks / (lease / 3)
	page.WriteString("Computed from these figures, not measured:\n\n")
	grid{
		{"", "", "again with"},
		{"locks and unlocks a second on a core of Redis", hundreds(1e9 / pair), "`-only paths`"},
		{"a million held locks: renewals a second", digits(perSecond), "`-only held`"},
		{"the same: CPU; memory in Redis", share.write(perSecond*renewal/1e9) + "; " + byteCount.write(locks*inRedis), "`-only held`"},
		{"the same in each of 10 000 processes: memory; CPU", byteCount.write(locks/processes*inProcess) + "; " +
			share.write(perSecond/processes*own/1e9), "`-only held`"},
		{"10 000 processes: connections; if all wait", digits(conns*processes) + "; " +
			digits((conns+1)*processes), "`-only held`"},
	}.markdown(page)
}

// hundreds writes a whole number rounded to three significant digits.
func hundreds(v float64) string {
	unit := math.Pow(10, math.Floor(math.Log10(v))-2)
	return digits(math.Round(v/unit) * unit)
}
