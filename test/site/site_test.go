package site

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/require"
)

const (
	root       = "../.."
	dist       = root + "/.site/dist"
	repository = "https://github.com/lockregistry/lockregistry/"
	limit      = time.Minute // for anything: the machine may be busy
)

// site serves the built site as GitHub Pages does: an address without an ending is a page.
func site(t *testing.T) (address string, pages map[string]string) {
	t.Helper()
	pages = map[string]string{}
	err := filepath.WalkDir(dist, func(file string, _ fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(file, ".html") || strings.HasSuffix(file, "404.html") {
			return err
		}
		text, err := os.ReadFile(file)
		name, _ := filepath.Rel(dist, strings.TrimSuffix(file, ".html"))
		pages["/"+strings.TrimSuffix(filepath.ToSlash(name), "index")] = string(text)
		return err
	})
	require.NoError(t, err, "make docs builds it")
	require.Greater(t, len(pages), 15)
	files := http.FileServer(http.Dir(dist))
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if _, is := pages[r.URL.Path]; is && !strings.HasSuffix(r.URL.Path, "/") {
			r.URL.Path += ".html"
		}
		files.ServeHTTP(w, r)
	}))
	t.Cleanup(server.Close)
	return server.URL, pages
}

var (
	href = regexp.MustCompile(`(?:href|src)="([^"]+)"`)
	id   = regexp.MustCompile(`\bid="([^"]+)"`)
)

// Each link leads to a page, to one of its headings, or to a file of the repository.
func TestLinks(t *testing.T) {
	t.Parallel()
	_, pages := site(t)
	checked := 0
	for from, text := range pages {
		for _, match := range href.FindAllStringSubmatch(text, -1) {
			checked++
			if err := leads(from, match[1], pages); err != nil {
				t.Errorf("%s: %s: %v", from, match[1], err)
			}
		}
	}
	require.Greater(t, checked, 500)
	for _, wrong := range []string{"/nowhere", "/semantics#nowhere", "#nowhere", repository + "blob/main/nowhere.md"} {
		require.Error(t, leads("/semantics", wrong, pages), wrong)
	}
}

func leads(from, link string, pages map[string]string) error {
	link = strings.ReplaceAll(link, "&amp;", "&")
	if file, is := strings.CutPrefix(link, repository); is {
		_, name, _ := strings.Cut(file, "/main/")
		name, _, _ = strings.Cut(name, "#")
		_, err := os.Stat(filepath.Join(root, name))
		return err
	}
	if strings.Contains(link, "://") || strings.HasPrefix(link, "mailto:") || strings.HasPrefix(link, "data:") ||
		link+"/" == repository {
		return nil
	}
	to, anchor, _ := strings.Cut(link, "#")
	switch {
	case to == "":
		to = from
	case !strings.HasPrefix(to, "/"):
		to = path.Join(path.Dir(from), to)
	}
	text, is := pages[to]
	if !is {
		_, err := os.Stat(filepath.Join(dist, to))
		return err
	}
	for _, match := range id.FindAllStringSubmatch(text, -1) {
		if match[1] == anchor {
			return nil
		}
	}
	if anchor != "" {
		return errors.New("there is no such heading")
	}
	return nil
}

// browser starts Chromium.
func browser(t *testing.T) context.Context {
	t.Helper()
	program := os.Getenv("LOCKREGISTRY_CHROMIUM")
	for _, name := range []string{"chromium-headless-shell", "chromium", "chromium-browser", "google-chrome"} {
		if found, err := exec.LookPath(name); program == "" && err == nil {
			program = found
		}
	}
	require.NotEmpty(t, program, "scripts/ensure-chromium.sh installs Chromium")
	allocator, stop := chromedp.NewExecAllocator(t.Context(), append(chromedp.DefaultExecAllocatorOptions[:],
		chromedp.ExecPath(program), chromedp.NoSandbox, chromedp.WSURLReadTimeout(2*limit))...) // as root, in a container
	t.Cleanup(stop)
	ctx, quit := chromedp.NewContext(allocator)
	t.Cleanup(quit)
	require.NoError(t, chromedp.Do(ctx))
	return ctx
}

func value[T any](ctx context.Context, t *testing.T, script string) T {
	t.Helper()
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	result, err := chromedp.Run(ctx, chromedp.Evaluate[T](script, chromedp.EvalAwaitPromise))
	require.NoError(t, err, "%.200s", script)
	return result
}

func do(ctx context.Context, t *testing.T, actions ...chromedp.Action[chromedp.Void]) {
	t.Helper()
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	require.NoError(t, chromedp.Do(ctx, actions...))
}

// On a phone nothing is wider than the screen, and axe-core finds no accessibility faults, in light and in dark mode.
func TestPages(t *testing.T) {
	t.Parallel()
	address, pages := site(t)
	ctx := browser(t)
	axe, err := os.ReadFile(filepath.Join(root, ".axe", "axe.min.js"))
	require.NoError(t, err, "scripts/ensure-axe.sh fetches it")
	for _, look := range []struct {
		width  int64
		scheme string
	}{{390, "light"}, {1280, "dark"}} {
		do(ctx, t, chromedp.EmulateViewport(look.width, 900))
		_, err := chromedp.Call(ctx, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{
			Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: look.scheme}},
		})
		require.NoError(t, err)
		for name := range pages {
			do(ctx, t, chromedp.Navigate(address+name))
			where := fmt.Sprintf("%s, %d px, %s", name, look.width, look.scheme)
			require.Equal(t, look.scheme == "dark", value[bool](ctx, t, `document.documentElement.classList.contains("dark")`), where)
			if wide := value[int64](ctx, t, `document.documentElement.scrollWidth`); wide > look.width {
				t.Errorf("%s: it is %d px wide", where, wide)
			}
			found := value[[]string](ctx, t, string(axe)+`;
				axe.run(document, {resultTypes: ["violations"]}).then((r) => r.violations.map(
					(v) => v.impact + " " + v.id + ": " + v.nodes.slice(0, 3).map((n) => n.html + " " + n.failureSummary).join("; ")))`)
			for _, one := range found {
				t.Errorf("%s: %s", where, one)
			}
		}
	}
}

// The search finds text in all pages.
func TestSearch(t *testing.T) {
	t.Parallel()
	address, _ := site(t)
	ctx := browser(t)
	do(ctx, t, chromedp.EmulateViewport(1280, 900), chromedp.Navigate(address+"/"))
	found := value[string](ctx, t, `(async () => {
		const until = async (look) => {
			for (;;) {
				const it = look();
				if (it) return it;
				await new Promise((r) => setTimeout(r, 50));
			}
		};
		const input = await until(() => { // the button does nothing until the page's program has started
			const box = document.querySelector(".VPLocalSearchBox input");
			if (!box) document.querySelector(".VPNavBarSearch button")?.click();
			return box;
		});
		input.value = "deposed";
		input.dispatchEvent(new Event("input"));
		return (await until(() => document.querySelector(".VPLocalSearchBox .result"))).getAttribute("href");
	})()`)
	require.Contains(t, found, "/clusters")
}
