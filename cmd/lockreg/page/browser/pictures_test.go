package browser

import (
	"flag"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry"
	"github.com/lockregistry/lockregistry/cmd/lockreg/page"
)

var pictures = flag.String("pictures", "", "folder for pictures of the page")

func example() *fake {
	source := &fake{}
	source.set(made("order:8812", 7), made("invoice:2026-11", 3), made("stock:4711", 1))
	for i, path := range []string{"nightly-report", "customer:17", "customer:99", "mail:outbox", "cart:a81f", "cart:b220", "export:eu", "import:feeds"} {
		lock := made(path, 0)
		lock.Holders[0].Since = time.Now().Add(-time.Duration(i*i*47) * time.Second)
		lock.Holders[0].Label = label(fmt.Sprintf("worker-%d", i%3+1), 2000+i, []string{"shop", "reports", "imports"}[i%3])
		lock.Holders[0].Lease = time.Duration(10+i*3) * time.Second
		source.set(lock)
	}
	java := made("legacy:settlement", 0)
	java.Holders[0] = lockregistry.HolderInfo{Holder: "4d3c8a52-96c1-4d0e-9d6b-1f7f6f0f7a55", Lease: 48 * time.Second}
	readers := made("catalogue", 2)
	readers.Kind, readers.HolderCount = "readwrite", 12
	readers.Holders[0].Shared = true
	source.set(java, readers)
	since := time.Now().Add(-42 * time.Second)
	source.deadlocks = []lockregistry.Deadlock{{Waits: []lockregistry.DeadlockWait{
		{Path: "stock:4711", Kind: "lock", Owner: "goroutine 171", Holds: []string{"order:8812"}, Label: label("web-1", 4711, "billing"), Since: since},
		{Path: "order:8812", Kind: "lock", Owner: "goroutine 44", Holds: []string{"stock:4711"}, Label: label("web-3", 391, "shop"), Since: since},
	}}}
	return source
}

func TestPictures(t *testing.T) {
	if *pictures == "" {
		t.Skip("no folder for them; see -pictures")
	}
	source := example()
	url := serve(t, source, page.WithTitle("orders on redis.internal:6379"),
		page.WithRelease(func(*http.Request) (string, bool) { return "me", true }))
	save := func(b *tab, name string) {
		text, err := b.shoot()
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(filepath.Join(*pictures, name+".png"), text, 0o644)) //nolint:gosec // for everybody
	}
	b := open(t, url, 1200, 800)
	for i := range 40 { // some history
		lock := made("order:8812", 7+i%5-i%3)
		source.set(lock)
		if i%3 == 0 {
			source.set(made(fmt.Sprint("cart:", i), 0))
		}
		<-time.After(500 * time.Millisecond)
	}
	save(b, "light")
	b.scheme("dark")
	save(b, "dark")
	b.click("#row-0")
	b.text("#queue", "mail")
	save(b, "detail-dark")
	b.scheme("light")
	save(b, "detail")
	b.click("#holders button")
	save(b, "confirm")
	phone := open(t, url, 390, 844)
	phone.do(chromedp.EmulateViewport(390, 844, chromedp.EmulateScale(2)))
	phone.text("#rows", "order")
	save(phone, "phone")
	login := open(t, serve(t, source, page.WithTokens("00112233445566778899aabbccddeeff", "", false)), 390, 600)
	login.text("h1", "Locks")
	save(login, "login")
}
