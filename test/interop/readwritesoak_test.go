package interop

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/lockregistry/lockregistry/internal/peer"
)

// TestReadWriteSoak has two JVMs and two Go processes read and write what only read-write locks protect: writers change it in
// two steps, readers look twice. It fails if a single reader sees a change, if an update is lost, or on any error.
func TestReadWriteSoak(t *testing.T) {
	const (
		processes = 2 // of each language
		readers   = 2 // of each process on each path, so that they share locally too
		writers   = 1
	)
	paths := []string{"north", "east", "south", "west"}
	each := max(1, *sections/(2*processes*(readers+writers)*len(paths)))
	limit := 2*time.Minute + time.Duration(*sections)*5*time.Millisecond

	for _, p := range long(readWritePairs()) {
		t.Run(p.golang.name+" and "+p.java.name, func(t *testing.T) {
			v := judge(t, limit)
			ctx, cancel := context.WithTimeout(t.Context(), limit)
			defer cancel()
			prefix := uniquePrefix()
			counter := func(path string) string { return prefix + " counter " + path }
			// A writer's release by Redisson may miss a Redisson thread that is about to sleep. That thread then sleeps until the next
			// release, or as long as the writer's lease. So the lease is short, but longer than a busy machine may stall a process: a
			// lease that ends because of a stall fails the test.
			o := opening{prefix: prefix, lease: 10 * time.Second, renewal: true}

			var sides []*side
			for n := range processes {
				for _, lib := range []library{p.golang, p.java} {
					s := openOn(t, peers.get(t, lib, n+1), lib, o)
					for _, kind := range []*side{s.reader(), s.writer()} {
						kind.lock(t, "warm up")
						kind.unlock(t, "warm up")
					}
					sides = append(sides, s)
				}
			}

			began := time.Now()
			reading, writing := 0, 0
			verifying := make([]*peer.Call, 0, readers*len(sides)*len(paths))
			changing := make([]*peer.Call, 0, writers*len(sides)*len(paths))
			reads, writes := map[string][]*peer.Call{}, map[string][]*peer.Call{}
			for _, path := range paths {
				fields := with(path, "counter", counter(path), "n", strconv.Itoa(each))
				for _, s := range sides {
					for n := range readers {
						reader := s.reader().on(fmt.Sprintf("reader %d of %s", n, path))
						call := reader.send("verify", fields)
						verifying, reads[s.name] = append(verifying, call), append(reads[s.name], call)
						reading += each
					}
					for n := range writers {
						writer := s.writer().on(fmt.Sprintf("writer %d of %s", n, path))
						call := writer.send("write", fields)
						changing, writes[s.name] = append(changing, call), append(writes[s.name], call)
						writing += each
					}
				}
			}
			all := v.total(ctx, append(slices.Clone(verifying), changing...))
			turns := v.total(ctx, changing)
			seen := all - turns
			took := time.Since(began)

			if turns <= 2*len(changing) {
				v.failsf("each writer had its sections in one go: they did not contend")
			}
			if seen <= 2*len(verifying) {
				v.failsf("the readers saw hardly anything change: they did not contend")
			}
			want := strconv.Itoa(each * writers * len(sides))
			for _, path := range paths {
				for _, half := range []string{":first", ":second"} {
					if got := server.Command(t, "GET", counter(path)+half); got != want {
						v.failsf("updates of %s were lost: it counted to %s, not %s", path+half, got, want)
					}
				}
				requireFree(t, sides[0], path)
			}
			v.saysf("%d sections that read and %d that write in %v, %.0f a second; readers saw %d changes, writers changed %d times; "+
				"longest wait to read: Go %v, Java %v, to write: Go %v, Java %v",
				reading, writing, took.Round(time.Millisecond), float64(reading+writing)/took.Seconds(), seen, turns,
				v.longest(ctx, reads[p.golang.name]), v.longest(ctx, reads[p.java.name]),
				v.longest(ctx, writes[p.golang.name]), v.longest(ctx, writes[p.java.name]))
		})
	}
}
