package main

import (
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

const (
	generatedBegin = "<!-- generated: begin -->"
	generatedEnd   = "<!-- generated: end -->"
)

// write writes what was measured into the repository at root: all of it to bench/RESULTS.md, the charts to docs/performance, what
// most readers want to docs/performance.md, and three figures to README.md. The last two are written between markers; what a
// person wrote around those stays.
func write(root string, around surroundings, results []*result) error {
	charts, err := draw(filepath.Join(root, "docs", "performance"), results)
	if err != nil {
		return err
	}
	var all, page, three strings.Builder
	allResults(&all, around, results, charts)
	overview(&page, around, results, charts)
	threeFigures(&three, results)
	file := filepath.Join(root, "bench", "RESULTS.md")
	if err := os.WriteFile(file, []byte(all.String()), 0o644); err != nil { //nolint:gosec // a page for everybody
		return fmt.Errorf("write the results: %w", err)
	}
	if err := replace(filepath.Join(root, "docs", "performance.md"), page.String()); err != nil {
		return err
	}
	return replace(filepath.Join(root, "README.md"), three.String())
}

// replace writes text between the markers of a page.
func replace(file, text string) error {
	old, err := os.ReadFile(file) //nolint:gosec // a page of the repository that the caller named
	if err != nil {
		return fmt.Errorf("the page so far: %w", err)
	}
	before, rest, begins := strings.Cut(string(old), generatedBegin)
	_, after, ends := strings.Cut(rest, generatedEnd)
	if !begins || !ends {
		return fmt.Errorf("%s has no %s and %s to write between", file, generatedBegin, generatedEnd)
	}
	page := before + generatedBegin + "\n\n" + text + "\n" + generatedEnd + after
	if err := os.WriteFile(file, []byte(page), 0o644); err != nil { //nolint:gosec // a page for everybody
		return fmt.Errorf("write the page: %w", err)
	}
	return nil
}

// headline is a figure that says what this library is like beside its peers.
type headline struct {
	what, scenario, metric string
	short                  string // for README.md; none: it is not one of the three
}

var headlines = []headline{
	{"lock and unlock, one goroutine", "paths-1", timePerOp.name, ""},
	{"the same, 64 goroutines, a path each", "paths-64", timePerOp.name, "for a lock and unlock, by 64 goroutines of a process with a path each"},
	{"the same, 64 goroutines, all want one path", "one-path", timePerOp.name,
		"for a lock and unlock, by 64 goroutines of a process that all want one path"},
	{"from a release to the next of 8 processes, median", "handover-8", handOverMedian.name,
		"from a release to the next of eight processes, in the median"},
	{"memory in the process, for a lock that is held and renewed", "held", bytesPerLock.name, ""},
}

// plainContenders are those with a column of the overview.
func plainContenders() []contender {
	all := []contender{thisLibrary, bareFloor}
	for _, c := range contenders {
		if c.role == rival && !c.contended {
			all = append(all, c)
		}
	}
	return all
}

// figure is a median, NaN where there is none.
func figure(results []*result, scenario, contender, metric string) (float64, unit) {
	if r := find(results, scenario); r != nil {
		if row, ok := r.row(contender); ok {
			return row.median(metric), r.metric(metric).unit
		}
	}
	return math.NaN(), count
}

// besidePeers is the overview: a line for each headline, a column for each contender.
func besidePeers(results []*result) grid {
	head := []string{""}
	for _, c := range plainContenders() {
		head = append(head, c.name)
	}
	lines := grid{append(head, "again with")}
	for _, h := range headlines {
		line := []string{h.what}
		for _, c := range plainContenders() {
			value, in := figure(results, h.scenario, c.name, h.metric)
			line = append(line, in.write(value))
		}
		lines = append(lines, append(line, "`-only "+family(h.scenario)+"`"))
	}
	return lines
}

// allResults is bench/RESULTS.md.
func allResults(page *strings.Builder, around surroundings, results []*result, charts []chart) {
	page.WriteString("# Results\n\nWritten by `make bench`. [README.md](README.md) says how it is measured, " +
		"[docs/performance.md](../docs/performance.md) what it means.\n\n")
	for _, line := range around {
		fmt.Fprintf(page, "- %s: %s\n", line.what, line.value)
	}
	page.WriteString("\nRatios are medians of the ratios of single rounds, with the middle half of them in brackets: they are steadier than the " +
		"figures. The best peer is the one with the best median of that figure.\n\n## The targets\n\n")
	verdicts(results).markdown(page)
	page.WriteString("\n## The charts\n\n")
	for _, c := range charts {
		fmt.Fprintf(page, "![%s](../docs/performance/%s)\n\n", c.title, c.file)
	}
	page.WriteString("## The figures\n\nEach from `make bench`, or from the command below it alone.\n")
	for _, r := range results {
		fmt.Fprintf(page, "\n### %s\n\n%s\n", r.title, r.how)
		if len(r.rows) > 0 {
			page.WriteString("\n")
			r.table().markdown(page)
		}
		for i, note := range r.notes {
			if i == 0 || !strings.HasPrefix(note, "- ") {
				page.WriteString("\n")
			}
			page.WriteString(note + "\n")
		}
		fmt.Fprintf(page, "\n%s\n", reproduce(r.scenario))
	}
	page.WriteString("\n## How the contenders are set\n\n")
	for _, c := range contenders {
		fmt.Fprintf(page, "- %s: %s\n", c.name, c.settings)
	}
	onPaper(page, results)
}

// shownCharts are those of the overview; bench/RESULTS.md has all.
var shownCharts = []string{"own-paths.svg", "one-path.svg", "hand-over.svg"}

// overview is the generated part of docs/performance.md.
func overview(page *strings.Builder, around surroundings, results []*result, charts []chart) {
	besidePeers(results).markdown(page)
	page.WriteString("\n")
	for _, line := range around {
		fmt.Fprintf(page, "- %s: %s\n", line.what, line.value)
	}
	held, all := 0, verdicts(results)[1:]
	for _, v := range all {
		if v[len(v)-1] == "yes" {
			held++
		}
	}
	fmt.Fprintf(page, "\n%d of %d [targets](../bench/RESULTS.md#the-targets) hold in this run.\n", held, len(all))
	for _, c := range charts {
		if slices.Contains(shownCharts, c.file) {
			fmt.Fprintf(page, "\n![%s](performance/%s)\n", c.title, c.file)
		}
	}
}

// threeFigures is the generated part of README.md.
func threeFigures(page *strings.Builder, results []*result) {
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
		fmt.Fprintf(page, " (%s)\n", reproduce(h.scenario))
	}
}

// reproduce is the command that measures a result again.
func reproduce(result string) string {
	return fmt.Sprintf("`cd bench && GOWORK=off go run . -only %s`", family(result))
}

// family is the scenario that a result is of.
func family(result string) string {
	name := ""
	for _, sc := range scenarios {
		if strings.HasPrefix(result, sc.name) && len(sc.name) > len(name) {
			name = sc.name
		}
	}
	return name
}

// onPaper says what the figures mean beyond one machine.
func onPaper(page *strings.Builder, results []*result) {
	of := func(scenario, metric string) float64 {
		value, _ := figure(results, scenario, thisLibrary.name, metric)
		return value
	}
	pair, renewal := of("paths-64", serverCPU.name), of("held", renewalServerCPU.name)
	inRedis, inProcess := of("held", serverBytes.name), of("held", bytesPerLock.name)
	conns, cached := of("held", connections.name), of("cached", cachedBytes.name)
	own := of("held", renewalCPU.name)
	if math.IsNaN(pair) || math.IsNaN(renewal) {
		return
	}
	const locks, processes, lease = 1e6, 1e4, 60.0
	perSecondHeld := locks / (lease / 3)
	page.WriteString("\n## Past one machine, on paper\n\nComputed from the figures above, which is not the same as measured.\n\n")
	line := func(format string, args ...any) { fmt.Fprintf(page, "- "+format+"\n", args...) }
	line("**One Redis node.** A lock and unlock costs the server %s when commands come in pipelines (%s), so one core ends at about %s "+
		"locks and unlocks a second; a node runs commands on one core. Paths that many goroutines of one process want cost it next "+
		"to nothing, because they hand the lock to each other.", nanoseconds.write(pair), reproduce("paths-64"), digits(1e9/pair))
	line("**A million held locks.** With the default lease of 60 s renewed every 20 s that is %s renewals a second at %s of the server "+
		"each (%s): %s of one core. They are %s in Redis, at %s a lock.", digits(perSecondHeld), nanoseconds.write(renewal),
		reproduce("held"), share.write(perSecondHeld*renewal/1e9), byteCount.write(locks*inRedis), byteCount.write(inRedis))
	line("**In ten thousand processes**, a hundred locks each: %s of memory and %s of a core in each process, at %s and %s a renewal; "+
		"%s renewals a second from each. A lock that is only cached costs %s (%s).", byteCount.write(locks/processes*inProcess),
		share.write(perSecondHeld/processes*own/1e9), byteCount.write(inProcess), nanoseconds.write(own),
		digits(perSecondHeld/processes), byteCount.write(cached), reproduce("cached"))
	line("**Connections.** A process has %s to a node, and one more as soon as somebody waits: %s to %s for ten thousand processes. Redis "+
		"accepts 10 000 by default (`maxclients`), so this, and not the commands, is what ends first on one node.", digits(conns),
		digits(conns*processes), digits((conns+1)*processes))
	line("**Messages.** A lock and unlock that nobody waits for is two requests, two replies and a PUBLISH that reaches nobody. A waiter " +
		"adds one request, for its place in the queue, and one message, which says that it has the lock; a release reaches the next " +
		"waiter only, however many there are (`cd bench && GOWORK=off go run . -only waiting`).")
	line("**A Redis Cluster.** The slot of the key, or of a `{tag}` in prefix or path, chooses the node, so paths spread by their hash and "+
		"each master adds its %s locks and unlocks a second. Messages to waiters stay in their shard (SPUBLISH). What does not spread is "+
		"the PUBLISH that Java waits for: in a cluster every node passes it on to all others; `WithWakeup(WakeupPoll)` publishes nothing.", digits(1e9/pair))
	line("**Where it ends.** At one hot path, whose sections follow each other, and at the connections of one node. Not at the number of paths, " +
		"of held locks or of waiters: those only add memory and renewals.")
}
