package browser

import (
	"fmt"
	"testing"
	"time"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry/cmd/lockreg/page"
	"github.com/lockregistry/lockregistry/inspect"
	"github.com/lockregistry/lockregistry/observe"
)

// many are locks with the paths lock-0001 and so on.
func many(n int) *fake {
	source := &fake{}
	locks := make([]inspect.Lock, n)
	for i := range locks {
		locks[i] = made(fmt.Sprintf("lock-%04d", i), 0)
	}
	source.set(locks...)
	return source
}

const inDocument = `document.querySelectorAll("#rows .row:not([hidden])").length`

// The browser's own search finds every row of a list that is not too long, in order, and of a longer one those on the screen.
func TestTheBrowserFindsAllRows(t *testing.T) {
	source := many(1000)
	b := open(t, serve(t, source), 1200, 900)
	b.text("#count", "1000 locks")
	b.await(inDocument + ` === 1000`)
	require.True(t, value[bool](b, `document.querySelector("#beyond").hidden`))
	require.True(t, value[bool](b, `[...document.querySelectorAll("#rows .row .path")].every((p, i) => p.textContent.endsWith(
		String(i).padStart(4, "0")))`), "the document has them in order")
	b.await(`find("lock-0987")`)
	b.await(`scrollY > 10000`) // to it
	held := row("lock-0987") + `.split("\n")[2]`
	before := value[string](b, held)
	b.await(held + fmt.Sprintf(` !== %q`, before)) // on the screen it grows older
	require.False(t, value[bool](b, `find("lock-1000")`))

	source.set(made("lock-1000", 0))
	b.text("#beyond", "These are 1001 locks. The browser finds only those on the screen, and prints the first 1000.")
	b.await(inDocument + ` < 100`)
	b.do(chromedp.SendKeys(chromedp.CSS("#filter"), "lock-09"))
	b.await(inDocument + ` === 100`)
	b.await(`document.querySelector("#beyond").hidden`)
	b.await(`find("lock-0900")`)
	b.quiet()
}

// What is printed has all rows, one below the other, and none of the controls.
func TestPrinting(t *testing.T) {
	source := many(1200)
	dead := made("dead", 0)
	dead.Holders[0].Silent = time.Hour
	source.set(dead)
	b := open(t, serve(t, source), 1200, 900)
	b.scheme("dark")
	b.text("#count", "1201 locks")
	b.await(inDocument + ` < 100`)
	_, err := chromedp.Call(b.ctx, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{Media: "print"})
	require.NoError(t, err)
	value[bool](b, `dispatchEvent(new Event("beforeprint"))`)
	require.Equal(t, 1000, value[int](b, inDocument), "at once: the browser does not wait")
	require.Equal(t, 0, value[int](b, `(() => {
		const rows = [...document.querySelectorAll("#rows .row:not([hidden])")].map((r) => r.getBoundingClientRect());
		return rows.filter((r, i) => r.height < 10 || (i > 0 && r.top < rows[i - 1].bottom - 1)).length;
	})()`), "none lies upon another")
	require.True(t, value[bool](b, `[...document.querySelectorAll("#rows .row:not([hidden])")].every(
		(r) => /\d min/.test(r.innerText))`))
	require.True(t, value[bool](b, `document.querySelector("#stuck").checkVisibility()`))
	require.True(t, value[bool](b, `document.querySelector("#beyond").checkVisibility()`), "it says that there are more")
	require.False(t, value[bool](b, `document.querySelector("#filter").checkVisibility()`))
	require.Equal(t, "rgb(26, 33, 48)", value[string](b, `getComputedStyle(document.body).color`), "dark on white")
	value[bool](b, `dispatchEvent(new Event("afterprint"))`)
	b.await(inDocument + ` < 100`)
	b.quiet()
}

// A thousand rows cost the page no more than a few.
func TestThousandRowsAreQuick(t *testing.T) {
	source := many(1000)
	url := serve(t, source)
	best := time.Hour
	for range 3 {
		b := open(t, "about:blank", 1200, 900)
		worst, _ := trace(b, func() {
			b.do(chromedp.Navigate(url))
			b.await(inDocument + ` === 1000`)
			for i := range 4 {
				source.set(made(fmt.Sprintf("lock-%04d", i*200), i))
				<-time.After(700 * time.Millisecond)
			}
		})
		if best = min(best, worst); best <= longest {
			return
		}
	}
	t.Fatalf("a task took %s", best)
}

// The permits of a process are one row, which releases them all.
func TestPermitsOfAProcessAreOneRow(t *testing.T) {
	source := &fake{}
	lock := made("partner", 0)
	lock.Kind, lock.Permits, lock.HolderCount, lock.Holders = observe.KindSemaphore, 9, 5, nil
	for i, of := range []observe.Label{label("web-1", 1, "shop"), label("web-1", 1, "shop"), label("web-2", 1, "shop"), {}, {}} {
		held := made("", 0).Holders[0]
		held.Label, held.Permits, held.Holder = of, i+1, fmt.Sprint("8f6f0f7a:179527837606428", i)
		held.Lease, held.Since = time.Duration(50-i)*time.Minute, time.Now().Add(-time.Duration(60-i)*time.Minute)
		held.Granted = held.Since
		lock.Holders = append(lock.Holders, held)
	}
	source.set(lock)
	b := open(t, serve(t, source, page.WithRelease(me)), 1200, 900)
	b.await(row("partner") + `.includes("a Go process, not known and 2 more")`)
	b.click("#rows .row")
	b.text("#holders-title", "3 holders")
	b.await(`[...document.querySelectorAll("#holders .kind")].map((k) => k.textContent).join() === "3 permits,3 permits,9 permits"`)
	b.await(`/2 holds\s+1 h \d min\s+lease 4\d min/.test(document.querySelector("#holders li").innerText)`)

	release := `document.querySelectorAll("#holders button")[0].click()` // it is made anew at each pass
	b.do(chromedp.Evaluate[chromedp.Void](release))
	b.text("#confirm-text", "held by shop on web-1, process 1, which asked for it 1 h ")
	b.text("#confirm-text", "All its 2 holds, of 3 permits, are released.")
	b.click("#confirm-yes")
	b.text("#status", "Released: partner")
	require.Equal(t, []string{"8f6f0f7a:1795278376064280", "8f6f0f7a:1795278376064281"}, source.released)
	b.quiet()
}

// When one of the holds has ended meanwhile, the others are released all the same.
func TestPermitsThatHaveEndedMeanwhile(t *testing.T) {
	source := &fake{}
	lock := made("partner", 0)
	lock.Kind, lock.Permits, lock.HolderCount = observe.KindSemaphore, 9, 3
	for i := range 2 {
		more := lock.Holders[0]
		more.Holder = fmt.Sprint("7f6f0f7a:1", i)
		lock.Holders = append(lock.Holders, more)
	}
	source.set(lock)
	source.late.Store(true)
	b := open(t, serve(t, source, page.WithRelease(me)), 1200, 900)
	b.await(row("partner"))
	b.click("#rows .row")
	b.await(`document.querySelectorAll("#holders button").length === 1`)
	b.do(chromedp.Evaluate[chromedp.Void](`document.querySelector("#holders button").click()`))
	b.click("#confirm-yes")
	b.text("#status", "Released: partner; 3 of 3 holds had ended before")
}

// A toast does not repeat a banner: it comes where the banner is not on the screen. Those who hear the page hear it in any case.
func TestToastDoesNotRepeatABanner(t *testing.T) {
	source := many(100)
	b := open(t, serve(t, source), 1200, 900)
	b.await(row("lock-0003"))
	const toast = `document.querySelector("#status").textContent`
	deadlock := observe.Deadlock{Waits: []observe.DeadlockWait{
		{Path: "lock-0003", Owner: "goroutine 1", Holds: []string{"lock-0004"}},
	}}
	find := func(n int) {
		source.mu.Lock()
		defer source.mu.Unlock()
		source.deadlocks = nil
		for range n {
			source.deadlocks = append(source.deadlocks, deadlock)
		}
	}
	find(1)
	b.text("#deadlocks-title", "A deadlock")
	b.text("#told", "There is a deadlock.")
	require.Empty(t, value[string](b, toast))
	require.Equal(t, "status", value[string](b, `document.querySelector("#told").role`), "it is read aloud")
	require.True(t, value[bool](b, `document.querySelector("#told").getBoundingClientRect().height <= 1`))
	source.loseOne(t, b)
	b.text("#told", "A lock was lost.")
	require.Empty(t, value[string](b, toast))

	value[bool](b, `(scrollTo(0, 3000), true)`)
	find(2)
	b.text("#status", "There are 2 deadlocks.")
	b.quiet()
}
