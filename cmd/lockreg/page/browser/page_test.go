package browser

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry/cmd/lockreg/page"
	"github.com/lockregistry/lockregistry/observe"
)

func me(*http.Request) (string, bool) { return "me", true }

// empty empties an input.
func empty(selector string) chromedp.Action[chromedp.Void] {
	return chromedp.Evaluate[chromedp.Void](fmt.Sprintf(`{
		const input = document.querySelector(%q);
		input.value = "";
		input.dispatchEvent(new Event("input"));
	}`, selector))
}

// A name is text, whatever is in it.
func TestNamesAreText(t *testing.T) {
	names := []string{
		`<img src=x onerror="document.title='gone'">`, `<script>document.title="gone"</script>`, `"><svg onload=alert(1)>`, `&lt;b&gt;`,
		`__proto__`, `constructor`,
	}
	source := &fake{}
	for _, name := range names {
		lock := made(name, 1)
		lock.Holders[0].Label, lock.Holders[0].Holder = label(name, 1, name), name
		lock.Waiters[0].Label = label(name, 1, name)
		source.set(lock)
	}
	source.deadlocks = []observe.Deadlock{{Waits: []observe.DeadlockWait{
		{Path: names[0], Owner: names[0], Holds: names, Label: label(names[0], 1, names[1])},
	}}}
	turned := "user\u202egnp.exe\x1b\u3164\u2800\ufe0f\u034f\u00a0"
	source.set(made(turned, 0))
	b := open(t, serve(t, source, page.WithTitle(names[0]), page.WithRelease(me)), 1200, 900)
	b.await(`document.querySelectorAll("#rows .row:not([hidden])").length === 7`)
	for _, name := range names {
		b.await(row(name))
	}
	b.await(row(`user\u{202e}gnp.exe\u{1b}\u{3164}\u{2800}\u{fe0f}\u{34f}\u{a0}`))
	b.text("#deadlock-list", names[0])
	for i := range 7 {
		b.click("#rows .row:nth-child(" + string(rune('1'+i)) + ")")
		b.await(`document.querySelectorAll("#holders button").length === 1`)
		b.click("#holders button")
		b.click("#confirm-no")
		b.click("#detail-close")
	}
	require.Zero(t, value[int](b, `document.querySelectorAll("body img, body script, [onload], [onerror]").length`))
	require.NotEqual(t, "gone", value[string](b, `document.title`))
	b.quiet()
}

// While there are many locks to read for the first time, the page says how many it has, and shows them.
func TestLongPassIsTold(t *testing.T) {
	source := &fake{}
	for i := range 200 {
		source.set(made(strconv.Itoa(i), 0))
	}
	source.slow.Store(true)
	b := open(t, serve(t, source), 1200, 900)
	b.await(`/^reading, [1-9][0-9]* locks so far, for /.test(document.querySelector("#age").textContent)`)
	b.await(`document.querySelector("#rows .row:not([hidden])")`)
	source.slow.Store(false)
	b.text("#age", "live, ")
	b.text("#count", "200 locks")
	b.quiet()
}

func TestFilter(t *testing.T) {
	source := &fake{}
	source.set(made("order:1", 2), made("order:2", 0), made("reorder:3", 1), made("cart:4", 0))
	other := made("cart:5", 0)
	other.Holders[0].Label = label("web-9", 1, "orderly")
	source.set(other)
	b := open(t, serve(t, source), 1200, 900)
	b.await(listed + ` === "order:1,reorder:3,cart:4,cart:5,order:2"`)
	b.do(chromedp.SendKeys(chromedp.CSS("#filter"), "ORDER"))
	b.await(listed + ` === "order:1,reorder:3,cart:5,order:2"`)
	b.text("#count", "4 of 5 locks")
	b.do(empty("#filter"), chromedp.SendKeys(chromedp.CSS("#filter"), "order"))
	b.click("#beginning")
	b.await(listed + ` === "order:1,order:2"`)
	source.set(made("order:0", 0), made("cart:7", 9)) // what comes later is filtered, too
	b.await(listed + ` === "order:1,order:0,order:2"`)
	b.do(empty("#filter"), chromedp.SendKeys(chromedp.CSS("#filter"), "none"))
	b.text("#empty", "No lock matches")
	b.quiet()
}

// Everything can be done by keys.
func TestKeyboard(t *testing.T) {
	source := &fake{}
	for _, path := range []string{"a", "b", "c"} {
		source.set(made(path, 0))
	}
	b := open(t, serve(t, source, page.WithRelease(me)), 1200, 900)
	b.await(row("c"))
	b.press("/", "/")
	b.await(`document.activeElement.id === "filter"`)
	b.await(`document.activeElement.value === ""`)
	b.press("Tab", "")
	b.press("Tab", "")
	b.await(`document.activeElement.id === "grid"`)
	chosen := `document.getElementById(document.activeElement.getAttribute("aria-activedescendant"))?.innerText.split("\n")[0]`
	b.await(chosen + `?.startsWith("a")`)
	b.press("ArrowDown", "")
	b.await(chosen + `?.startsWith("b")`)
	b.press("End", "")
	b.await(chosen + `?.startsWith("c")`)
	b.press("ArrowUp", "")
	b.press("Enter", "\r")
	b.text("#detail-path", "b")
	b.await(`document.querySelector("#holders button")`)
	b.press("Tab", "")
	b.await(`document.activeElement.textContent === "Release"`)
	b.press("Enter", "\r")
	b.await(`document.activeElement.id === "confirm-no"`) // nothing is released by pressing Enter twice
	b.press("Tab", "")
	b.press("Enter", "\r")
	b.text("#status", "Released: b")
	b.await(`!document.querySelector("#confirm").open`)
	b.press("Escape", "")
	b.await(`document.activeElement.id === "grid"`)
	b.await(`!` + row("b"))
	b.quiet()
}

func TestSignIn(t *testing.T) {
	source := &fake{}
	source.set(made("a", 0))
	const look, release = "00112233445566778899aabbccddeeff", "ffeeddccbbaa99887766554433221100"
	b := open(t, serve(t, source, page.WithTokens(look, release, false)), 1200, 900)
	b.signIn("wrong")
	b.text("#error", "not known")
	b.signIn(look)
	b.await(row("a"))
	b.click("#rows .row")
	b.text("#holders", "billing")
	require.Zero(t, value[int](b, `document.querySelectorAll("#holders button").length`), "the right to release is missing")
	code := value[int](b, `fetch("release", {method: "POST", headers: {"Content-Type": "application/json", "Lockreg-Request": "1"},
		body: JSON.stringify({path: "a", holder: "7f6f0f7a:1795278376064288"})}).then((r) => r.status)`)
	require.Equal(t, http.StatusForbidden, code)
	b.await(row("a"))
	b.click("#detail-close")

	b.click("#sign-in")
	b.signIn(release)
	b.await(row("a"))
	b.click("#rows .row")
	b.click("#holders button")
	b.click("#confirm-yes")
	b.text("#status", "Released: a")
	b.await(`!` + row("a"))
	b.text("#detail-facts", "Nobody holds it")
	b.click("#detail-close")
	b.click("#sign-out")
	b.await(`document.querySelector("#token")`)
}

func TestReleaseThatComesTooLate(t *testing.T) {
	source := &fake{}
	source.set(made("a", 0))
	b := open(t, serve(t, source, page.WithRelease(me)), 1200, 900)
	b.await(row("a"))
	b.click("#rows .row")
	b.click("#holders button")
	b.await(`document.querySelector("#confirm").open`)
	b.text("#confirm-text", "which asked for it ")
	source.late.Store(true)
	b.click("#confirm-yes")
	b.text("#confirm-error", "no longer has it")
}

// The page says how old it is, and comes back by itself.
func TestServerIsAwayForAWhile(t *testing.T) {
	source := &fake{}
	source.set(made("a", 0), made("b", 0))
	h := handler(t, source)
	server := listen(t, h, free(t))
	address := server.Addr
	b := open(t, "http://"+address+"/", 1200, 900)
	b.await(row("a"))
	b.text("#age", "live")
	require.NoError(t, server.Close())
	b.text("#age", "connection lost")
	source.mu.Lock()
	delete(source.locks, "a")
	source.mu.Unlock()
	source.set(made("c", 0))
	listen(t, h, address)
	b.await(row("c"))
	b.await(`!` + row("a"))
	b.await(row("b"))
	b.text("#age", "live")
}

// A tab that nobody sees keeps no connection: a browser has six for all of its tabs.
func TestHiddenTabsKeepNoConnection(t *testing.T) {
	source := &fake{}
	source.set(made("a", 0), made("b", 0))
	var streams atomic.Int32
	h := handler(t, source)
	server := listen(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasSuffix(r.URL.Path, "/events") {
			streams.Add(1)
			defer streams.Add(-1)
		}
		h.ServeHTTP(w, r)
	}), "127.0.0.1:0")
	b := open(t, "http://"+server.Addr+"/", 1200, 900)
	b.text("#age", "live")
	hide := func(hidden bool) {
		value[bool](b, fmt.Sprintf(`Object.defineProperty(document, "hidden", { configurable: true, get: () => %t }),
			document.dispatchEvent(new Event("visibilitychange"))`, hidden))
	}
	hide(true)
	hide(false)
	hide(true)
	for deadline := time.Now().Add(limit); streams.Load() > 0; <-time.After(10 * time.Millisecond) {
		require.True(t, time.Now().Before(deadline), "the stream goes on")
	}
	b.text("#age", "connecting")
	require.NoError(t, source.ForceUnlockHolder(t.Context(), "a", ""))
	hide(false)
	b.text("#age", "live")
	b.await(`!` + row("a"))
	hide(false)
	require.EqualValues(t, 1, streams.Load())
	b.quiet()
}

func TestTroubleIsShown(t *testing.T) {
	source := &fake{}
	source.set(made("a", 0))
	b := open(t, serve(t, source), 1200, 900)
	b.await(row("a"))
	source.failure.Store(&errRights)
	b.text("#trouble", "NOPERM")
	b.await(row("a"))
	source.failure.Store(nil)
	b.await(`document.querySelector("#trouble").hidden`)
}

// axe-core looks for what keeps people from using the page.
func TestAxe(t *testing.T) {
	script, err := os.ReadFile(filepath.Join("..", "..", "..", "..", ".axe", "axe.min.js"))
	require.NoError(t, err, "scripts/ensure-axe.sh fetches it")
	axe := func(b *tab, where string) {
		t.Helper()
		found := value[[]string](b, string(script)+`;
			axe.run(document, {resultTypes: ["violations"]}).then((r) => r.violations.map(
				(v) => v.impact + " " + v.id + ": " + v.nodes.map((n) => n.html + " " + n.failureSummary).join("; ")))`)
		assert.Empty(t, found, "%s", where)
	}
	login := serve(t, &fake{}, page.WithTokens("00112233445566778899aabbccddeeff", "", false))
	for _, scheme := range []string{"light", "dark"} {
		for _, width := range []int64{390, 1200} {
			source := example() // anew: with many losses the list is below what is seen
			b := open(t, serve(t, source, page.WithRelease(me), page.WithTitle("orders")), width, 900)
			b.scheme(scheme)
			b.await(row("order:8812"))
			b.text("#deadlock-list", "goroutine 44")
			b.await(`document.querySelector("#held-chart svg").getAttribute("aria-label")`)
			source.loseOne(t, b)
			axe(b, scheme+" list")
			b.click(`[data-column="path"] button`)
			b.await(listed + `.startsWith("cart:a81f,cart:b220")`)
			axe(b, scheme+" list by path")
			b.click(`[data-column="waiting"] button`)
			b.await(listed + `.startsWith("order:8812")`)
			b.click("#row-0")
			b.text("#queue", "mail")
			b.await(`document.querySelector("#trail svg").checkVisibility()`)
			axe(b, scheme+" lock")
			b.do(chromedp.Evaluate[chromedp.Void](`document.querySelector("#holders button").click()`)) // it is made anew at each pass
			b.await(`document.querySelector("#confirm").open`)
			axe(b, scheme+" confirmation")
			b = open(t, login, width, 900)
			b.scheme(scheme)
			b.await(`document.querySelector("#token")`)
			axe(b, scheme+" login")
		}
	}
	for _, scheme := range []string{"light", "dark"} {
		for _, width := range []int64{390, 1200} {
			_, stock, options := twoPrefixes()
			dead := made("dead", 0)
			dead.Holders[0].Silent = time.Hour
			stock.set(dead)
			url := serve(t, nil, options...)
			b := open(t, url, width, 900)
			b.scheme(scheme)
			b.await(row("a/b c"))
			b.do(chromedp.Navigate("about:blank"))
			<-time.After(2 * time.Second)
			b.do(chromedp.Navigate(url + "?prefix=orders&path=gone"))
			b.text("#notice", "no longer locked")
			b.await(gaps + `.startsWith("nobody looked")`)
			b.await(row("a/b c"))
			axe(b, scheme+" prefixes")
			b.do(chromedp.Navigate(url + "?prefix=st%3Aock"))
			b.await(listed + ` === "both,a/b c,dead"`)
			b.text("#prefixes", "1 stuck")
			axe(b, scheme+" prefix")
		}
	}
	none := open(t, serve(t, &fake{}), 1200, 900)
	none.text("#empty", "Nothing is locked")
	none.await(`document.querySelector("#held-chart svg").getAttribute("aria-label")`)
	axe(none, "empty")
}

// How long those who wait have waited is a table.
func TestWaitsAreATable(t *testing.T) {
	source := &fake{}
	lock := made("a", 6)
	waited := []time.Duration{0, 10 * time.Second, 12 * time.Second, 40 * time.Second, 2 * time.Hour, time.Hour}
	source.waits = func(i int) time.Duration { return waited[i] }
	lock.Waiters[5].Standby = true
	source.set(lock)
	b := open(t, serve(t, source), 1200, 900)
	counts := func(name string) string {
		return fmt.Sprintf(`[...document.querySelectorAll("#waits-rows tr")].find(
			(r) => r.cells[0].innerText === %q)?.cells[1].innerText`, name)
	}
	for name, want := range map[string]string{"5 to 30 s": "2", "30 to 60 s": "1", "over 1 min": "1", "other": "1"} {
		b.await(counts(name) + fmt.Sprintf(` === %q`, want))
	}
	b.await(counts("under 1 s") + ` === "1"`)
	source.mu.Lock()
	waited[0] = 3 * time.Second
	source.mu.Unlock()
	b.await(counts("1 to 5 s") + ` === "1"`) // it waits for longer now
	b.await(counts("under 1 s") + ` === "0"`)
	widths := `[...document.querySelectorAll(".fill")].map((f) => f.getBoundingClientRect().width)`
	b.await(widths + `[2] > ` + widths + `[3] && ` + widths + `[3] > 5`)
	require.True(t, value[bool](b, widths+`[0] === 0`))
	b.quiet()
}
