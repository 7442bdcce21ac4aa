package main

import (
	"encoding/csv"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// writeTables writes all that was measured into a folder, as tables with commas.
func writeTables(dir string, results []*result) error {
	if err := os.MkdirAll(dir, 0o755); err != nil { //nolint:gosec // a folder for everybody
		return fmt.Errorf("make a folder for the tables: %w", err)
	}
	all := figuresTable()
	for _, r := range results {
		if len(r.rows) > 0 {
			all = append(all, melted(r.scenario, r.table())...)
		}
	}
	for file, table := range map[string]grid{
		"figures.csv":    all,
		"scenarios.csv":  scenariosTable(results),
		"contenders.csv": contendersTable(),
		"targets.csv":    verdicts(results),
	} {
		if err := table.csv(filepath.Join(dir, file)); err != nil {
			return err
		}
	}
	return nil
}

func figuresTable() grid { return grid{{"scenario", "contender", "figure", "value"}} }

// melted returns the table of a scenario with a line for each cell.
func melted(scenario string, table grid) (lines grid) {
	for _, line := range table[1:] {
		for i, cell := range line[1:] {
			lines = append(lines, []string{scenario, line[0], table[0][i+1], cell})
		}
	}
	return lines
}

// scenariosTable describes each scenario, with the notes on its figures.
func scenariosTable(results []*result) grid {
	lines := grid{{"scenario", "title", "how", "notes", "again with"}}
	for _, r := range results {
		again := strings.Trim(reproduce(r.scenario), "`")
		lines = append(lines, []string{r.scenario, r.title, r.how, strings.Join(r.notes, "\n"), again})
	}
	return lines
}

// contendersTable says how each contender is configured.
func contendersTable() grid {
	lines := grid{{"contender", "settings"}}
	for _, c := range contenders {
		lines = append(lines, []string{c.name, c.settings})
	}
	return lines
}

// csv writes the grid into a file.
func (g grid) csv(name string) error {
	var text strings.Builder
	if err := csv.NewWriter(&text).WriteAll(g); err != nil {
		return fmt.Errorf("the table %s: %w", name, err)
	}
	if err := os.WriteFile(name, []byte(text.String()), 0o644); err != nil { //nolint:gosec // a table for everybody
		return fmt.Errorf("write a table: %w", err)
	}
	return nil
}
