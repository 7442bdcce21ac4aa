package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

const (
	generatedBegin = "<!-- generated: begin -->"
	generatedEnd   = "<!-- generated: end -->"
)

// write puts the results into DIR/performance.md, between the markers, and the charts into DIR/performance. What a person
// wrote around the markers stays.
func write(dir string, around surroundings, results []*result) error {
	charts, err := draw(filepath.Join(dir, "performance"), results)
	if err != nil {
		return err
	}
	file := filepath.Join(dir, "performance.md")
	before, after := "# Performance\n\n", "\n"
	old, err := os.ReadFile(file) //nolint:gosec // the page that the caller named
	switch {
	case os.IsNotExist(err):
	case err != nil:
		return fmt.Errorf("the page so far: %w", err)
	default:
		head, rest, begins := strings.Cut(string(old), generatedBegin)
		_, tail, ends := strings.Cut(rest, generatedEnd)
		if !begins || !ends {
			return fmt.Errorf("%s has no %s and %s to write between", file, generatedBegin, generatedEnd)
		}
		before, after = head, tail
	}
	var page strings.Builder
	fmt.Fprintf(&page, "%s%s\n\n", before, generatedBegin)
	generate(&page, around, results, charts)
	fmt.Fprintf(&page, "\n%s%s", generatedEnd, after)
	if err := os.WriteFile(file, []byte(page.String()), 0o644); err != nil { //nolint:gosec // a page for everybody
		return fmt.Errorf("write the page: %w", err)
	}
	return nil
}

func generate(page *strings.Builder, around surroundings, results []*result, charts []chart) {
	page.WriteString("## In ten seconds\n\n")
	for _, line := range summary(results) {
		fmt.Fprintf(page, "%s\n", line)
	}
	page.WriteString("- See it yourself: `make bench-quick`, about four minutes; `make bench`, about twelve, writes this part of the page.\n\n")
	for _, line := range around {
		fmt.Fprintf(page, "- %s: %s\n", line.what, line.value)
	}
	page.WriteString("\nRatios are medians of the ratios of single rounds, with the middle half of them in brackets: they are steadier than the " +
		"figures. The best peer is the one with the best median of that figure.\n\n## The targets\n\n")
	verdicts(results).markdown(page)
	page.WriteString("\n## The charts\n\n")
	for _, c := range charts {
		fmt.Fprintf(page, "![%s](performance/%s)\n\n", c.title, c.file)
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

// reproduce is the command that measures a result again.
func reproduce(result string) string {
	family := ""
	for _, sc := range scenarios {
		if strings.HasPrefix(result, sc.name) && len(sc.name) > len(family) {
			family = sc.name
		}
	}
	return fmt.Sprintf("`cd bench && GOWORK=off go run . -only %s`", family)
}

// summary is what a reader wants to know first.
func summary(results []*result) []string {
	var faster, not []string
	for _, t := range targets {
		for _, r := range results {
			own, ran := r.row(thisLibrary.name)
			if r.scenario != t.scenario || !ran || strings.HasPrefix(t.title, "the same") {
				continue
			}
			line := t.verdict(r, own)
			text := fmt.Sprintf("%s: %s; to the floor %s, to the best peer, %s, %s", line[0], line[1], bare(line[3]), line[5], bare(line[6]))
			if line[len(line)-1] == "yes" {
				faster = append(faster, text)
			} else {
				not = append(not, text)
			}
		}
	}
	lines := []string{"**Where the targets hold**"}
	for _, text := range faster {
		lines = append(lines, "  - "+text)
	}
	lines = append(lines, "- **Where not**")
	for _, text := range not {
		lines = append(lines, "  - "+text)
	}
	if len(not) == 0 {
		lines = append(lines, "  - nowhere in this run")
	}
	lines[0] = "- " + lines[0]
	return lines
}

// bare is a ratio without its spread.
func bare(ratio string) string {
	ratio, _, _ = strings.Cut(ratio, " (")
	if ratio == "–" {
		return ratio
	}
	return "× " + ratio
}

// onPaper says what the figures mean beyond one machine.
func onPaper(page *strings.Builder, results []*result) {
	figure := func(scenario, metric string) float64 {
		for _, r := range results {
			if own, ok := r.row(thisLibrary.name); ok && r.scenario == scenario {
				return own.median(metric)
			}
		}
		return 0
	}
	pair, renewal := figure("paths-64", serverCPU.name), figure("held", renewalServerCPU.name)
	inRedis, inProcess := figure("held", serverBytes.name), figure("held", bytesPerLock.name)
	conns, cached := figure("held", connections.name), figure("cached", cachedBytes.name)
	own := figure("held", renewalCPU.name)
	if pair == 0 || renewal == 0 {
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
