package browser

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry/cmd/lockreg/page"
	"github.com/lockregistry/lockregistry/inspect"
	"github.com/lockregistry/lockregistry/observe"
)

// Of long waits those come first of whose holder nothing is known, and the link leads to all of them.
func TestLongWaits(t *testing.T) {
	source := &fake{}
	for i := range 7 {
		lock := made(fmt.Sprint("long", i), 1)
		lock.Waiters[0].Since = time.Now().Add(-time.Duration(i+2) * time.Minute)
		if i == 2 {
			lock.Holders[0] = inspect.Holder{Holder: "4d3c8a52-96c1-4d0e-9d6b-1f7f6f0f7a55", Lease: lasting}
		}
		if i == 3 {
			lock.Holders, lock.HolderCount = nil, 0
		}
		source.set(lock)
	}
	for i := range 40 {
		source.set(made(fmt.Sprint("busy", i), 20))
	}
	b := open(t, serve(t, source), 1400, 900)
	b.text("#long-title", "Long waits: 7")
	b.await(`[...document.querySelectorAll("#long-list button")].map((one) => one.innerText).join() === "long3,long2,long6"`)
	b.await(`document.querySelector("#long-more").innerText === "and 4 more"`)
	b.await(`document.querySelector("#long-more").checkVisibility()`)
	b.do(empty("#filter"))
	value[bool](b, `{ const f = document.querySelector("#filter"); f.value = "busy1"; f.dispatchEvent(new Event("input")); true }`)
	b.click("#long-more")
	b.await(listed + `.startsWith("long6,long5,long4,long3,long2,long1,long0,")`)
	b.await(`document.querySelector("#grid").getBoundingClientRect().top < 100`)
	b.await(`document.activeElement.id === "grid"`)
	b.quiet()

	phone := open(t, serve(t, source), 390, 900)
	phone.await(`document.querySelector("#long-more").innerText === "and 6 more"`)
	require.Equal(t, 1, value[int](phone, `document.querySelectorAll("#long-list li").length`))
}

// Whatever is told in a list says how many are left out.
func TestNothingIsLeftOutInSilence(t *testing.T) {
	source := &fake{}
	for i := range 25 {
		lock := made(fmt.Sprint("dead", i), 0)
		lock.Holders[0].Silent = time.Hour
		source.set(lock)
		endless := made(fmt.Sprint("endless", i), 0)
		endless.Holders[0].Lease = -1
		source.set(endless)
		source.deadlocks = append(source.deadlocks, observe.Deadlock{Waits: []observe.DeadlockWait{{Path: fmt.Sprint("dead", i)}}})
	}
	b := open(t, serve(t, source), 1400, 900)
	b.text("#stuck-title", "Holder probably dead or frozen: 25")
	b.await(`document.querySelector("#stuck-more").innerText === "and 5 more"`)
	b.text("#endless-title", "Without expiry: 25")
	b.await(`document.querySelector("#endless-more").innerText === "and 5 more"`)
	b.text("#deadlocks-title", "25 deadlocks")
	b.await(`document.querySelector("#deadlocks-more").innerText === "and 5 more"`)
	require.Equal(t, 20, value[int](b, `document.querySelectorAll("#deadlock-list ol").length`))
	b.quiet()
}

// A lock that never ends is told of, whichever of its holders has no lease.
func TestLockWithoutExpiryIsTold(t *testing.T) {
	source := &fake{}
	source.set(made("ends", 0))
	b := open(t, serve(t, source), 1400, 900)
	b.await(row("ends"))
	b.await(`document.querySelector("#endless").hidden`)
	lock := made("for ever", 0)
	lock.Kind, lock.HolderCount = observe.KindReadWrite, 2
	lock.Holders = append(lock.Holders, inspect.Holder{Holder: "x", Lease: -1, Since: time.Now()})
	source.set(lock)
	b.text("#endless-title", "Without expiry: 1")
	b.text("#endless-list", "for ever: held by billing on web-1, process 4711")
	b.click("#endless-list button")
	b.text("#holders", "lease without end")
	b.click("#detail-close")
	lock.Holders, lock.HolderCount = lock.Holders[:1], 1
	source.set(lock)
	b.await(`document.querySelector("#endless").hidden`)
	b.quiet()
}

// The rows of paths that calls of a deadlock wait for are marked, for as long as there is one.
func TestDeadlockedRowsAreMarked(t *testing.T) {
	source := example()
	b := open(t, serve(t, source), 1400, 1600)
	for path, marked := range map[string]bool{"stock:4711": true, "order:8812": true, "mail:outbox": false} {
		b.await(row(path))
		b.await(fmt.Sprintf(`%s.includes("deadlock") === %t`, row(path), marked))
	}
	source.mu.Lock()
	source.deadlocks = nil
	source.mu.Unlock()
	b.await(`!` + row("stock:4711") + `.includes("deadlock")`)
	b.quiet()
}

// At 1 400 pixels nothing is cut: neither long names of paths, hosts and services, nor what stands behind them.
func TestNothingIsCut(t *testing.T) {
	source := example()
	const path = "tenant:0b6e4bd7-6a8e-4f6e-9f0a-6a2f6d0f4c55:orders:2026-11-27:reservation:4711"
	long := made(path, 1234)
	long.Kind, long.HolderCount = observe.KindReadWrite, 1012
	long.Holders[0].Label = label("billing-service-7d9f8b6c5d-x2x4z.europe-west3.internal", 4194304, "billing-service-worker")
	long.Holders[0].Since = time.Now().Add(-27 * time.Hour)
	for i := range long.Waiters {
		long.Waiters[i].Since = time.Now().Add(-26*time.Hour - 42*time.Minute)
	}
	source.set(long)
	source.deadlocks[0].Waits[0].Path = path
	title := page.WithTitle("orders on " + strings.Repeat("redis.", 6) + "internal:6379")
	b := open(t, serve(t, source, title, page.WithRelease(me)), 1400, 900)
	b.await(row(path) + `.includes("deadlock")`)
	b.await(row(path) + `.includes("and 1011 more")`)
	b.await(row(path) + `.includes("1234")`)
	source.loseOne(t, b)
	cut := `[...document.querySelectorAll("body *")].filter((n) => n.checkVisibility() && !n.closest(".unseen, svg, dialog") &&
		getComputedStyle(n).overflow !== "visible" && !n.matches("#rows, .row, input") &&
		(n.scrollWidth > n.clientWidth + 1 || n.scrollHeight > n.clientHeight + 1)).map((n) => n.outerHTML)`
	require.Empty(t, value[[]string](b, cut))
	require.True(t, value[bool](b, `document.documentElement.scrollWidth <= innerWidth`))
	overlap := `[...document.querySelectorAll("#rows .row:not([hidden])")].some((r) => [...r.children].some((c) =>
		c.getBoundingClientRect().height > r.getBoundingClientRect().height))`
	require.False(t, value[bool](b, overlap))
	some := strings.ReplaceAll(cut, "n.scrollWidth >", "n.scrollWidth + 2000 >") + ".length"
	require.Greater(t, value[int](b, some), 10, "it looks at something")
	b.quiet()
}
