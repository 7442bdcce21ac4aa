package browser

import (
	"fmt"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/require"
)

// axis is a script that is what stands at a chart's axis.
func axis(figure string) string {
	return fmt.Sprintf(`[...document.querySelectorAll("#%s .plot span")].map((s) => s.innerText).join("|")`, figure)
}

func TestChartsHaveAnAxis(t *testing.T) {
	source := &fake{}
	source.set(made("a", 3), made("b", 0))
	b := open(t, serve(t, source), 1200, 900)
	b.await(axis("held-chart") + ` === "2|0|1 min ago|now"`)
	b.await(axis("waiters-chart") + ` === "3|0|1 min ago|now"`)
	b.await(`/^([3-9]|\d\d) s\|0\|/.test(` + axis("oldest-chart") + `)`)
	source.set(made("a", 1))
	b.await(`document.querySelector("#waiters-chart strong").innerText === "1"`)
	b.await(axis("waiters-chart") + ` === "3|0|1 min ago|now"`)
	require.Equal(t, "Waiting in the last 1 min: 1 now, 3 at most",
		value[string](b, `document.querySelector("#waiters-chart svg").getAttribute("aria-label")`))
	b.quiet()
}

// A lock's dialog has the number of those who waited for it, if anybody did.
func TestTrailOfALock(t *testing.T) {
	source := &fake{}
	source.set(made("a", 5), made("b", 0))
	b := open(t, serve(t, source), 1200, 900)
	b.await(row("a"))
	source.set(made("a", 2))
	b.await(row("a") + `.includes("\n2")`)
	b.click("#row-0")
	b.await(axis("trail") + ` === "5|0|1 min ago|now"`)
	label := `document.querySelector("#trail svg").getAttribute("aria-label")`
	b.await(label + ` === "Waiting for it in the last 1 min: 2 now, 5 at most"`)
	// The line goes on for as long as nothing changes: it has four points.
	require.Equal(t, 3, value[int](b, `document.querySelector("#trail .line").getAttribute("d").split("L").length - 1`))
	require.NoError(t, source.ForceUnlockHolder(t.Context(), "a", ""))
	b.text("#detail-facts", "Nobody holds it")
	b.await(label + ` === "Waiting for it in the last 1 min: 0 now, 5 at most"`)
	b.await(axis("trail") + ` === "5|0|1 min ago|now"`)
	b.click("#detail-close")
	b.click("#row-0")
	b.text("#detail-path", "b")
	b.await(`document.querySelector("#trail").hidden`)
	b.quiet()
}

// The browser remembers so many paths, those that changed last, so many steps of each, and ten minutes.
func TestTrailsAreLimited(t *testing.T) {
	b := open(t, serve(t, &fake{}), 1200, 900)
	b.await(`!document.querySelector("#empty").hidden`) // then a pass has ended: time before that is none
	seen := func(id string) bool {
		t.Helper()
		return value[bool](b, fmt.Sprintf(`import("./trails.js").then((m) => {
			m.drawTrail(%q);
			return !document.querySelector("#trail").hidden;
		})`, id))
	}
	follow := func(body string) {
		t.Helper()
		value[bool](b, `Promise.all([import("./trails.js"), import("./base.js")]).then(([{follow}, {clock}]) => {
			const now = clock.lastPass;`+body+`
			return true;
		})`)
	}
	follow(`for (let i = 0; i < 300; i++) follow("p" + i, now - 1000, 1);`)
	require.True(t, seen("p0"))
	follow(`follow("p0", now, 2); follow("new", now, 1); follow("idle", now, 0);`)
	require.True(t, seen("p0"), "it has changed since")
	require.False(t, seen("p1"))
	require.True(t, seen("new"))
	require.False(t, seen("idle"))

	follow(`for (let i = 0; i < 2000; i++) follow("busy", now - 2000 + i, 1 + i % 2);`)
	require.True(t, seen("busy"))
	require.LessOrEqual(t, value[int](b, `document.querySelector("#trail .line").getAttribute("d").split("L").length`), 1200)

	follow(`follow("old", now - 660_000, 7); follow("old", now - 630_000, 0);`)
	require.False(t, seen("old"))
	b.quiet()
}

func TestGrantsASecond(t *testing.T) {
	source := &fake{}
	source.set(made("a", 0))
	b := open(t, serve(t, source), 1200, 900)
	number := `Number(document.querySelector("#grants-chart strong").innerText)`
	handoffs := `Number(document.querySelector("#handoffs").innerText)`
	b.await(`document.querySelector("#grants-chart strong").innerText === "0.0"`)
	for i := 0; !value[bool](b, number+" > 0.2 && "+handoffs+" > 0.1 && "+handoffs+" < "+number); i++ {
		require.Less(t, i, 200)
		lock, other := made("a", 0), made(fmt.Sprint("b", i), 0)
		lock.Holders[0].Holder = fmt.Sprint("7f6f0f7a:", i)
		source.set(lock, other)
		<-time.After(200 * time.Millisecond)
	}
	require.Contains(t, value[string](b, `document.querySelector("#grants-chart svg").getAttribute("aria-label")`), "a lower bound")
	b.quiet()
}

// gaps is a script that is what is told of the gaps of a chart.
const gaps = `[...document.querySelectorAll("#held-chart .blanks span")].map((s) => s.textContent + ":" + s.title).join("|")`

// Where nothing is known the charts say why: nobody looked, or Redis did not answer.
func TestGapsAreTold(t *testing.T) {
	source := &fake{}
	source.set(made("a", 0))
	url := serve(t, source)
	b := open(t, url, 1200, 900)
	b.await(axis("held-chart") + ` === "1|0|1 min ago|now"`)
	b.await(gaps + ` === ""`)
	b.do(chromedp.Navigate("about:blank"))
	<-time.After(2500 * time.Millisecond)
	b.do(chromedp.Navigate(url))
	b.await(`/^nobody looked:nobody looked for \d+ s$/.test(` + gaps + `)`)
	b.await(`/^Locks held in the last 1 min: 1 now, 1 at most; nobody looked for \d+ s$/.test(
		document.querySelector("#held-chart svg").getAttribute("aria-label"))`)
	const line = `document.querySelector("#held-chart .line").getAttribute("d").split("M").length - 1`
	b.await(line + ` === 2`)

	source.failure.Store(&errRights)
	failing := `Number(/\|no answer:no answer for (\d+) s/.exec(` + gaps + `)?.[1] ?? 0)`
	b.await(failing + ` >= 2`) // and longer and longer
	b.await(failing + fmt.Sprintf(` > %d`, value[int](b, failing)))
	source.failure.Store(nil)
	b.await(`document.querySelector("#trouble").hidden`)
	b.await(line + ` === 3`)
	require.True(t, value[bool](b, `[...document.querySelectorAll("#held-chart .blanks span")].every((s) => {
		const [own, all] = [s.getBoundingClientRect(), s.parentElement.getBoundingClientRect()];
		return own.left >= all.left - 1 && own.right <= all.right + 1 && own.width > 2;
	})`))
	b.quiet()
}

// The charts show ten minutes, an hour, or six, and stay quick to draw.
func TestChartsOfHours(t *testing.T) {
	source := &fake{}
	source.set(made("a", 0))
	b := open(t, serve(t, source), 1200, 900)
	b.await(axis("held-chart") + ` === "1|0|1 min ago|now"`)
	// Five hours, of which nobody looked in the third, and a moment with nine waiting, two hours ago.
	b.await(`import("./charts.js").then((m) => {
		const history = [], now = Math.floor(Date.now() / 1000) * 1000;
		for (let age = 5 * 3600; age > 0; age -= age > 600 ? 10 : 1) {
			if (age > 7200 && age <= 10800) {
				if (age === 10800) history.push([now - age * 1000, 1]);
			} else history.push([now - age * 1000, 0, 1, age === 7200 ? 9 : 2, 0, (18000 - age) * 5, 0]);
		}
		m.began(history);
		return true;
	})`)
	b.await(axis("waiters-chart") + ` === "2|0|10 min ago|now"`)
	b.await(`document.querySelector("#spans [aria-pressed=true]").innerText === "10 min"`)
	b.click(`#spans button:nth-child(2)`)
	b.await(axis("waiters-chart") + ` === "2|0|1 h 0 min ago|now"`)
	b.await(gaps + ` === ""`)
	b.click(`#spans button:nth-child(3)`)
	b.await(axis("waiters-chart") + ` === "9|0|nobody looked|5 h 0 min ago|now"`)
	b.await(`document.querySelector("#spans [aria-pressed=true]").innerText === "6 h"`)
	b.await(gaps + ` === "nobody looked:nobody looked for 1 h 0 min"`)
	b.text("#held-chart .blanks", "nobody looked")
	points := `document.querySelector("#waiters-chart .line").getAttribute("d").split(/[LM]/).length`
	require.LessOrEqual(t, value[int](b, points), 620)
	b.await(`document.querySelector("#grants-chart .plot .most").innerText === "5.0"`)
	took := value[float64](b, `import("./charts.js").then((m) => {
		const times = [...Array(9)].map(() => { const t = performance.now(); m.charts(); return performance.now() - t; });
		return Math.min(...times);
	})`)
	t.Logf("drawn in %.1f ms", took)
	require.Less(t, took, 25.0)
	b.quiet()
}

// What the page has seen itself it thins out as the server does.
func TestBrowserThinsOutTheCharts(t *testing.T) {
	b := open(t, serve(t, &fake{}), 1200, 900)
	b.await(`!document.querySelector("#empty").hidden`)
	b.await(`import("./charts.js").then((m) => {
		const now = Date.now();
		const samples = [];
		for (let s = 7 * 3600; s > 5; s--) samples.push([now - s * 1000, 0, 1, s === 4003 ? 9 : 2, 0, 0, 0]);
		m.began(samples);
		return true;
	})`)
	b.click(`#spans button:nth-child(3)`)
	b.await(axis("waiters-chart") + ` .replace("5 h 59 min", "6 h 0 min") === "9|0|6 h 0 min ago|now"`)
	n := value[int](b, `import("./charts.js").then((m) => m.size())`)
	require.InDelta(t, 600+360*6-60, n, 10)
	b.quiet()
}
