package docs

import (
	"strings"
	"testing"
)

// The README is read by whoever has not decided yet.
const fewestInReadme, mostInReadme = 700, 1100

// TestWordsOfReadme: the README is short, and says enough. Words are counted as wc does.
func TestWordsOfReadme(t *testing.T) {
	if n := len(strings.Fields(read(t, "README.md"))); n < fewestInReadme || n > mostInReadme {
		t.Errorf("README.md has %d words, not %d to %d", n, fewestInReadme, mostInReadme)
	}
}
