package docs

import (
	"strings"
	"testing"
)

// TestTables: the line between the head of a table and its rows stands alone. If lines are joined, the table is shown as text.
func TestTables(t *testing.T) {
	for _, p := range pages(t) {
		for line := range strings.SplitSeq(p.prose(), "\n") {
			if strings.Contains(line, "| --- |") && strings.Trim(line, " |-:") != "" {
				t.Errorf("%s: a table in one line: %s", p.path, line)
			}
		}
	}
}
