// Package docs tests the pages of this repository: their code compiles, their commands run, their links lead somewhere.
package docs

import (
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// root is the repository.
const root = ".."

// page is a Markdown file.
type page struct {
	path string // from the root
	text string
}

// block is a piece of code in a page.
type block struct {
	page     page
	line     int // of its first line
	language string
	text     string
}

// walk calls do for each file of the repository with that ending. Folders that git does not have, or that begin with a dot, do
// not count.
func walk(t *testing.T, ending string, do func(path, text string)) {
	t.Helper()
	require.NoError(t, filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if name := entry.Name(); entry.IsDir() && (name == "target" || strings.HasPrefix(name, ".") && name != root) {
			return filepath.SkipDir
		}
		if entry.IsDir() || !strings.HasSuffix(path, ending) {
			return nil
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		path, err = filepath.Rel(root, path)
		do(filepath.ToSlash(path), string(text))
		return err
	}))
}

func pages(t *testing.T) (all []page) {
	t.Helper()
	walk(t, ".md", func(path, text string) { all = append(all, page{path, text}) })
	require.NotEmpty(t, all)
	return all
}

// blocks returns the code of a language in all pages.
func blocks(t *testing.T, language string) (all []block) {
	t.Helper()
	for _, p := range pages(t) {
		for _, b := range p.blocks() {
			if b.language == language {
				all = append(all, b)
			}
		}
	}
	require.NotEmpty(t, all)
	return all
}

// blocks returns the code of the page, which stands between fences.
func (p page) blocks() (all []block) {
	inside, current := false, block{}
	for i, line := range strings.Split(p.text, "\n") {
		language, fence := strings.CutPrefix(line, "```")
		switch {
		case fence && inside:
			all = append(all, current)
			inside = false
		case fence:
			inside, current = true, block{page: p, line: i + 2, language: strings.TrimSpace(language)}
		case inside:
			current.text += line + "\n"
		}
	}
	return all
}
