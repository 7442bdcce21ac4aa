package bench_test

import (
	"context"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry"
	"github.com/lockregistry/lockregistry/internal/redistest"
	"github.com/lockregistry/lockregistry/test/internal/kit"
)

// BenchmarkServerMemory measures what the server keeps besides the locks themselves, in bytes for each of 10 000 things.
func BenchmarkServerMemory(b *testing.B) {
	b.Run("waiting/tracking", func(b *testing.B) {
		ticket, rest := newHoard(b).waiting(kit.WakeupTracking)
		b.ReportMetric(ticket, "B/ticket")
		b.ReportMetric(rest, "B/tracked-key")
	})
	b.Run("waiting/pubsub", func(b *testing.B) {
		ticket, rest := newHoard(b).waiting(kit.WakeupPubSub)
		b.ReportMetric(ticket, "B/ticket")
		b.ReportMetric(rest, "B/subscription")
	})
	b.Run("fencing", func(b *testing.B) {
		h := newHoard(b)
		r := h.registry(lockregistry.WithFencing())
		b.ReportMetric(h.grows(func() {
			h.each(func(path string) error { return r.Do(b.Context(), path, func(context.Context) error { return nil }) })
		}), "B/counter")
	})
	b.Run("record", func(b *testing.B) {
		h := newHoard(b)
		r := h.registry(lockregistry.WithName("billing"))
		held, err := r.Acquire(b.Context(), "42")
		require.NoError(b, err)
		key := "orders:{" + kit.ClientID(r) + "}:registry"
		for h.do("EXISTS", key) == "0" {
			<-time.After(10 * time.Millisecond)
		}
		bytes, err := strconv.ParseFloat(h.do("MEMORY", "USAGE", key), 64)
		require.NoError(b, err)
		b.ReportMetric(bytes, "B/record")
		require.NoError(b, held.Release(b.Context()))
	})
	b.Run("queue without tickets", func(b *testing.B) {
		h := newHoard(b)
		first, second := h.registry(), h.registry()
		b.ReportMetric(h.grows(func() {
			h.each(func(path string) error {
				held, err := first.Acquire(b.Context(), path)
				if err != nil {
					return err
				}
				waits := make(chan error, 1)
				go func() { waits <- second.Do(b.Context(), path, func(context.Context) error { return nil }) }()
				for h.do("ZCOUNT", QueueKey(path), "0", "+inf") == "0" {
					<-time.After(time.Millisecond)
				}
				if err := held.Release(b.Context()); err != nil {
					return err
				}
				return <-waits
			})
		}), "B/queue")
	})
}

func QueueKey(path string) string { return "orders:{orders:" + path + "}:waiters" }

// hoard is a server whose memory is measured.
type hoard struct {
	*testing.B
	server *redistest.Server
	client rueidis.Client
}

const hoarded = 10_000

func newHoard(b *testing.B) *hoard {
	b.Helper()
	h := &hoard{B: b, server: redistest.Start(b)}
	h.client = h.connect()
	b.ResetTimer()
	return h
}

func (h *hoard) connect() rueidis.Client {
	h.Helper()
	client, err := rueidis.NewClient(rueidis.ClientOption{
		InitAddress: []string{h.server.Addr()}, ForceSingleClient: true, DisableCache: true,
	})
	require.NoError(h, err)
	h.Cleanup(client.Close)
	return client
}

func (h *hoard) registry(opts ...lockregistry.Option) *lockregistry.Registry {
	h.Helper()
	r, err := lockregistry.New(h.connect(), "orders", append(opts, lockregistry.WithPollInterval(time.Hour))...)
	require.NoError(h, err)
	h.Cleanup(func() { _ = r.Close() })
	return r
}

func (h *hoard) do(args ...string) string { return kit.Reply(h.client, args...) }

// each does something with all paths, some of them at a time.
func (h *hoard) each(do func(path string) error) {
	h.Helper()
	paths := make(chan string)
	var all sync.WaitGroup
	for range 50 {
		all.Go(func() {
			for path := range paths {
				if err := do(path); err != nil {
					h.Error(err)
				}
			}
		})
	}
	for i := range hoarded {
		paths <- strconv.Itoa(i)
	}
	close(paths)
	all.Wait()
}

// used is the memory that the server uses once it has given back the buffers of connections.
func (h *hoard) used() float64 {
	h.Helper()
	last, since := "", time.Now()
	for {
		_, after, _ := strings.Cut(h.do("INFO", "memory"), "used_memory:")
		now, _, _ := strings.Cut(after, "\r")
		if now != last {
			last, since = now, time.Now()
		}
		if time.Since(since) > 3*time.Second {
			bytes, err := strconv.ParseFloat(now, 64)
			require.NoError(h, err)
			return bytes
		}
		<-time.After(100 * time.Millisecond)
	}
}

// grows returns by how much the server's memory grows for each path.
func (h *hoard) grows(by func()) float64 {
	h.Helper()
	before := h.used()
	by()
	return (h.used() - before) / hoarded
}

// waiting has one call wait for each path. It returns the memory of a ticket with its queue, and that of the rest.
func (h *hoard) waiting(mode kit.Wakeup) (ticket, rest float64) {
	h.Helper()
	h.each(func(path string) error {
		return h.client.Do(h.Context(), h.client.B().Set().Key("orders:"+path).Value("java").Px(time.Hour).Build()).Error()
	})
	r := h.registry(kit.WithWakeup(mode))
	ctx, cancel := context.WithCancel(h.Context())
	var all sync.WaitGroup
	rest = h.grows(func() {
		for i := range hoarded {
			all.Go(func() { _ = r.Obtain(strconv.Itoa(i)).Lock(ctx) })
		}
		require.Eventually(h, func() bool { return r.Stats().Tickets == hoarded }, time.Minute, 10*time.Millisecond)
	})
	ticket = -h.grows(func() {
		h.each(func(path string) error {
			return h.client.Do(h.Context(), h.client.B().Del().Key(QueueKey(path)).Build()).Error()
		})
	})
	cancel()
	all.Wait()
	return ticket, rest - ticket
}
