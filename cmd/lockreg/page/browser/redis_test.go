package browser

import (
	"context"
	"fmt"
	"iter"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry"
	"github.com/lockregistry/lockregistry/cmd/lockreg/page"
	"github.com/lockregistry/lockregistry/inspect"
	"github.com/lockregistry/lockregistry/internal/redistest"
	"github.com/lockregistry/lockregistry/observe"
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

// counted counts the passes through the locks.
type counted struct {
	*inspect.Inspector

	passes atomic.Int64
}

func (c *counted) Locks(ctx context.Context) iter.Seq2[inspect.Lock, error] {
	c.passes.Add(1)
	return c.Inspector.Locks(ctx)
}

func TestLocksOfRedis(t *testing.T) {
	server := redistest.Start(t)
	holder := registry(t, server, lockregistry.WithName("billing"))
	fill(t, server, 100_000)
	source := &counted{Inspector: inspect.Of(registry(t, server))}
	b := open(t, serve(t, source, page.WithRelease(me)), 1200, 900)
	b.text("#empty", "Nothing is locked")

	// A lock appears with the next pass, within a second, among a hundred thousand other keys. On a machine that is busy with
	// something else another pass may begin before that, but not every time.
	const most = 2
	best := int64(most + 1)
	for i := 0; i < 10 && best > most; i++ {
		path := fmt.Sprint("quick:", i)
		hold, err := holder.Acquire(t.Context(), path, lockregistry.Wait(limit))
		require.NoError(t, err)
		before := source.passes.Load()
		b.await(row(path))
		best = min(best, source.passes.Load()-before)
		_ = hold.Release(t.Context()) // an answer that is late is no matter
		b.await(`!` + row(path))
	}
	require.LessOrEqual(t, best, int64(most))

	// A queue grows and shrinks.
	hold, err := holder.Acquire(t.Context(), "42", lockregistry.Wait(limit))
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
	_ = hold.Release(t.Context())
	waiting.Wait()
	b.text("#detail-facts", "Nobody holds it")
	b.await(`!` + row("42"))
	b.click("#detail-close")

	// A release works.
	lost, err := holder.Acquire(t.Context(), "43", lockregistry.Wait(limit))
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
	b.text("#deadlocks", "goroutine 171 in billing on web-1, process 4711 holds order:8812 and waits for stock:4711")
	b.text("#deadlocks", "goroutine 44 in shop on web-3, process 391 holds stock:4711 and waits for order:8812")
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
	b := open(t, serve(t, inspect.Of(registry(t, server))), 1200, 900)
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
	b.await(`document.querySelector("main section").id === "deadlocks"`) // the most urgent first
	b.text("#deadlock-list", "holds order and waits for stock")
	b.text("#deadlock-list", "holds stock and waits for order")
	b.text("#deadlock-list", "in billing on ")
	b.text("#deadlock-list", "in shop on ")
	end()
	b.await(`document.querySelector("#deadlocks").hidden`)
	b.quiet()
}

// Redis that stands still is told within two seconds or so, and that it answers again, at once.
func TestRedisDoesNotAnswer(t *testing.T) {
	server := redistest.Start(t)
	b := open(t, serve(t, inspect.Of(registry(t, server))), 1200, 900)
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
	b.text("#stuck-list", "dead: held by billing on web-1, process 4711, renewal overdue by 7")
	b.text("#stuck-list", "probably dead or frozen")
	b.text("#stuck-title", "Holder probably dead or frozen: 1")
	require.NotContains(t, value[string](b, `document.querySelector("#stuck").innerText`), "waits")

	// A lock that others wait long for is apart, if its holder may be alive.
	b.text("#long-title", "Long waits: 1")
	b.text("#long-list", "waits: held by billing on web-1, process 4711; a call has waited for 1 h")
	renews := waits
	renews.Holders = slices.Clone(waits.Holders)
	renews.Holders[0].Renewed, renews.Holders[0].Lease = time.Minute, 57*time.Second
	source.set(renews)
	b.text("#long-list", "process 4711, granted or renewed 3 s ago; a call has waited for 1 h")
	require.NotContains(t, value[string](b, `document.querySelector("#long").innerText`), "dead")

	// One without a record is probably dead, also when others wait long.
	silent := made("silent", 1)
	silent.Holders[0].Label, silent.Holders[0].Lease = observe.Label{}, 1100*time.Second
	source.set(silent)
	b.await(row("silent") + `.includes("a Go process, not known")`)
	b.text("#stuck-title", "Holder probably dead or frozen: 2")
	b.text("#stuck-list", "silent: held by a Go process, not known, no record: probably dead")
	silent.Waiters[0].Since = time.Now().Add(-time.Hour)
	source.set(silent)
	b.text("#stuck-list", "silent: held by a Go process, not known, no record: probably dead; a call has waited")
	b.text("#long-title", "Long waits: 1")

	// Of many the longest are told.
	for i := range 4 {
		more := made(fmt.Sprint("more", i), 1)
		more.Waiters[0].Since = time.Now().Add(-time.Duration(i+1) * time.Minute)
		source.set(more)
	}
	b.text("#long-title", "Long waits: 5")
	b.await(`[...document.querySelectorAll("#long-list button")].map((one) => one.innerText).join() === "waits,more3,more2"`)
	b.await(`document.querySelector("#long-more").innerText === "and 2 more"`)
	value[bool](b, `[...document.querySelectorAll("#stuck-list button")].find((one) => one.innerText === "silent").click() ?? true`)
	b.await(`document.querySelector("#detail").open`)
	b.text("#holders", "it is dead or frozen, or may not write one")
	b.quiet()
}

// The page says what is known of a holder, and who is next, before anything is released.
func TestReleaseSaysWhatIsKnown(t *testing.T) {
	source := &fake{}
	alive, dead, silent, java, unlisted := made("alive", 2), made("dead", 0), made("silent", 0), made("java", 0), made("unlisted", 0)
	unlisted.Holders[0].Silent, unlisted.Holders[0].Lease = 50*time.Minute, 10*time.Minute
	alive.Holders[0].Renewed, alive.Holders[0].Lease = time.Hour, time.Hour-5*time.Minute
	alive.Waiters[0].Gone = true
	alive.Waiters[1].Label = label("vm", 28513, "lockreg run sleep")
	dead.Holders[0].Renewed, dead.Holders[0].Lease = time.Hour, 10*time.Minute
	silent.Holders[0].Label, silent.Holders[0].Lease = observe.Label{}, 1100*time.Second
	within := made("within", 0)
	within.Holders[0].Behind = 3
	java.Holders[0] = inspect.Holder{Holder: "4d3c8a52-96c1-4d0e-9d6b-1f7f6f0f7a55", Lease: time.Minute}
	source.set(alive, dead, silent, java, unlisted, within)
	b := open(t, serve(t, source, page.WithRelease(me)), 1200, 900)
	b.text("#stuck-title", "Holder probably dead or frozen: 3")
	b.text("#stuck-list", "unlisted: held by billing on web-1, process 4711, process probably dead or frozen")
	for path, want := range map[string][2]string{
		"unlisted": {`^Its process has shown no sign of life for 50 min \d s, and should have: it is probably dead or frozen\.` +
			` Nobody waits for it\.$`, "alive"},
		"alive": {`^Granted or renewed 5 min \d s ago: its process was alive then; if it has died since, this shows within ` +
			`(21 min [01]|20 min 5\d) s\. Next: lockreg run sleep on vm, process 28513\.$`, "dead"},
		"dead": {`^Not renewed for 50 min \d s: it is probably dead or frozen\. Nobody waits for it\.$`, "alive"},
		"silent": {`^No record of its process: it is dead or frozen, or may not write one; its lease is 20 min \d+ s if it was ` +
			`never renewed, else shorter\. Nobody waits for it in Redis\.$`, "alive"},
		"java": {`^Whether it is alive is not known; if it is dead, its lease ends in (1 min 0|\d+) s\. ` +
			`Nobody waits for it in Redis\.$`, "frozen"},
		"within": {`^Its process was alive in the last minute; if it has died since, this shows within a minute; ` +
			`whether it renews its lease is not known\. Next: one of 3 waiting in billing on web-1, process 4711, ` +
			`once that process notices at its next renewal or unlock\.$`, "frozen"},
	} {
		b.do(chromedp.Evaluate[chromedp.Void](fmt.Sprintf(`{
			const input = document.querySelector("#filter"); // keys go to the grid when the dialog closes
			input.value = %q;
			input.dispatchEvent(new Event("input"));
		}`, path)))
		b.await(listed + fmt.Sprintf(` === %q`, path))
		b.click("#rows .row:not([hidden])")
		b.await(`document.querySelectorAll("#holders button").length === 1`)
		b.do(chromedp.Evaluate[chromedp.Void](`document.querySelector("#holders button").click()`)) // it is made anew at each pass
		b.text("#confirm-path", path)
		said := value[string](b, `document.querySelector("#confirm-life").innerText`)
		require.Regexp(t, want[0], said)
		require.NotContains(t, said, want[1])
		b.click("#confirm-no")
		b.click("#detail-close")
	}
	b.quiet()
}

// Before anything is known no figure is shown.
func TestNothingIsShownAsZeroBeforeItIsKnown(t *testing.T) {
	source := &fake{}
	source.failure.Store(&errRights)
	b := open(t, serve(t, source), 1200, 900)
	b.text("#trouble", "NOPERM")
	figures := `[...document.querySelectorAll(".charts strong, #handoffs, #waits-rows td")].map((f) => f.textContent).join("")`
	require.Regexp(t, "^–+$", value[string](b, figures))
	require.Empty(t, value[string](b, `document.querySelector("#count").innerText`))
	source.failure.Store(nil)
	b.await(`!` + figures + `.includes("–")`)
	b.text("#count", "0 locks")
	b.quiet()
}

// A semaphore says how many permits there are, and who has and wants how many.
func TestPermitsAreShown(t *testing.T) {
	source := &fake{}
	semaphore := func(path string, permits int, has ...int) inspect.Lock {
		info := made(path, 1)
		info.Kind, info.Permits, info.HolderCount, info.Waiters[0].Permits = observe.KindSemaphore, permits, len(has), 4
		one := info.Holders[0]
		info.Holders = nil
		for i, n := range has {
			one.Permits, one.Holder = n, fmt.Sprint("7f6f0f7a:179527837606428", i)
			info.Holders = append(info.Holders, one)
		}
		return info
	}
	partner := semaphore("partner", 5, 1, 3)
	many := semaphore("many", 9, 1)
	many.HolderCount = 7
	source.set(partner, many)
	b := open(t, serve(t, source), 1200, 900)
	b.await(row("partner") + `.includes("semaphore of 5")`)
	b.await(row("many") + `.includes("semaphore of 9")`)
	b.click("#rows .row:nth-child(2)")
	b.text("#detail-facts", "semaphore of 5 permits, 4 held, key orders:partner")
	kinds := func(list string) string {
		return `[...document.querySelectorAll("` + list + ` .kind")].map((k) => k.textContent).join()`
	}
	b.await(kinds("#holders") + ` === "4 permits"`)
	b.await(kinds("#queue") + ` === "4 permits"`)
	partner.Permits = 3 // nobody is put out
	source.set(partner)
	b.text("#detail-facts", "semaphore of 3 permits, 4 held")
	b.await(row("partner") + `.includes("semaphore of 3")`)
	b.click("#detail-close")
	b.click("#rows .row:nth-child(1)")
	b.text("#detail-facts", "semaphore of 9 permits, ≥ 1 held")
	b.quiet()
}

// What is only a bound has a mark.
func TestBoundIsMarked(t *testing.T) {
	source := &fake{}
	known := made("known", 0)
	known.Holders[0].Granted = known.Holders[0].Since
	source.set(known, made("unknown", 0))
	b := open(t, serve(t, source), 1200, 900)
	b.await(`/\nasked 1 min \d+ s ago/.test(` + row("unknown") + `)`)
	b.await(`/\n1 min \d+ s/.test(` + row("known") + `)`)
	b.click("#rows .row:nth-child(2)")
	b.await(`/asked 1 min \d+ s ago/.test(document.querySelector("#holders").innerText)`)
	young := made("young", 0)
	young.Holders[0].Since = time.Now().Add(time.Hour) // the other clock is ahead: it stays young for as long as the test takes
	source.set(young)
	b.await(row("young") + `.includes("\n≤ 0 s")`)
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
	b.text("#stuck-title", "Holder probably dead or frozen: 1")
	require.False(t, value[bool](b, `document.querySelector("#lost").checkVisibility()`))
	require.NoError(t, source.ForceUnlockHolder(t.Context(), "dead<b>", ""))
	b.text("#lost-title", "Lost in the last ten minutes: 1")
	b.text("#told", "A lock was lost.")
	b.text("#stuck-title", "Holder probably dead or frozen: none now")
	b.await(`/^dead<b>: billing on web-1, process 4711, \d+ s ago; now held by nobody$/.test(
		document.querySelector("#lost-list").innerText)`)
	next := made("dead<b>", 0)
	next.Holders[0].Holder, next.Holders[0].Label = "8a:1", label("web-7", 1, "shop")
	source.set(next)
	b.text("#lost-list", "now held by shop on web-7, process 1")
	b.click("#lost-list button")
	b.text("#holders", "shop on web-7, process 1")
	b.click("#detail-close")
	b.do(chromedp.Navigate(value[string](b, `location.href`)))
	b.text("#lost-list", "now held by shop on web-7, process 1") // also for those who come later
	b.quiet()
}

// The same with a registry of Redis whose renewals reach it no more.
func TestLossOfRedis(t *testing.T) {
	server := redistest.Start(t)
	client, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{server.Addr()}, DisableCache: true})
	require.NoError(t, err)
	holder, err := lockregistry.New(client, "orders", lockregistry.WithName("billing"), lockregistry.WithRenewal(),
		lockregistry.WithLease(18*time.Second))
	require.NoError(t, err)
	t.Cleanup(func() { _ = holder.Close() })
	b := open(t, serve(t, inspect.Of(registry(t, server))), 1200, 900)
	dies, err := holder.Acquire(t.Context(), "dies", lockregistry.Wait(limit))
	require.NoError(t, err)
	defer runtime.KeepAlive(dies) // a hold that nobody has is not renewed
	other, err := holder.Acquire(t.Context(), "released", lockregistry.Wait(limit))
	require.NoError(t, err)
	b.await(row("released") + `.includes("billing")`) // there is a record when the first one has been held for a second
	_ = other.Release(t.Context())
	b.await(`!` + row("released"))
	client.Close()
	b.text("#stuck-list", "renewal overdue by")
	b.text("#lost-title", "Lost in the last ten minutes: 1")
	b.text("#lost-list", "dies: billing on ")
	b.await(`!` + row("dies"))
	b.quiet()
}
