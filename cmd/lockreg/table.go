package main

import (
	"io"
	"os"
	"strings"
	"unicode/utf8"

	"github.com/lockregistry/lockregistry/cmd/lockreg/internal/printable"
)

// table aligns columns of text. On a terminal it is no wider than that: the widest columns are cut, except the one that people
// copy.
type table struct {
	to    io.Writer
	width int // of the terminal; 0: there is none
	rows  [][]string
	whole string // the head of a column that is not cut
}

const (
	between = "  "
	narrow  = 8 // a column is not cut to less
	cut     = "…"
)

func (a *app) table(head ...string) *table {
	t := &table{to: a.out, width: a.width}
	if file, ok := a.out.(*os.File); ok && t.width == 0 {
		t.width = widthOf(file)
	}
	if len(head) > 0 {
		t.row(head...)
	}
	return t
}

func (t *table) row(cells ...string) {
	for i, cell := range cells {
		cells[i] = printable.Text(cell) // no tab or line end is left
	}
	t.rows = append(t.rows, cells)
}

// Flush prints the table. A column with nothing in it is left out.
func (t *table) Flush() error {
	widths := t.fit()
	var b strings.Builder
	for n, cells := range t.rows {
		var line strings.Builder
		for i, cell := range cells {
			if widths[i] == 0 {
				continue
			}
			if length := utf8.RuneCountInString(cell); length > widths[i] {
				cell = string([]rune(cell)[:widths[i]-1]) + cut
			} else {
				cell += strings.Repeat(" ", widths[i]-length)
			}
			line.WriteString(cell + between)
		}
		b.WriteString(strings.TrimRight(line.String(), " ") + "\n")
		t.rows[n] = nil
	}
	t.rows = nil
	_, err := io.WriteString(t.to, b.String())
	return err
}

// fit chooses how wide each column is.
func (t *table) fit() (widths []int) {
	total, keep := 0, -1
	for n, cells := range t.rows {
		for i, cell := range cells {
			if i == len(widths) {
				widths = append(widths, 0)
			}
			if n == 0 && t.whole != "" && cell == t.whole {
				keep = i
			}
			if n > 0 || cell == "" || len(t.rows) == 1 || t.filled(i) {
				widths[i] = max(widths[i], utf8.RuneCountInString(cell))
			}
		}
	}
	for _, width := range widths {
		if width > 0 {
			total += width + len(between)
		}
	}
	for total -= len(between); t.width > 0 && total > t.width; total-- {
		widest := -1
		for i, width := range widths {
			if i != keep && width > narrow && (widest < 0 || width > widths[widest]) {
				widest = i
			}
		}
		if widest < 0 {
			break
		}
		widths[widest]--
	}
	return widths
}

// filled reports whether a column has anything below its head.
func (t *table) filled(column int) bool {
	for _, cells := range t.rows[1:] {
		if column < len(cells) && cells[column] != "" {
			return true
		}
	}
	return false
}
