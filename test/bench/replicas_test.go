package bench_test

import (
	"context"
	"net"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry"
	"github.com/lockregistry/lockregistry/internal/redistest"
)

// BenchmarkReplicas locks and unlocks free paths on a server with a replica, which must acknowledge each lock or need not.
func BenchmarkReplicas(b *testing.B) {
	server := redistest.Start(b, "--repl-diskless-sync-delay", "0")
	host, port, err := net.SplitHostPort(server.Addr())
	require.NoError(b, err)
	replica := redistest.Start(b, "--replicaof", host, port)
	server.Command(b, "SET", "first", "1")
	require.Eventually(b, func() bool { return replica.Command(b, "GET", "first") == "1" }, time.Minute, time.Millisecond)
	for name, opts := range map[string][]lockregistry.Option{
		"without": nil, "with": {lockregistry.WithReplicas(1, time.Second)},
	} {
		for _, goroutines := range []int{1, 8, 64} {
			b.Run(name+"/"+strconv.Itoa(goroutines), func(b *testing.B) {
				client, err := rueidis.NewClient(rueidis.ClientOption{
					InitAddress: []string{server.Addr()}, ForceSingleClient: true, DisableCache: true,
				})
				require.NoError(b, err)
				defer client.Close()
				r, err := lockregistry.New(client, "orders", opts...)
				require.NoError(b, err)
				defer func() { _ = r.Close() }()
				var paths atomic.Int64
				b.SetParallelism(goroutines)
				run := func(next func() bool) {
					path := strconv.FormatInt(paths.Add(1), 10)
					for next() {
						if err := r.Do(b.Context(), path, func(context.Context) error { return nil }); err != nil {
							b.Error(err)
							return
						}
					}
				}
				b.ResetTimer()
				if goroutines == 1 {
					run(b.Loop)
					return
				}
				b.RunParallel(func(pb *testing.PB) { run(pb.Next) })
			})
		}
	}
}
