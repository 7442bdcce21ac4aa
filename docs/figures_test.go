package docs

import (
	"encoding/csv"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// table returns the lines of a table of the repository, below its head.
func table(t *testing.T, name string) [][]string {
	t.Helper()
	lines, err := csv.NewReader(strings.NewReader(read(t, name))).ReadAll()
	require.NoError(t, err)
	return lines[1:]
}

// measured are the figures of bench/results/figures.csv: by the scenario and the contender.
func measured(t *testing.T) map[string]map[string]bool {
	t.Helper()
	all := map[string]map[string]bool{}
	for _, line := range table(t, "bench/results/figures.csv") {
		of := line[0] + " " + line[1]
		if all[of] == nil {
			all[of] = map[string]bool{}
		}
		all[of][line[3]] = true
	}
	return all
}

// has reports whether a scenario of that family gave the contender that figure.
func has(figures map[string]map[string]bool, family, contender, figure string) bool {
	for of, values := range figures {
		if strings.HasPrefix(of, family) && strings.HasSuffix(of, " "+contender) && values[figure] {
			return true
		}
	}
	return false
}

// measures reports whether a contender takes part in scenarios of that family.
func measures(figures map[string]map[string]bool, family, contender string) bool {
	for of := range figures {
		if strings.HasPrefix(of, family) && strings.HasSuffix(of, " "+contender) {
			return true
		}
	}
	return false
}

var (
	ownFigure  = regexp.MustCompile(`^- \*\*(.+?)\*\*.* -only ([\w-]+)`)
	peerFigure = regexp.MustCompile(`the best peer, (\w+): (.+?) \(`)
	again      = regexp.MustCompile("`-only ([\\w-]+)`")
)

// TestFigures: what README.md and these two pages say of the last run stands in its tables, of the scenario that they name.
func TestFigures(t *testing.T) {
	figures := measured(t)
	checked := 0
	check := func(page, family, contender, figure string) {
		checked++
		if !has(figures, family, contender, figure) {
			t.Errorf("%s: %s of %s is no figure of -only %s", page, figure, contender, family)
		}
	}
	for line := range strings.Lines(read(t, "README.md")) {
		own := ownFigure.FindStringSubmatch(line)
		if own == nil {
			continue
		}
		check("README.md", own[2], "lockregistry", own[1])
		if peer := peerFigure.FindStringSubmatch(line); peer != nil {
			check("README.md", own[2], peer[1], peer[2])
		}
	}
	for _, page := range []string{"docs/performance.md", "docs/comparison.md"} {
		var head []string
		before := checked
		for line := range strings.Lines(read(t, page)) {
			cells := strings.Split(strings.Trim(strings.TrimSpace(line), "| "), " | ")
			scenario := again.FindStringSubmatch(line)
			switch {
			case strings.Contains(line, "| again with |"):
				head = append([]string{""}, cells...)
			case scenario != nil && head != nil && strings.HasPrefix(line, "|"):
				require.Len(t, cells, len(head))
				for i := 1; i < len(cells)-1; i++ {
					if cells[i] == "–" && !measures(figures, scenario[1], head[i]) { // it takes no part
						continue
					}
					check(page, scenario[1], head[i], cells[i])
				}
			}
		}
		require.Greater(t, checked, before+15, page)
	}
}

// TestFailoverFigures: the table of docs/clusters.md has lines of that of the long run.
func TestFailoverFigures(t *testing.T) {
	page, shown := read(t, "docs/clusters.md"), 0
	for _, line := range table(t, "test/failover/results.csv") {
		if strings.Contains(page, "| "+strings.Join([]string{line[0], line[5], line[6], line[7]}, " | ")+" |\n") {
			shown++
		}
	}
	_, rest, _ := strings.Cut(page, "| event | promoted after |")
	rest, _, _ = strings.Cut(rest, "\n\n")
	require.Equal(t, strings.Count(rest, "\n")-1, shown)
}

// TestFleetFigures: the tables of docs/scale.md have the figures of those that bench-fleet has written.
func TestFleetFigures(t *testing.T) {
	page, checked := strings.Split(read(t, "docs/scale.md"), "\n"), 0
	for _, deployment := range []string{"single", "sentinel", "cluster"} {
		for _, line := range table(t, "bench/results/fleet-"+deployment+".csv") {
			if line[1] == "the run" {
				continue
			}
			checked++
			if !slices.ContainsFunc(page, func(shown string) bool {
				return strings.HasPrefix(shown, "| "+line[2]+" | ") && strings.Contains(shown, " | "+line[3]+" |")
			}) {
				t.Errorf("%s: %s of %s, %s, is not on docs/scale.md", line[0], line[3], line[1], line[2])
			}
		}
	}
	require.Greater(t, checked, 100)
}
