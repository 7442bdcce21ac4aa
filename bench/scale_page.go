package main

import (
	"encoding/csv"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"
)

// fleetFigures are the figures of a fleet, in their order.
type fleetFigures []fleetFigure

type fleetFigure struct{ part, name, value string }

func (w *fleetWork) add(part, name string, in unit, value float64) {
	w.figures = append(w.figures, fleetFigure{part, name, in.write(value)})
}

func (f fleetFigures) grid() grid {
	lines := grid{{"", "", ""}}
	for _, one := range f {
		lines = append(lines, []string{one.part, one.name, one.value})
	}
	return lines
}

func fleetHead() grid { return grid{{"fleet", "part", "figure", "value"}} }

// keep puts the figures into the table of their deployment, in place of those of an earlier run.
func (f fleetFigures) keep(dir string, run fleetRun) error {
	if err := os.MkdirAll(dir, 0o755); err != nil { //nolint:gosec // a folder for everybody
		return fmt.Errorf("make a folder for the tables: %w", err)
	}
	name := filepath.Join(dir, "fleet-"+run.deployment+".csv")
	lines, err := readTable(name)
	if err != nil && !os.IsNotExist(err) {
		return err
	}
	lines = slices.DeleteFunc(lines, func(line []string) bool { return line[0] == run.name })
	lines = append(lines, []string{run.name, "the run", "date", time.Now().UTC().Format(time.DateOnly)})
	lines = append(lines, []string{run.name, "the run", "machine", fmt.Sprintf("%s, %d cores", processor(), runtime.NumCPU())})
	for _, one := range f {
		lines = append(lines, []string{run.name, one.part, one.name, one.value})
	}
	place := func(line []string) int {
		return slices.IndexFunc(fleetRuns, func(r fleetRun) bool { return r.name == line[0] })
	}
	slices.SortStableFunc(lines, func(a, b []string) int { return place(a) - place(b) })
	return append(fleetHead(), lines...).csv(name)
}

// readTable reads a table's lines below its head.
func readTable(name string) (grid, error) {
	file, err := os.Open(name) //nolint:gosec // a table of the repository that the caller named
	if err != nil {
		return nil, err
	}
	defer func() { _ = file.Close() }()
	lines, err := csv.NewReader(file).ReadAll()
	if err != nil || len(lines) == 0 {
		return nil, fmt.Errorf("the table %s: %w", name, err)
	}
	return lines[1:], nil
}

// writeFleets writes the tables of docs/scale.md from those in bench/results.
func writeFleets(root string) error {
	var page strings.Builder
	for _, deployment := range []string{onSingle, onSentinel, onCluster} {
		lines, err := readTable(filepath.Join(root, "bench", "results", "fleet-"+deployment+".csv"))
		if os.IsNotExist(err) {
			continue
		}
		if err != nil {
			return err
		}
		fmt.Fprintf(&page, "### %s\n\n", deployments[deployment])
		besideEachOther(lines).markdown(&page)
		fmt.Fprintf(&page, "\n%s\n\n", days(lines))
	}
	page.WriteString("Measured by `make bench-fleet`. One column again: `cd bench && GOWORK=off go run . -only fleet-single-1000`, and so on.\n")
	return replace(filepath.Join(root, "docs", "scale.md"), page.String())
}

// besideEachOther gives each fleet a column.
func besideEachOther(lines grid) grid {
	var (
		fleets []string
		rows   [][2]string // part and figure
		values = map[[2]string]map[string]string{}
	)
	for _, line := range lines {
		if !slices.Contains(fleets, line[0]) {
			fleets = append(fleets, line[0])
		}
		row := [2]string{line[1], line[2]}
		if values[row] == nil {
			values[row] = map[string]string{}
			rows = append(rows, row)
		}
		values[row][line[0]] = line[3]
	}
	head := []string{""}
	for _, name := range fleets {
		head = append(head, columnOf(name, values))
	}
	table, part := grid{head}, ""
	for _, row := range rows {
		if row[0] == "the run" {
			continue
		}
		if row[0] != part {
			part = row[0]
			table = append(table, append([]string{"**" + part + "**"}, make([]string, len(fleets))...))
		}
		line := []string{row[1]}
		for _, name := range fleets {
			value, ok := values[row][name]
			if !ok {
				value = "–"
			}
			line = append(line, value)
		}
		table = append(table, line)
	}
	return table
}

// columnOf returns a page's name for a fleet.
func columnOf(name string, values map[[2]string]map[string]string) string {
	of := func(figure string) string { return values[[2]string{"the fleet", figure}][name] }
	i := slices.IndexFunc(fleetRuns, func(r fleetRun) bool { return r.name == name })
	if i < 0 {
		return name
	}
	column := of("registries") + " registries"
	if fleetRuns[i].processes > 0 {
		column = of("processes") + " processes"
	}
	if c := fleetRuns[i].contender; c != thisLibrary.name {
		column += ", " + c
	}
	return column
}

// days says when fleets ran, and where.
func days(lines grid) string {
	var said []string
	for _, figure := range []string{"date", "machine"} {
		for _, line := range lines {
			if line[1] == "the run" && line[2] == figure && !slices.Contains(said, line[3]) {
				said = append(said, line[3])
			}
		}
	}
	return strings.Join(said, "; ")
}
