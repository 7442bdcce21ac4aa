package lockregistry_test

import (
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry"
	"github.com/lockregistry/lockregistry/internal/redistest"
)

// sharded tells whether a server has channels in slots, without which there is no queue on a cluster.
func sharded(t *testing.T, server *redistest.Server) bool {
	t.Helper()
	major, _, _ := strings.Cut(server.Version(t), ".")
	n, err := strconv.Atoi(major)
	require.NoError(t, err)
	return n >= 7
}

// On a cluster the queue and the channels are in the slot of the key: grants come on the connection to its master, and
// nothing is sent over the cluster's bus. Each process has its share.
func TestQueueOnACluster(t *testing.T) {
	nodes := redistest.StartCluster(t, 3)
	const processes, turns = 4, 50
	for _, layout := range []lockregistry.Layout{lockregistry.LayoutSpring, lockregistry.LayoutRedisson} {
		for _, path := range []string{"a", "b", "c", "{tag}d", "e}f"} {
			t.Run(strconv.Itoa(int(layout))+path, func(t *testing.T) {
				var all sync.WaitGroup
				inside, entered := 0, make([]int, processes)
				for i := range processes {
					client, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{nodes[0].Addr()}})
					require.NoError(t, err)
					t.Cleanup(client.Close)
					r, err := lockregistry.New(client, "orders", lockregistry.WithLayout(layout))
					require.NoError(t, err)
					t.Cleanup(func() { _ = r.Close() })
					l := r.Obtain(path)
					all.Go(func() {
						for range turns {
							if err := l.Lock(t.Context(), lockregistry.Wait(20*time.Second)); err != nil {
								t.Error(err)
								return
							}
							inside++
							if inside != 1 {
								t.Error("two are inside")
							}
							entered[i]++
							inside--
							if err := l.Unlock(t.Context()); err != nil {
								t.Error(err)
							}
						}
					})
				}
				all.Wait()
				require.Equal(t, slices.Repeat([]int{turns}, processes), entered)
			})
		}
	}
	granted := 0
	for _, node := range nodes {
		_, stats, _ := strings.Cut(node.Command(t, "INFO", "commandstats"), "cmdstat_spublish:calls=")
		calls, _, _ := strings.Cut(stats, ",")
		n, _ := strconv.Atoi(calls)
		granted += n
	}
	if sharded(t, nodes[0]) {
		require.Greater(t, granted, 8*processes*turns/2, "most holds are granted by a release, unless braces forbid it")
	} else {
		require.Zero(t, granted, "there is no queue")
	}
}
