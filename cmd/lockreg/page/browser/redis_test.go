package browser

import (
	"context"
	"fmt"
	"runtime"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry"
	"github.com/lockregistry/lockregistry/cmd/lockreg/page"
	"github.com/lockregistry/lockregistry/internal/redistest"
)

func registry(t *testing.T, server *redistest.Server, options ...lockregistry.Option) *lockregistry.Registry {
	t.Helper()
	client, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{server.Addr()}, DisableCache: true})
	require.NoError(t, err)
	t.Cleanup(client.Close)
	r, err := lockregistry.New(client, "orders", options...)
	require.NoError(t, err)
	t.Cleanup(func() { _ = r.Close() })
	return r
}

// fill makes other keys.
func fill(t *testing.T, server *redistest.Server, n int) {
	t.Helper()
	client, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{server.Addr()}, DisableCache: true})
	require.NoError(t, err)
	defer client.Close()
	const thousand = "for i = ARGV[1], ARGV[1] + 999 do redis.call('SET', 'session:' .. i, 'x') end return 1"
	for from := 0; from < n; from += 1000 {
		command := client.B().Eval().Script(thousand).Numkeys(0).Arg(strconv.Itoa(from)).Build()
		require.NoError(t, client.Do(t.Context(), command).Error())
	}
}

func TestLocksOfRedis(t *testing.T) {
	server := redistest.Start(t)
	holder := registry(t, server, lockregistry.WithName("billing"))
	fill(t, server, 100_000)
	b := open(t, serve(t, registry(t, server), page.WithRelease(me)), 1200, 900)
	b.text("#empty", "Nothing is locked")

	// A lock appears within a second, among a hundred thousand other keys. On a machine that is busy with something else not
	// every time.
	best := time.Hour
	for i := 0; i < 10 && best > time.Second; i++ {
		path := fmt.Sprint("quick:", i)
		began := time.Now()
		hold, err := holder.Acquire(t.Context(), path)
		require.NoError(t, err)
		b.await(row(path))
		best = min(best, time.Since(began))
		require.NoError(t, hold.Release(t.Context()))
		b.await(`!` + row(path))
	}
	t.Log("a lock appeared after", best)
	require.LessOrEqual(t, best, time.Second)

	// A queue grows and shrinks.
	hold, err := holder.Acquire(t.Context(), "42")
	require.NoError(t, err)
	b.await(row("42"))
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var waiting sync.WaitGroup
	wait := func() {
		waiter := registry(t, server)
		waiting.Go(func() {
			if mine, err := waiter.Acquire(ctx, "42"); err == nil {
				_ = mine.Release(context.WithoutCancel(ctx))
			}
		})
	}
	for n := range 3 {
		wait()
		b.await(fmt.Sprintf(`document.querySelector("#rows .row:not([hidden]) .queued")?.textContent === "%d"`, n+1))
	}
	b.await(row("42") + `.includes("billing")`) // its label comes after a second
	b.click("#rows .row")
	b.text("#queue-title", "3 waiting")
	require.NoError(t, hold.Release(t.Context()))
	waiting.Wait()
	b.text("#detail-facts", "Nobody holds it")
	b.await(`!` + row("42"))
	b.click("#detail-close")

	// A release works.
	lost, err := holder.Acquire(t.Context(), "43")
	require.NoError(t, err)
	b.await(row("43"))
	b.click("#rows .row")
	b.click("#holders button")
	b.click("#confirm-yes")
	b.text("#status", "Released: 43")
	b.await(`!` + row("43"))
	require.ErrorIs(t, lost.Release(t.Context()), lockregistry.ErrLockLost)
	b.quiet()
}

func TestDeadlockIsShown(t *testing.T) {
	source := example()
	found := source.deadlocks
	source.deadlocks = nil
	b := open(t, serve(t, source), 1200, 900)
	b.await(row("order:8812"))
	b.await(`document.querySelector("#deadlocks").hidden`)
	source.mu.Lock()
	source.deadlocks = found
	source.mu.Unlock()
	b.text("#deadlocks", "goroutine 171 in billing (web-1, pid 4711) holds order:8812 and waits for stock:4711")
	b.text("#deadlocks", "goroutine 44 in shop (web-3, pid 391) holds stock:4711 and waits for order:8812")
	b.click("#deadlock-list button")
	b.await(`document.querySelector("#detail").open`)
	b.click("#detail-close")
	source.mu.Lock()
	source.deadlocks = nil
	source.mu.Unlock()
	b.await(`document.querySelector("#deadlocks").hidden`)
	b.quiet()
}

func TestDeadlockOfRedis(t *testing.T) {
	server := redistest.Start(t)
	b := open(t, serve(t, registry(t, server)), 1200, 900)
	ctx, end := context.WithCancel(t.Context())
	var ended, locked sync.WaitGroup
	locked.Add(2)
	for _, process := range []struct{ name, first, second string }{{"billing", "order", "stock"}, {"shop", "stock", "order"}} {
		r := registry(t, server, lockregistry.WithName(process.name))
		ended.Go(func() {
			first, second := r.Obtain(process.first), r.Obtain(process.second)
			err := first.Lock(ctx)
			locked.Done()
			if err != nil {
				t.Error(err)
				return
			}
			locked.Wait()
			if second.Lock(ctx) == nil {
				_ = second.Unlock(context.WithoutCancel(ctx))
			}
			_ = first.Unlock(context.WithoutCancel(ctx))
		})
	}
	defer ended.Wait()
	defer end()
	b.text("#deadlocks-title", "A deadlock")
	b.text("#deadlock-list", "holds order and waits for stock")
	b.text("#deadlock-list", "holds stock and waits for order")
	b.text("#deadlock-list", "in billing (")
	b.text("#deadlock-list", "in shop (")
	end()
	b.await(`document.querySelector("#deadlocks").hidden`)
	b.quiet()
}

// Redis that stands still is told within two seconds or so, and that it answers again, at once.
func TestRedisDoesNotAnswer(t *testing.T) {
	server := redistest.Start(t)
	b := open(t, serve(t, registry(t, server)), 1200, 900)
	b.text("#age", "live")
	server.Freeze()
	b.text("#age", "Redis does not answer; last seen ")
	b.await(`document.querySelector("#dot").className === "dot old"`)
	server.Thaw()
	b.text("#age", "live")
	b.quiet()
}

func TestStuckIsShown(t *testing.T) {
	source := &fake{}
	healthy, dead, waits := made("healthy", 0), made("dead", 0), made("waits", 1)
	healthy.Holders[0].Renewed, healthy.Holders[0].Lease = time.Minute, 50*time.Second
	dead.Holders[0].Renewed, dead.Holders[0].Lease = time.Minute, 33*time.Second
	waits.Waiters[0].Since = time.Now().Add(-time.Hour)
	standby := made("standby", 1)
	standby.Waiters[0].Since, standby.Waiters[0].Standby = time.Now().Add(-time.Hour), true
	source.set(healthy, standby)
	b := open(t, serve(t, source), 1200, 900)
	b.await(row("healthy"))
	b.await(`document.querySelector("#stuck").hidden`)
	source.set(dead, waits)
	b.text("#stuck", "Stuck: 2")
	b.text("#stuck", "renewal overdue by 7")
	b.text("#stuck", "probably dead")
	b.text("#stuck", "somebody has waited for ")
	b.click("#stuck-list button")
	b.await(`document.querySelector("#detail").open`)
	b.quiet()
}

// A process that dies has its locks lost: first they are overdue, then gone, then another's.
func TestLossIsShown(t *testing.T) {
	source := &fake{}
	b := open(t, serve(t, source), 1200, 900)
	b.text("#empty", "Nothing is locked")
	b.await(`document.querySelector("#stuck").hidden`)
	dead := made("dead<b>", 0)
	dead.Holders[0].Renewed, dead.Holders[0].Lease = time.Minute, 200*time.Millisecond
	source.set(dead)
	b.text("#stuck-title", "Stuck: 1")
	require.False(t, value[bool](b, `document.querySelector("#lost").checkVisibility()`))
	require.NoError(t, source.ForceUnlockHolder(t.Context(), "dead<b>", ""))
	b.text("#lost-title", "Lost in the last ten minutes: 1")
	b.text("#status", "A lock was lost.")
	b.text("#stuck-title", "Stuck: nothing now")
	b.await(`/^dead<b>: billing \(web-1, pid 4711\), \d s ago; now held by nobody$/.test(
		document.querySelector("#lost-list").innerText)`)
	next := made("dead<b>", 0)
	next.Holders[0].Holder, next.Holders[0].Label = "8a:1", label("web-7", 1, "shop")
	source.set(next)
	b.text("#lost-list", "now held by shop (web-7, pid 1)")
	b.click("#lost-list button")
	b.text("#holders", "shop (web-7, pid 1)")
	b.click("#detail-close")
	b.do(chromedp.Navigate(value[string](b, `location.href`)))
	b.text("#lost-list", "now held by shop (web-7, pid 1)") // also for those who come later
	b.quiet()
}

// The same with a registry of Redis whose renewals reach it no more.
func TestLossOfRedis(t *testing.T) {
	server := redistest.Start(t)
	client, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{server.Addr()}, DisableCache: true})
	require.NoError(t, err)
	holder, err := lockregistry.New(client, "orders", lockregistry.WithName("billing"), lockregistry.WithRenewal(),
		lockregistry.WithLease(6*time.Second))
	require.NoError(t, err)
	t.Cleanup(func() { _ = holder.Close() })
	b := open(t, serve(t, registry(t, server)), 1200, 900)
	dies, err := holder.Acquire(t.Context(), "dies")
	require.NoError(t, err)
	defer runtime.KeepAlive(dies) // a hold that nobody has is not renewed
	other, err := holder.Acquire(t.Context(), "released")
	require.NoError(t, err)
	b.await(row("released") + `.includes("billing")`) // there is a record when the first one has been held for a second
	require.NoError(t, other.Release(t.Context()))
	client.Close()
	b.text("#stuck-list", "renewal overdue by")
	b.text("#lost-title", "Lost in the last ten minutes: 1")
	b.text("#lost-list", "dies: billing (")
	b.await(`!` + row("dies"))
	b.quiet()
}
