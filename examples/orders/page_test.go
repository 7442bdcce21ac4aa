package orders

import (
	"os"
	"strings"
	"testing"
)

// Each block of Go in docs/testing.md stands in this package as it is there, so it compiles.
func TestPage(t *testing.T) {
	page := read(t, "../../docs/testing.md")
	code := read(t, "handler.go") + read(t, "handler_test.go")
	blocks := strings.Split(page, "```go\n")[1:]
	if len(blocks) == 0 {
		t.Error("the page has no Go")
	}
	for _, rest := range blocks {
		block, _, _ := strings.Cut(rest, "```")
		if !strings.Contains(code, block) {
			t.Errorf("not in this package:\n%s", block)
		}
	}
}

func read(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}
