package browser

import (
	"fmt"
	"testing"

	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry/cmd/lockreg/page"
	"github.com/lockregistry/lockregistry/observe"
)

const (
	shown  = `document.querySelector("#detail").open`
	search = `location.search`
)

// twoPrefixes are sources with one path that both have.
func twoPrefixes() (orders, stock *fake, options []page.Option) {
	orders, stock = &fake{}, &fake{}
	orders.set(made("order:1", 2), made("both", 0))
	stock.set(made("both", 1), made("a/b c", 0))
	return orders, stock, []page.Option{page.WithPrefix("orders", orders), page.WithPrefix("st:ock", stock)}
}

// A lock has an address: it can be opened elsewhere, and back, forward and reload do what they do on other pages.
func TestAddressOfALock(t *testing.T) {
	_, _, options := twoPrefixes()
	url := serve(t, nil, append(options, page.WithTitle("all on redis"))...)
	b := open(t, url, 1200, 900)
	b.await(row("a/b c"))
	b.await(search + ` === ""`)
	b.do(chromedp.Evaluate[chromedp.Void](`[...document.querySelectorAll("#rows .row")].find(
		(r) => r.querySelector(".path").textContent === "a/b c").click()`))
	b.text("#detail-facts", "key orders:a/b c") // made so
	b.await(search + ` === "?prefix=st%3Aock&path=a%2Fb%20c"`)
	b.await(`document.title === "a/b c – Locks: all on redis"`)
	address := value[string](b, `location.href`)

	b.press("Escape", "")
	b.await(`!` + shown)
	b.await(search + ` === ""`)
	b.await(`document.title === "Locks: all on redis"`)
	b.do(chromedp.Evaluate[chromedp.Void](`history.back()`))
	b.await(shown)
	b.text("#detail-path", "a/b c")
	b.do(chromedp.Evaluate[chromedp.Void](`history.back()`))
	b.await(`!` + shown)
	b.await(search + ` === ""`)
	b.do(chromedp.Evaluate[chromedp.Void](`history.forward()`))
	b.await(shown)
	b.do(chromedp.Evaluate[chromedp.Void](`location.reload()`))
	b.await(row("a/b c"))
	b.await(shown)
	b.text("#detail-path", "a/b c")
	b.text("#queue-title", "nobody waits")
	b.await(`document.querySelector("#notice").hidden`)
	b.quiet()

	for _, width := range []int64{390, 1200} {
		elsewhere := open(t, address, width, 900)
		elsewhere.text("#detail-path", "a/b c")
		elsewhere.await(shown)
		elsewhere.click("#detail-close")
		elsewhere.await(search + ` === ""`)
		elsewhere.quiet()
	}
	byHand := open(t, url+"?path=both&prefix=orders", 1200, 900)
	byHand.text("#queue-title", "nobody waits") // in the other prefix one does
	byHand.quiet()
}

// What an address names may be gone, or never have been: the page says so, and shows the list.
func TestAddressThatLeadsNowhere(t *testing.T) {
	orders, _, options := twoPrefixes()
	url := serve(t, nil, options...)
	const nowhere = "This address leads nowhere: "
	for query, want := range map[string]string{
		"?prefix=orders&path=gone%20now": "orders: gone now is no longer locked, and nobody waits for it in Redis. " +
			"This is the list.",
		"?prefix=mail&path=a":       nowhere + "the prefix mail is not shown here: this page shows orders, st:ock. This is the list.",
		"?prefix=mail":              nowhere + "the prefix mail is not shown here",
		"?path=a":                   nowhere + "no prefix is given: this page shows orders, st:ock",
		"?prefix=orders&path=%zz":   nowhere + "the address is not one of a lock",
		"?prefix=%3Cb%3E%1b&path=a": `the prefix <b>\x1b is not shown here`,
		"?prefix=orders&path=":      "no path is given",
	} {
		b := open(t, url+query, 1200, 900)
		b.text("#notice", want)
		b.await(row("order:1"))
		b.await(row("a/b c"))
		require.False(t, value[bool](b, shown), query)
		require.Equal(t, "status", value[string](b, `document.querySelector("#notice").role`))
		b.do(chromedp.Evaluate[chromedp.Void](`document.querySelector("#prefixes a").click()`))
		b.await(`document.querySelector("#notice").hidden`)
	}
	// When it is there again, a reload shows it.
	b := open(t, url+"?prefix=orders&path=gone", 1200, 900)
	b.text("#notice", "no longer locked")
	orders.set(made("gone", 0))
	b.await(row("gone"))
	b.do(chromedp.Evaluate[chromedp.Void](`location.reload()`))
	b.text("#detail-path", "gone")
	b.await(`document.querySelector("#notice").hidden`)
	b.quiet()
}

// A page of one prefix without a name has addresses with paths alone.
func TestAddressWithoutAPrefix(t *testing.T) {
	source := &fake{}
	source.set(made("a", 0))
	url := serve(t, source)
	b := open(t, url+"?path=a", 1200, 900)
	b.text("#detail-path", "a")
	require.True(t, value[bool](b, `document.querySelector("#prefixes").hidden`))
	b.click("#detail-close")
	b.click("#rows .row")
	b.await(search + ` === "?path=a"`)
	b.quiet()
	b = open(t, url+"?prefix=orders&path=a", 1200, 900)
	b.text("#notice", "this page shows the locks of one prefix, and addresses do not name it")
}

// Those who must sign in come to the lock after that.
func TestAddressAfterSigningIn(t *testing.T) {
	_, _, options := twoPrefixes()
	const token = "00112233445566778899aabbccddeeff"
	url := serve(t, nil, append(options, page.WithTokens(token, "ffeeddccbbaa99887766554433221100", false))...)
	b := open(t, url+"?prefix=orders&path=order:1", 1200, 900)
	b.signIn(token)
	b.text("#detail-path", "order:1")
	b.click("#detail-close")
	b.await(search + ` === ""`)
	b.do(chromedp.Evaluate[chromedp.Void](`history.back()`))
	b.await(shown)
	b.do(chromedp.Evaluate[chromedp.Void](`document.querySelector("#sign-in").click()`))
	b.await(`location.pathname === "/login" && location.search === "?prefix=orders&path=order:1"`)
	b.signIn("ffeeddccbbaa99887766554433221100")
	b.text("#detail-path", "order:1")
	b.await(`document.querySelector("#holders button")`)
}

// What the server could not be asked is asked when it is back.
func TestAddressWhileTheServerIsAway(t *testing.T) {
	orders, _, options := twoPrefixes()
	h := handler(t, nil, options...)
	server := listen(t, h, free(t))
	b := open(t, "http://"+server.Addr+"/?prefix=orders&path=order:1", 1200, 900)
	b.text("#detail-path", "order:1")
	b.click("#detail-close")
	b.await(`!` + shown)
	require.NoError(t, server.Close())
	b.text("#age", "connection lost")
	b.do(chromedp.Evaluate[chromedp.Void](`history.back()`))
	b.await(search + ` !== ""`)
	b.await(row("order:1")) // nothing is lost
	orders.set(made("new", 0))
	listen(t, h, server.Addr)
	b.await(row("new"))
	b.await(shown)
	b.text("#detail-path", "order:1")
}

// The switch shows one prefix or all of them, with the figures of each. What is stuck anywhere stands above.
func TestPrefixes(t *testing.T) {
	for _, width := range []int64{390, 1200} {
		orders, stock, options := twoPrefixes()
		dead := made("dead", 0)
		dead.Holders[0].Silent = hour
		stock.set(dead)
		stock.deadlocks = []observe.Deadlock{{Waits: []observe.DeadlockWait{
			{Path: "both", Owner: "goroutine 1", Holds: []string{"a/b c"}}, {Path: "a/b c", Owner: "goroutine 2", Holds: []string{"both"}},
		}}}
		url := serve(t, nil, append(options, page.WithRelease(me))...)
		b := open(t, url, width, 900)
		const links = `[...document.querySelectorAll("#prefixes a")].map(
			(a) => [...a.childNodes].map((n) => n.textContent).join(" ").trim()).join("|")`
		b.await(links + ` === "All 5 2 stuck|orders 2|st:ock 3 2 stuck"`)
		b.await(`document.querySelector("#prefixes [aria-current]").textContent.startsWith("All")`)
		b.await(listedWith + ` === "orders order:1,st:ock both,st:ock a/b c,orders both,st:ock dead"`)
		b.text("#count", "5 locks")
		b.text("#waiters-chart", "3")
		b.text("#held-chart", "5")

		b.do(chromedp.Evaluate[chromedp.Void](`document.querySelectorAll("#prefixes a")[1].focus()`)) // as by Tab
		b.press("Enter", "\r")
		b.await(listed + ` === "order:1,both"`)
		b.await(search + ` === "?prefix=orders"`)
		b.await(`document.querySelector("#prefixes [aria-current]").textContent.startsWith("orders")`)
		b.text("#count", "2 locks")
		b.await(`document.querySelector("#waiters-chart strong").innerText === "2"`)
		b.await(`document.querySelector("#held-chart strong").innerText === "2"`)
		b.await(`document.querySelectorAll("#rows .row:not([hidden]) .of:not(:empty)").length === 0`)
		b.text("#stuck-list", "dead")
		b.text("#stuck-list", "st:ock")
		b.text("#deadlock-list", "goroutine 2")
		orders.set(made("later", 0))
		stock.set(made("other", 0))
		b.await(links + ` === "All 7 2 stuck|orders 3|st:ock 4 2 stuck"`)
		b.await(listed + ` === "order:1,both,later"`)
		require.True(t, value[bool](b, `document.documentElement.scrollWidth <= innerWidth`))

		// A lock of another prefix is shown from above, and the list stays what it is, also after a reload.
		b.do(chromedp.Evaluate[chromedp.Void](`document.querySelector("#deadlock-list button").click()`))
		b.await(shown)
		b.await(search + `.startsWith("?prefix=st%3Aock&path=")`)
		b.do(chromedp.Evaluate[chromedp.Void](`location.reload()`))
		b.await(shown)
		b.click("#detail-close")
		b.await(search + ` === "?prefix=orders"`)
		b.await(listed + ` === "order:1,both,later"`)
		b.do(chromedp.Evaluate[chromedp.Void](`history.go(-2)`)) // to the list before
		b.await(search + ` === "?prefix=orders"`)
		b.do(chromedp.Evaluate[chromedp.Void](`location.search = "?prefix=st%3Aock"`))
		b.await(listed + ` === "both,a/b c,dead,other"`)

		// What is released is the one of this prefix.
		b.click("#rows .row:not([hidden])")
		b.await(`document.querySelectorAll("#holders button").length === 1`)
		b.do(chromedp.Evaluate[chromedp.Void](`document.querySelector("#holders button").click()`))
		b.click("#confirm-yes")
		b.text("#status", "Released: both")
		require.Empty(t, orders.released)
		require.Len(t, stock.released, 1)
		b.quiet()
	}
}

const (
	hour       = 3600e9
	listedWith = `[...document.querySelectorAll("#rows .row:not([hidden])")].sort((a, b) => a.ariaRowIndex - b.ariaRowIndex).map(
		(r) => r.querySelector(".of").textContent + " " + r.querySelector(".path").textContent).join()`
)

// One prefix that cannot be read is told of, and the others go on.
func TestPrefixThatFails(t *testing.T) {
	orders, stock, options := twoPrefixes()
	b := open(t, serve(t, nil, options...), 1200, 900)
	b.await(row("a/b c"))
	stock.failure.Store(&errRights)
	b.text("#trouble", "st:ock: NOPERM")
	orders.set(made("new", 0))
	b.await(row("new"))
	b.await(row("a/b c"))
	b.text("#age", "live")
	stock.failure.Store(nil)
	b.await(`document.querySelector("#trouble").hidden`)
	b.quiet()
}

// Many prefixes with long names fit.
func TestManyPrefixes(t *testing.T) {
	var options []page.Option
	for i := range page.MostPrefixes {
		source := &fake{}
		source.set(made(fmt.Sprint("path", i), 0))
		options = append(options, page.WithPrefix(fmt.Sprintf("tenant-%d:of-a-service-with-a-long-name-that-goes-on", i), source))
	}
	for _, width := range []int64{390, 1200} {
		b := open(t, serve(t, nil, options...), width, 900)
		b.text("#count", "32 locks")
		require.Equal(t, 33, value[int](b, `document.querySelectorAll("#prefixes a").length`))
		require.True(t, value[bool](b, `document.documentElement.scrollWidth <= innerWidth`))
		b.quiet()
	}
}
