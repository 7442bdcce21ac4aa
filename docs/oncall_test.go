package docs

import (
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// A line of a log, as the library and lockreg write it. Messages that a variable holds are in the calls of vouch.go alone, which
// stand in the page, too.
var (
	logged      = regexp.MustCompile(`slog\.Level(Info|Warn|Error),\s*"([^"]+)"`)
	loggedShort = regexp.MustCompile(`(?:log|\))\.(Info|Warn|Error)\("([^"]+)"`)
)

// The page for an operator has each line that the library, lockreg's page and its exporter log, with its level, and no other.
func TestOnCall_HasEachLogLine(t *testing.T) {
	page := read(t, "docs/oncall.md")
	lines := map[string]bool{}
	walk(t, ".go", func(name, text string) {
		switch {
		case strings.HasSuffix(name, "_test.go"), strings.HasPrefix(name, "test/"), strings.HasPrefix(name, "bench/"),
			strings.HasPrefix(name, "examples/"), strings.HasPrefix(name, "contrib/"), strings.Contains(name, "redistest"):
			return
		case strings.HasPrefix(name, "cmd/") && !strings.HasPrefix(name, "cmd/lockreg/page/") &&
			!strings.HasPrefix(name, "cmd/lockreg/exporter/") && name != "cmd/lockreg/secrets.go":
			return // lockreg run tells whoever has started it
		}
		for _, match := range append(logged.FindAllStringSubmatch(text, -1), loggedShort.FindAllStringSubmatch(text, -1)...) {
			lines[strings.ToUpper(match[1])+" `"+match[2]+"`"] = true
		}
	})
	require.Greater(t, len(lines), 30, "they are found")
	for line := range lines {
		if !strings.Contains(page, line) {
			t.Errorf("docs/oncall.md does not have %s", line)
		}
	}
	for _, match := range regexp.MustCompile("(?m)^\\| (INFO|WARN|ERROR) `([^`]+)`").FindAllStringSubmatch(page, -1) {
		if line := match[1] + " `" + match[2] + "`"; !lines[line] && !said(t, match[2]) {
			t.Errorf("docs/oncall.md has %s, which nobody logs", line)
		}
	}
}

// said reports whether a text stands in the source, in whatever call.
func said(t *testing.T, text string) (found bool) {
	t.Helper()
	walk(t, ".go", func(name, source string) {
		found = found || !strings.HasSuffix(name, "_test.go") && strings.Contains(source, `"`+text)
	})
	return found
}

// Each banner of the page of lockreg, and each alert, is explained.
func TestOnCall_HasEachBannerAndAlert(t *testing.T) {
	page := read(t, "docs/oncall.md")
	stuck := read(t, "cmd/lockreg/page/assets/stuck.js") + read(t, "cmd/lockreg/page/assets/app.js")
	title := regexp.MustCompile("(?:-title\"\\), (?:found\\.length === 1 \\? )?[\"`]|: `)([A-Z][a-z ]+)[:`\"]")
	titles := title.FindAllStringSubmatch(stuck, -1)
	require.GreaterOrEqual(t, len(titles), 6, "%v", titles)
	for _, match := range titles {
		if name := strings.TrimSpace(match[1]); name != "Locks" && !strings.Contains(page, "| **"+name+"** |") {
			t.Errorf("docs/oncall.md does not have the banner %q", name)
		}
	}
	alerts := regexp.MustCompile(`- alert: (\w+)`).FindAllStringSubmatch(read(t, "deploy/prometheus/rules.yml"), -1)
	require.NotEmpty(t, alerts)
	for _, match := range alerts {
		if !strings.Contains(page, "`"+match[1]+"`") {
			t.Errorf("docs/oncall.md does not have the alert %s", match[1])
		}
	}
}
