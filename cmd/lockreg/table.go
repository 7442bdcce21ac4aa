package main

import (
	"cmp"
	"io"
	"os"
	"strings"
	"unicode/utf8"

	"github.com/lockregistry/lockregistry/cmd/lockreg/internal/printable"
)

// table aligns columns of text. On a terminal it is no wider than that: the last column, if people copy it, stands in lines of
// its own where it does not fit, and the widest of the others are cut.
type table struct {
	to     io.Writer
	width  int // of the terminal; 0: there is none
	rows   [][]string
	copied bool // the last column, which each row has, is not cut
}

const (
	between = "  "
	narrow  = 8 // a column is not cut to less
	cut     = "…"
)

func (a *app) table(head ...string) *table {
	t := &table{to: a.out, width: a.width}
	if t.width == 0 {
		t.width = a.terminalWidth()
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
	var apart []string // the cells of the last column, if they have lines of their own
	if t.copied && t.width > 0 && total(t.widths()) > t.width {
		for n, cells := range t.rows {
			last := len(cells) - 1
			apart = append(apart, cells[last])
			t.rows[n] = cells[:last]
		}
	}
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
		if apart != nil {
			b.WriteString(between + apart[n] + "\n")
		}
		t.rows[n] = nil
	}
	t.rows = nil
	_, err := io.WriteString(t.to, b.String())
	return err
}

// widths returns how wide each column is when nothing is cut.
func (t *table) widths() (widths []int) {
	for n, cells := range t.rows {
		for i, cell := range cells {
			if i == len(widths) {
				widths = append(widths, 0)
			}
			if n > 0 || cell == "" || len(t.rows) == 1 || t.filled(i) {
				widths[i] = max(widths[i], utf8.RuneCountInString(cell))
			}
		}
	}
	return widths
}

// total returns how wide a line is.
func total(widths []int) (n int) {
	for _, width := range widths {
		if width > 0 {
			n += width + len(between)
		}
	}
	return n - len(between)
}

// fit chooses how wide each column is.
func (t *table) fit() []int {
	widths := t.widths()
	for over := total(widths); t.width > 0 && over > t.width; over-- {
		widest := -1
		for i, width := range widths {
			if width > narrow && (widest < 0 || width > widths[widest]) {
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

// terminalWidth is the width of the output, if that is a terminal; else 0.
func (a *app) terminalWidth() int {
	if file, ok := a.out.(*os.File); ok {
		return widthOf(file)
	}
	return 0
}

// folded breaks a line that is wider than the terminal.
func (a *app) folded(text string) string {
	width := cmp.Or(a.width, a.terminalWidth())
	if width == 0 {
		return text
	}
	return wrapped(text, max(width-2*len(between), narrow), between)
}
