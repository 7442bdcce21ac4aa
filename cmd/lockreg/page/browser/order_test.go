package browser

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry/inspect"
)

// listed is a script that is the paths of the list, in order.
const listed = `[...document.querySelectorAll("#rows .row:not([hidden])")].sort((a, b) => a.ariaRowIndex - b.ariaRowIndex).map(
	(r) => r.querySelector(".path").textContent).join()`

// Each column sorts, one way and the other, by mouse and by keys, and then the order is the first one again.
func TestColumnsSort(t *testing.T) {
	source := &fake{}
	lock := func(path, name string, waiters int, held, lease time.Duration) {
		l := made(path, waiters)
		l.Holders[0].Label = label(name, 1, "")
		l.Holders[0].Since, l.Holders[0].Lease = time.Now().Add(-held), lease
		source.set(l)
	}
	lock("b", "web-3", 0, time.Minute, time.Hour)
	lock("a", "web-1", 2, time.Hour, -1)
	lock("d", "web-2", 1, time.Second, time.Minute)
	free := inspect.Lock{Path: "c", Key: "orders:c", WaiterCount: 1, Waiters: made("c", 1).Waiters}
	free.Waiters[0].Since = time.Now().Add(-20 * time.Second)
	source.set(free)
	b := open(t, serve(t, source), 1200, 900)
	const contended = listed + ` === "a,c,d,b"`
	b.await(contended)
	for column, want := range map[string][2]string{
		"path":    {"a,b,c,d", "d,c,b,a"},
		"holder":  {"a,d,b,c", "b,d,a,c"}, // nobody comes last
		"held":    {"a,b,d,c", "d,b,a,c"},
		"lease":   {"d,b,a,c", "a,b,d,c"}, // what has no end is longest
		"waiting": {"a,c,d,b", "b,c,d,a"},
		"oldest":  {"c,a,d,b", "d,a,c,b"},
	} {
		header := fmt.Sprintf(`[data-column="%s"]`, column)
		for _, order := range want {
			b.click(header + " button")
			b.await(fmt.Sprintf(`%s === %q`, listed, order))
			require.Equal(t, 1, value[int](b, `document.querySelectorAll("[aria-sort$=cending]").length`))
			require.Contains(t, value[string](b, fmt.Sprintf(`document.querySelector('%s').getAttribute("aria-sort")`, header)), "cending")
		}
		b.click(header + " button")
		b.await(contended)
		require.Zero(t, value[int](b, `document.querySelectorAll("[aria-sort$=cending]").length`))
	}

	// By keys. Arrows on a button choose no lock.
	b.press("/", "/")
	for range 3 {
		b.press("Tab", "")
	}
	b.await(`document.activeElement.textContent === "Path"`)
	b.await(`document.getElementById("grid").getAttribute("aria-activedescendant")`)
	active := value[string](b, `document.getElementById("grid").getAttribute("aria-activedescendant")`)
	b.press("ArrowDown", "")
	b.press("Enter", "\r")
	b.await(listed + ` === "a,b,c,d"`)
	require.Equal(t, "ascending", value[string](b, `document.activeElement.parentElement.getAttribute("aria-sort")`))
	require.Equal(t, active, value[string](b, `document.getElementById("grid").getAttribute("aria-activedescendant")`))
	require.False(t, value[bool](b, `document.querySelector("#detail").open`))

	// What changes or comes later is in order, too.
	lock("aa", "web-9", 7, time.Minute, time.Minute)
	lock("b", "web-3", 9, time.Minute, time.Hour)
	b.await(listed + ` === "a,aa,b,c,d"`)
	b.await(row("b") + `.includes("9")`)
	require.NoError(t, source.ForceUnlockHolder(t.Context(), "a", ""))
	b.await(listed + ` === "aa,b,c,d"`)
	b.quiet()
}

// The columns that a phone shows sort there as well.
func TestColumnsSortOnAPhone(t *testing.T) {
	source := &fake{}
	source.set(made("a", 0), made("b", 1))
	b := open(t, serve(t, source), 390, 844)
	b.await(listed + ` === "b,a"`)
	b.click(`[data-column="path"] button`)
	b.await(listed + ` === "a,b"`)
	require.True(t, value[bool](b, `document.documentElement.scrollWidth <= innerWidth`))
	b.quiet()
}

// A lock that a listing does not name may be new by the time that the page drops it.
func TestALockThatComesAfterAListing(t *testing.T) {
	source := &fake{}
	source.set(made("a", 0), made("b", 0), made("c", 0))
	b := open(t, serve(t, source), 1200, 900)
	b.await(listed + ` === "a,b,c"`)
	require.Equal(t, "a,b", value[string](b, `Promise.all([import("./list.js"), import("./pump.js")]).then(
		([{begin, put, end, drop, locks}, {later}]) => {
			const finish = (task) => { while (!task.next().done); };
			const again = (path) => put({...[...locks.values()].find((lock) => lock.path === path), holder: null, oldest: null});
			finish(begin());
			again("a");
			finish(end((ids) => ids.forEach(drop)));
			again("b");
			return new Promise((resolve) => later(() => resolve([...locks.values()].map((lock) => lock.path).sort().join())));
		})`))
}

// Whatever comes at a time, all locks are in order, each once: a listing, parts of one, and another one after it.
func TestManyLocksAreInOrder(t *testing.T) {
	source := &fake{}
	set := func(from, n, waiters int) {
		locks := make([]inspect.Lock, n)
		for i := range locks {
			locks[i] = made(fmt.Sprintf("order:%05d", (from+i)*7919%100_000), (i+waiters)%5)
		}
		source.set(locks...)
	}
	set(0, 2500, 0)
	h := handler(t, source)
	server := listen(t, h, free(t))
	b := open(t, "http://"+server.Addr+"/", 1200, 900)
	inOrder := func(n int) {
		t.Helper()
		b.text("#count", fmt.Sprintf("%d locks", n))
		b.await(fmt.Sprintf(`document.querySelector("#grid").getAttribute("aria-rowcount") === "%d"`, n+1))
		require.Empty(t, value[string](b, `Promise.all([import("./list.js"), import("./order.js")]).then(
		([{all, locks}, {byContention}]) => {
			if (all.length !== locks.size) return all.length + " of " + locks.size;
			for (const lock of all) if (locks.get(lock.id) !== lock) return "an old one of " + lock.path;
			for (let i = 1; i < all.length; i++) if (byContention(all[i - 1], all[i]) >= 0) return all[i].path + " comes too late";
			return "";
		})`))
	}
	inOrder(2500)
	set(2500, 1000, 3) // many
	inOrder(3500)
	set(3500, 7, 3) // few
	inOrder(3507)
	set(0, 1500, 2) // others than before
	inOrder(3507)
	for i := range 500 {
		require.NoError(t, source.ForceUnlockHolder(t.Context(), fmt.Sprintf("order:%05d", i*7919%100_000), ""))
	}
	inOrder(3007)

	require.NoError(t, server.Close())
	b.text("#age", "connection lost")
	set(100, 300, 1)
	listen(t, h, server.Addr)
	inOrder(3307)
}
