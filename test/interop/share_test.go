package interop

import (
	"context"
	"flag"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry/internal/peer"
)

var shareFor = flag.Duration("share", time.Second, "for how long the soak of shares lasts; a second shows little")

// TestSoakOfShares has eight goroutines of two Go processes want a lock without pause, for sections of a millisecond, together
// with one thread of a JVM. Nobody starves. In a run of more than a second each side gets at least a third of what its number
// of threads would give it by chance. No wait takes half a second if Java is told of releases; a side that polls gets in by a
// window, once in 1.7 s.
func TestSoakOfShares(t *testing.T) {
	const processes, goroutines, threads = 2, 4, 1
	reads := strings.Repeat("read ", 3) + "write"
	fenced := beside(redissonRow, "auto")
	fenced.golang.settings["fencing"] = "true"
	for _, row := range []struct {
		name  string
		pair  pair
		kinds string        // of lock, in turn
		waits time.Duration // at most
		share float64       // at least
	}{
		{"Spring, SPIN_LOCK", beside(springs[0], "auto"), "plain", 3 * time.Second, 0},
		{"Spring, PUB_SUB_LOCK", beside(springs[1], "auto"), "plain", time.Second / 2, 1. / 3},
		{"Redisson, RLock", beside(redissonRow, "auto"), "plain", time.Second / 2, 1. / 3},
		{"Redisson, RReadWriteLock, 75 % reads", beside(redissonRow, "auto"), reads, time.Second / 2, 1. / 3},
		{"Redisson, RFencedLock", fenced, "fenced", time.Second / 2, 1. / 3},
	} {
		t.Run(row.name, func(t *testing.T) {
			v := judge(t, time.Minute)
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			o := opening{prefix: uniquePrefix(), lease: 10 * time.Second, renewal: true}
			var sides []*side
			for n := range processes {
				sides = append(sides, openOn(t, peers.get(t, row.pair.golang, n+1), row.pair.golang, o))
			}
			sides = append(sides, openOn(t, peers.get(t, row.pair.java, 1), row.pair.java, o))
			wanted := func(lasts time.Duration) (golang, java []*peer.Call) {
				fields := with("path", "kinds", row.kinds, "work", "1", "for", peer.InMillis(lasts))
				for _, s := range sides[:processes] {
					for n := range goroutines {
						golang = append(golang, s.on(strconv.Itoa(n)).send("share", fields))
					}
				}
				for n := range threads {
					java = append(java, sides[processes].on(strconv.Itoa(n)).send("share", fields))
				}
				return golang, java
			}
			golang, java := wanted(time.Second) // this loads the classes
			for _, call := range slices.Concat(golang, java) {
				ended(t, call)
			}
			golang, java = wanted(*shareFor)
			total := func(calls []*peer.Call) (sections int) {
				for _, call := range calls {
					reply, err := call.Wait(ctx)
					require.NoError(t, err)
					n, err := strconv.Atoi(reply.Fields["sections"])
					require.NoError(t, err)
					sections += n
				}
				return sections
			}
			ofGo, ofJava := total(golang), total(java)
			lot := float64(ofGo+ofJava) / float64(len(golang)+len(java))
			shareOfGo, shareOfJava := float64(ofGo)/lot/float64(len(golang)), float64(ofJava)/lot/float64(len(java))
			waitOfGo, waitOfJava := v.longest(ctx, golang), v.longest(ctx, java)
			v.saysf("%d sections of Go and %d of Java: %.2f and %.2f of their lots; longest wait: Go %v, Java %v",
				ofGo, ofJava, shareOfGo, shareOfJava, waitOfGo, waitOfJava)
			require.Positive(t, min(ofGo, ofJava))
			if *shareFor > time.Second {
				require.Greater(t, min(shareOfGo, shareOfJava), row.share)
				require.Less(t, max(waitOfGo, waitOfJava), row.waits)
			}
		})
	}
}
