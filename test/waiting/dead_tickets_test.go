package waiting_test

import (
	"context"
	"fmt"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry"
	"github.com/lockregistry/lockregistry/test/internal/kit"
)

// Processes that crash while they wait leave tickets. A release passes over them. But a lock may be held for long, as by a
// leader, and each candidate that crashes adds one. The first look of a call behind them removes them.
func TestQueue_DeadTicketsGoWhileTheLockIsHeld(t *testing.T) {
	t.Parallel()
	const crashes = 5
	for name, c := range map[string]struct {
		hold func(w *kit.World)
		wait func(ctx context.Context, r *lockregistry.Registry) error
	}{
		"lock": {
			func(w *kit.World) { w.Lock(w.Registry().Obtain("42"), lockregistry.Lease(10*time.Minute)) },
			func(ctx context.Context, r *lockregistry.Registry) error { return r.Obtain("42").Lock(ctx) },
		},
		"permits": {
			func(w *kit.World) { w.Permit(w.Registry().Semaphore("42", 1), lockregistry.Lease(10*time.Minute)) },
			func(ctx context.Context, r *lockregistry.Registry) error {
				_, err := r.Semaphore("42", 1).Acquire(ctx)
				return err
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			kit.RealWorlds(t, func(w *kit.World) {
				c.hold(w)
				ctx, cancel := context.WithCancel(w.Context())
				results := make(chan error, crashes+1)
				waits := func(r *lockregistry.Registry) {
					go func() { results <- c.wait(ctx, r) }()
					w.Await("a ticket", func() bool { return r.Stats().Tickets == 1 })
				}
				for range crashes {
					f := w.Flaky()
					waits(f.Registry())
					f.Down()
				}
				waits(w.Registry())
				w.Await("theirs are gone", func() bool { return w.Tickets() == 1 })
				cancel()
				for range crashes + 1 {
					require.ErrorIs(w, <-results, context.Canceled)
				}
			})
		})
	}
}

// Tickets of dead processes, however many, do not delay the call that notices the crash of the holder.
func TestQueue_HolderCrashesBehindDeadTickets(t *testing.T) {
	kit.RealWorlds(t, func(w *kit.World) {
		const dead, lease, limit = 250, 4 * time.Second, 5 * time.Second
		crashes, waits := w.Registry(), w.Registry()
		w.Lock(crashes.Obtain("42"), lockregistry.Lease(lease))
		locked := time.Now()
		require.NoError(w, crashes.Close()) // leaves the key to its lease
		tickets := []string{"ZADD", kit.TheQueue, strconv.FormatInt(-locked.UnixMilli(), 10), "open", "-1", "wide"}
		for i := range dead {
			tickets = append(tickets, strconv.Itoa(1000+i), fmt.Sprintf("00000000-0000-0000-0000-%012d:17952783712%05d|60000", i, i))
		}
		w.Do(tickets...)
		w.Lock(waits.Obtain("42"))
		require.Less(w, time.Since(locked)-lease, limit, "by their number it would be %v", dead*100*time.Millisecond)
		w.Unlock(waits.Obtain("42"))
	})
}
