package main

import (
	"fmt"
	"io"
	"strings"
	"unicode/utf8"
)

// grid is a table as text: the first line names the columns.
type grid [][]string

// table shows a result: for each contender the median of each metric, the interquartile range of the first metric, and the
// ratios of the compared ones.
func (r *result) table() grid {
	head := []string{""}
	for i, m := range r.metrics {
		head = append(head, m.name)
		if i == 0 {
			head = append(head, "middle half")
		}
	}
	for _, m := range r.metrics {
		if !m.compared {
			continue
		}
		if base, ok := r.floorRow(); ok {
			head = append(head, m.name+" / "+base.contender)
		}
		if best, ok := r.bestPeer(m); ok {
			head = append(head, fmt.Sprintf("%s / %s", m.name, best.contender))
		}
	}
	lines := grid{head}
	for _, row := range r.rows {
		line := []string{row.contender}
		for i, m := range r.metrics {
			line = append(line, m.unit.write(row.median(m.name)))
			if i == 0 {
				low, high := spread(row.values[m.name])
				line = append(line, m.unit.write(low)+" … "+m.unit.write(high))
			}
		}
		for _, m := range r.metrics {
			if !m.compared {
				continue
			}
			if base, ok := r.floorRow(); ok {
				line = append(line, fine(median(against(row, base, m))))
			}
			if best, ok := r.bestPeer(m); ok {
				line = append(line, fine(median(against(row, best, m))))
			}
		}
		lines = append(lines, line)
	}
	return lines
}

// print writes the grid in columns: the first and the last are aligned left, figures right.
func (g grid) print(w io.Writer) {
	widths := make([]int, len(g[0]))
	for _, line := range g {
		for i, cell := range line {
			widths[i] = max(widths[i], utf8.RuneCountInString(cell))
		}
	}
	for _, line := range g {
		var text strings.Builder
		for i, cell := range line {
			gap := strings.Repeat(" ", widths[i]-utf8.RuneCountInString(cell))
			switch {
			case i == 0:
				text.WriteString(cell + gap)
			case leftAligned(g[0][i]):
				text.WriteString("  " + cell + gap)
			default:
				text.WriteString("  " + gap + cell)
			}
		}
		fmt.Fprintln(w, strings.TrimRight(text.String(), " "))
	}
}

// markdown writes the grid as a table of a Markdown page.
func (g grid) markdown(w io.Writer) {
	for n, line := range g {
		fmt.Fprintf(w, "| %s |\n", strings.Join(line, " | "))
		if n == 0 {
			rule := make([]string, len(line))
			for i := range line {
				rule[i] = "---:"
				if i == 0 || leftAligned(line[i]) {
					rule[i] = "---"
				}
			}
			fmt.Fprintf(w, "| %s |\n", strings.Join(rule, " | "))
		}
	}
}

func leftAligned(column string) bool {
	return column == "holds" || column == "best peer" || column == "again with"
}
