package interop

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry/internal/peer"
	"github.com/lockregistry/lockregistry/test/interop/monitor"
)

var rounds = flag.Int("rounds", 1, "how many handoffs TestHandoffLatency measures for each direction and mode")

// TestHandoffLatency measures the time from the moment a holder asks for the release to the moment a waiter of the other
// language has the lock, by this machine's wall clock. It runs alone and prints a table.
func TestHandoffLatency(t *testing.T) {
	const warmup = 3 // rounds that load classes and open connections
	var table strings.Builder
	fmt.Fprintln(&table, "| Java library and mode | Go wake-up | Go to Java: median | 90 % | Java to Go: median | 90 % |")
	fmt.Fprintln(&table, "|---|---|---|---|---|---|")
	watch := monitor.Start(t, server.Addr())
	measure := func(p pair, what string, change change) {
		fmt.Fprintf(&table, "| %s%s | %s |", p.java.name, what, p.golang.settings["wakeup"])
		for _, r := range bothWays([]pair{p}, always) {
			prefix := uniquePrefix()
			holder := change.from(open(t, r.holder, opening{prefix: prefix}))
			waiter := change.to(open(t, r.waiter, opening{prefix: prefix}))
			var took []time.Duration
			for round := range warmup + *rounds {
				got, released := measuredHandoff(t, watch, holder, waiter)
				if round >= warmup {
					took = append(took, got.Sub(released))
				}
			}
			slices.Sort(took)
			require.Positive(t, took[0], "the waiter had the lock before its release: %s", r)
			fmt.Fprintf(&table, " %s | %s |", millis(took[len(took)/2]), millis(took[len(took)*9/10]))
		}
		fmt.Fprintln(&table)
	}
	for _, p := range long(append(pollingPairs(), wakeupPairs()...)) {
		same := func(s *side) *side { return s }
		measure(p, "", change{from: same, to: same})
	}
	for _, change := range changes {
		measure(beside(redissonRow, "auto"), ", "+change.name, change)
	}
	t.Logf("handoff latencies over %d rounds each:\n%s", *rounds, table.String())
}

// pollingPairs are pairs in which both sides poll, as before there were wake-ups.
func pollingPairs() (pairs []pair) {
	for _, java := range springs {
		if java.polls {
			pairs = append(pairs, beside(java, "poll"))
		}
	}
	return pairs
}

// measuredHandoff is handoff. To a waiter that polls, the release comes at any moment between two of its tries.
func measuredHandoff(t *testing.T, watch *monitor.Monitor, holder, waiter *side) (got, released time.Time) {
	t.Helper()
	if !waiter.polls {
		return handoff(t, watch, holder, waiter, "path")
	}
	const (
		beforehand = 30 * time.Millisecond // ample for the waiter to begin
		pause      = 100 * time.Millisecond
	)
	for {
		holding := holder.send("hold", with("path", "for", peer.InMillis(beforehand+rand.N(pause))))
		awaitKey(t, holder.key("path"))
		acquired := waiter.lock(t, "path")
		waiter.unlock(t, "path")
		released, err := ended(t, holding).Time("unlocking")
		require.NoError(t, err)
		if acquired.Begin.Before(released) {
			return acquired.End, released
		}
	}
}

func millis(d time.Duration) string { return fmt.Sprintf("%.2f ms", float64(d.Microseconds())/1000) }
