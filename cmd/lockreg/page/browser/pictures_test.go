package browser

import (
	"bytes"
	"flag"
	"fmt"
	"image"
	"image/color"
	"image/png"
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry/cmd/lockreg/page"
	"github.com/lockregistry/lockregistry/inspect"
	"github.com/lockregistry/lockregistry/observe"
)

var pictures = flag.String("pictures", "", "folder for pictures of the page")

func example() *fake {
	source := &fake{}
	busy := func(path string, waiters, lease, held int) {
		lock := made(path, waiters)
		lock.Holders[0].Lease = time.Duration(lease) * time.Second
		lock.Holders[0].Since = time.Now().Add(-time.Duration(held) * time.Second)
		source.set(lock)
	}
	busy("order:8812", 7, 51, 42)
	busy("invoice:2026-11", 3, 38, 19)
	for i, path := range []string{
		"nightly-report", "customer:17", "customer:99", "mail:outbox", "cart:a81f", "cart:b220", "export:eu", "import:feeds",
	} {
		lock := made(path, 0)
		lock.Holders[0].Since = time.Now().Add(-time.Duration(i*i*47) * time.Second)
		lock.Holders[0].Label = label(fmt.Sprintf("worker-%d", i%3+1), 2000+i, []string{"shop", "reports", "imports"}[i%3])
		lock.Holders[0].Lease = time.Duration(10+i*3) * time.Second
		source.set(lock)
	}
	java := made("legacy:settlement", 0)
	java.Holders[0] = inspect.Holder{Holder: "4d3c8a52-96c1-4d0e-9d6b-1f7f6f0f7a55", Lease: 48 * time.Second}
	readers := made("catalogue", 2)
	readers.Kind, readers.HolderCount = "readwrite", 12
	readers.Holders[0].Shared, readers.Holders[0].Lease = true, 44*time.Second
	source.set(java, readers)
	since := time.Now().Add(-42 * time.Second)
	stock := made("stock:4711", 1)
	stock.Holders[0].Lease, stock.Holders[0].Since = 47*time.Second, since.Add(-16*time.Second)
	stock.Holders[0].Label = label("web-3", 391, "shop")
	stock.Waiters[0].Label, stock.Waiters[0].Since = label("web-1", 4711, "billing"), since
	source.set(stock)
	source.deadlocks = []observe.Deadlock{{Waits: []observe.DeadlockWait{
		{
			Path: "stock:4711", Kind: "lock", Owner: "goroutine 171", Holds: []string{"order:8812"},
			Label: label("web-1", 4711, "billing"), Since: since,
		},
		{
			Path: "order:8812", Kind: "lock", Owner: "goroutine 44", Holds: []string{"stock:4711"},
			Label: label("web-3", 391, "shop"), Since: since,
		},
	}}}
	return source
}

// The pictures for the READMEs. Without a folder for them they are taken all the same, with less of a history.
func TestPictures(t *testing.T) {
	folder, steps := *pictures, 90
	if folder == "" {
		folder, steps = t.TempDir(), 4
	}
	source := example()
	mail := &fake{}
	for i, path := range []string{"outbox:eu", "outbox:us", "digest"} {
		lock := made(path, 2-i)
		lock.Holders[0].Label, lock.Holders[0].Lease = label("mail-1", 77, "mailer"), time.Duration(40+i*5)*time.Second
		mail.set(lock)
	}
	url := serve(t, nil, page.WithPrefix("orders", source), page.WithPrefix("mail", mail),
		page.WithTitle("orders, mail on redis.internal:6379"),
		page.WithRelease(func(*http.Request) (string, bool) { return "me", true }))
	save := func(b *tab, name string) {
		shot, err := b.shoot()
		require.NoError(t, err)
		require.Less(t, len(shot), 150_000, "it is loaded with the README")
		drawn, err := png.Decode(bytes.NewReader(shot))
		require.NoError(t, err)
		require.Greater(t, colours(drawn), 50, "something is on it")
		require.NoError(t, os.WriteFile(filepath.Join(folder, name+".png"), shot, 0o644))
	}
	b := open(t, url, 1200, 800)
	first := source.deadlocks[0].Waits[1]
	for i := range steps {
		lock := made("order:8812", 7+i%25/4-i%7/3)
		lock.Holders[0].Lease, lock.Holders[0].Since = time.Duration(60-i%20)*time.Second, first.Since.Add(-5*time.Second)
		lock.Waiters[0].Label, lock.Waiters[0].Since = first.Label, first.Since
		source.set(lock)
		if i%9 < 6 {
			job := made(fmt.Sprint("cart:c", i%9), 0)
			job.Holders[0].Lease, job.Holders[0].Since = time.Minute, time.Now()
			job.Holders[0].Label = label("worker-2", 2001, "shop")
			source.set(job)
		} else {
			_ = source.ForceUnlockHolder(t.Context(), fmt.Sprint("cart:c", i%9-4), "")
		}
		<-time.After(500 * time.Millisecond)
	}
	save(b, "light")
	b.scheme("dark")
	save(b, "dark")
	b.click("#row-0")
	b.text("#queue", "mail")
	b.scheme("light")
	save(b, "detail")
	phone := open(t, url, 390, 844)
	phone.do(chromedp.EmulateViewport(390, 844, chromedp.EmulateScale(1.5)))
	phone.text("#rows", "order")
	phone.await(`document.querySelector("#status").textContent === ""`)
	save(phone, "phone")
}

func colours(of image.Image) int {
	seen := map[color.Color]bool{}
	for y := of.Bounds().Min.Y; y < of.Bounds().Max.Y; y++ {
		for x := of.Bounds().Min.X; x < of.Bounds().Max.X; x++ {
			seen[of.At(x, y)] = true
		}
	}
	return len(seen)
}
