package docs

import (
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

var (
	link    = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	heading = regexp.MustCompile(`(?m)^#{1,6} +(.+?) *$`)
	dropped = regexp.MustCompile(`[^\p{L}\p{N} _-]`)
)

// anchors are the names that the page's headings have in addresses, as GitHub makes them.
func (p page) anchors() map[string]bool {
	all := map[string]bool{}
	for _, match := range heading.FindAllStringSubmatch(p.prose(), -1) {
		name := dropped.ReplaceAllString(strings.ToLower(match[1]), "")
		all[strings.ReplaceAll(name, " ", "-")] = true
	}
	return all
}

// prose is the page without its code.
func (p page) prose() string {
	text := p.text
	for _, b := range p.blocks() {
		text = strings.Replace(text, "\n"+b.text+"```", "\n```", 1)
	}
	return text
}

// TestLinks: each link within the repository leads to a file that is there, and to a heading of it.
func TestLinks(t *testing.T) {
	all := pages(t)
	byPath := map[string]page{}
	for _, p := range all {
		byPath[p.path] = p
	}
	checked := 0
	for _, p := range all {
		for _, match := range link.FindAllStringSubmatch(p.prose(), -1) {
			file, anchor, _ := strings.Cut(match[1], "#")
			if strings.Contains(file, "://") {
				continue
			}
			checked++
			target := p.path
			if file != "" {
				target = path.Join(path.Dir(p.path), file)
			}
			if _, err := os.Stat(filepath.Join(root, target)); err != nil {
				t.Errorf("%s: %s leads nowhere", p.path, match[1])
				continue
			}
			if other, is := byPath[target]; anchor != "" && (!is || !other.anchors()[anchor]) {
				t.Errorf("%s: %s has no such heading", p.path, match[1])
			}
		}
	}
	if checked == 0 {
		t.Error("no links")
	}
}
