package waiting_test

import (
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry"
	"github.com/lockregistry/lockregistry/internal/netfault"
	"github.com/lockregistry/lockregistry/test/internal/kit"
)

// When the lock and its queue are gone, nothing tells the waiting calls. They notice it within two seconds all the same, each
// process separately, however long they have waited, although none of them polls.
func TestQueue_IsDeleted(t *testing.T) {
	t.Parallel()
	const (
		processes = 6
		// Otherwise the last three processes would look after 15 s at the earliest: every 5 s for each ticket in front.
		limit = 10 * time.Second
	)
	for mode, command := range map[string][]string{
		"auto":     {"SWAPDB", "0", "1"},
		"pubsub":   {"FLUSHALL"},
		"tracking": {"DEL", kit.TheKey, kit.TheQueue},
	} {
		t.Run(command[0]+"/"+mode, func(t *testing.T) {
			kit.RealWorlds(t, func(w *kit.World) {
				holder := w.Registry(lockregistry.WithLease(time.Minute))
				w.Lock(holder.Obtain("42"))
				got := make(chan error, processes)
				for range processes {
					l := w.Waker(kit.Wakeups[mode]).Obtain("42")
					go func() {
						err := l.Lock(w.Context())
						if err == nil {
							err = w.UnlessLate(l.Unlock(w.Context()))
						}
						got <- err
					}()
				}
				w.Await("they wait", func() bool { return w.Tickets() == processes })
				looks := w.Executed("zrank") // one for each look of a call at its ticket
				w.Await("each looks, the last time for long", func() bool { return w.Executed("zrank") >= looks+processes-1 })
				w.Do(command...)
				start := time.Now()
				for range processes {
					require.NoError(w, <-got)
				}
				require.Less(w, time.Since(start), limit, "two seconds, on a machine that may be busy")
			})
		})
	}
}

// Where many locks change hands, tickets may be missing because they were granted just now. Then nothing is lost, and no call
// looks.
func TestQueue_MissingTicketsThatWereGranted(t *testing.T) {
	kit.RealWorlds(t, func(w *kit.World) {
		const paths, missing = 8, 3 // tickets that are missing in a row make all calls look
		holder, f := w.Registry(), w.Flaky()
		r := f.Registry(lockregistry.WithPollInterval(kit.NoPoll))
		held := map[string]*lockregistry.Hold{} // by the key of its queue
		got := make(chan error, paths)
		for i := range paths {
			path := strconv.Itoa(i)
			queue := "orders:{orders:" + path + "}:waiters"
			held[queue] = w.Permit(holder.Semaphore(path, 1))
			go func() {
				_, err := r.Semaphore(path, 1).Acquire(w.Context())
				got <- err
			}()
			w.Await("it waits", func() bool { return w.Do("ZCOUNT", queue, "0", "+inf") == "1" })
		}
		questions := make([]*netfault.Held, missing)
		for n := range questions {
			questions[n] = netfault.Hold(false)
			f.Fates("ZSCORE", kit.Fate{Held: questions[n]})
		}
		for n, q := range questions {
			<-q.Arrived()
			asked := f.Sent("ZSCORE")
			queue := asked[len(asked)-1].Args[1]
			w.Release(held[queue])
			delete(held, queue)
			w.Await("the message comes first", func() bool { return r.Stats().Wakeups.Messages == uint64(n+1) })
			q.Release()
		}
		asked := f.Count("ZSCORE")
		w.Await("another question", func() bool { return f.Count("ZSCORE") > asked })
		for _, h := range held {
			w.Release(h)
		}
		for range paths {
			require.NoError(w, <-got)
		}
		looks := 0
		for _, c := range f.Sent(kit.Anything) {
			if slices.Contains(c.Args, "check") {
				looks++
			}
		}
		// On a busy machine calls look by themselves, and again after a late reply.
		require.Less(w, looks-int(r.Stats().Wakeups.Polls), paths-missing)
	})
}
