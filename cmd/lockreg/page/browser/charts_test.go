package browser

import (
	"fmt"
	"testing"
	"time"

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
	b.await(axis("oldest-chart") + `.startsWith("3 s|0|")`)
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
	handOvers := `Number(document.querySelector("#hand-overs").innerText)`
	b.await(`document.querySelector("#grants-chart strong").innerText === "0.0"`)
	for i := 0; !value[bool](b, number+" > 0.2 && "+handOvers+" > 0.1 && "+handOvers+" < "+number); i++ {
		require.Less(t, i, 200)
		lock, other := made("a", 0), made(fmt.Sprint("b", i), 0)
		lock.Holders[0].Holder = fmt.Sprint("7f6f0f7a:", i)
		source.set(lock, other)
		<-time.After(200 * time.Millisecond)
	}
	require.Contains(t, value[string](b, `document.querySelector("#grants-chart svg").getAttribute("aria-label")`), "a lower bound")
	b.quiet()
}
