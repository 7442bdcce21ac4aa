package interop

import (
	"context"
	"flag"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/lockregistry/lockregistry/internal/peer"
)

var sections = flag.Int("sections", 10_000, "how many sections each soak runs under locks")

// TestSoak has two JVMs and two Go processes add to four counters that only the locks protect. It fails on a single lost
// update, or on any error.
func TestSoak(t *testing.T) {
	const (
		processes = 2 // of each language
		threads   = 2 // of each process on each path, so that they also meet locally
	)
	paths := []string{"north", "east", "south", "west"}
	each := max(1, *sections/(2*processes*threads*len(paths)))
	limit := 2*time.Minute + time.Duration(*sections)*5*time.Millisecond

	for _, p := range long(plainPairs()) {
		t.Run(p.java.name, func(t *testing.T) {
			v := judge(t, limit)
			ctx, cancel := context.WithTimeout(t.Context(), limit)
			defer cancel()
			prefix := uniquePrefix()
			counter := func(path string) string { return prefix + " counter " + path }

			var sides []*side
			for n := range processes {
				for _, lib := range []library{p.golang, p.java} {
					s := openOn(t, peers.get(t, lib, n+1), lib, opening{prefix: prefix, eager: true})
					// Otherwise the others would have the counters to themselves while it loads classes.
					s.lock(t, "warm up")
					s.unlock(t, "warm up")
					sides = append(sides, s)
				}
			}

			began := time.Now()
			calls := make([]*peer.Call, 0, len(sides)*threads*len(paths))
			of := map[string][]*peer.Call{}
			for _, path := range paths {
				for thread := range threads {
					for n, s := range sides {
						call := s.on(fmt.Sprintf("%s %d", path, thread)).send("count",
							with(path, "counter", counter(path), "n", strconv.Itoa(each), "as", fmt.Sprintf("%s %d", s.name, n)))
						calls, of[s.name] = append(calls, call), append(of[s.name], call)
					}
				}
			}
			turns := v.total(ctx, calls)
			took := time.Since(began)

			if turns <= len(sides)*len(paths) {
				v.failsf("each process had its sections in one go: they did not contend")
			}
			want := each * len(sides) * threads
			for _, path := range paths {
				got, _, _ := strings.Cut(server.Command(t, "GET", counter(path)), " ")
				if got != strconv.Itoa(want) {
					v.failsf("updates of %s were lost: it counted to %s, not %d", path, got, want)
				}
			}
			v.saysf("%d sections in %v, %.0f a second; the lock changed process %d times; longest wait: Go %v, Java %v",
				want*len(paths), took.Round(time.Millisecond), float64(want*len(paths))/took.Seconds(), turns,
				v.longest(ctx, of[p.golang.name]), v.longest(ctx, of[p.java.name]))
		})
	}
}
