package docs

import (
	"strings"
	"testing"
)

// TestTables: the line between the head of a table and its rows stands alone. If lines are joined, the table is shown as text.
// Each row has as many cells as the head: others are not shown.
func TestTables(t *testing.T) {
	for _, p := range pages(t) {
		head := 0 // the bars of the table's head; 0: this is outside of a table
		for line := range strings.SplitSeq(p.prose(), "\n") {
			if strings.Contains(line, "| --- |") && strings.Trim(line, " |-:") != "" {
				t.Errorf("%s: a table in one line: %s", p.path, line)
			}
			row := strings.ReplaceAll(strings.TrimSpace(line), `\|`, "")
			switch bars := strings.Count(row, "|"); {
			case !strings.HasPrefix(row, "|"):
				head = 0
			case head == 0:
				head = bars
			case bars != head:
				t.Errorf("%s: %d cells in a table of %d: %s", p.path, bars-1, head-1, line)
			}
		}
	}
}
