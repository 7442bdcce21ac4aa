package waiting_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry"
	"github.com/lockregistry/lockregistry/test/internal/kit"
)

// When the lock and its queue are gone, nothing tells the waiting calls. They notice it within two seconds all the same, each
// process by itself, however long they have waited, and although none of them polls.
func TestQueue_IsDeleted(t *testing.T) {
	t.Parallel()
	const processes = 6
	for name, command := range map[string][]string{
		"FLUSHALL": {"FLUSHALL"},
		"SWAPDB":   {"SWAPDB", "0", "1"},
		"DEL":      {"DEL", kit.TheKey, kit.TheQueue},
	} {
		for mode, how := range kit.Wakeups {
			t.Run(name+"/"+mode, func(t *testing.T) {
				kit.RealWorlds(t, func(w *kit.World) {
					holder := w.Registry(lockregistry.WithLease(time.Minute))
					w.Lock(holder.Obtain("42"))
					got := make(chan error, processes)
					for range processes {
						l := w.Waker(how).Obtain("42")
						go func() {
							err := l.Lock(w.Context())
							if err == nil {
								err = l.Unlock(w.Context())
							}
							got <- err
						}()
					}
					w.Await("they wait", func() bool { return w.Tickets() == processes })
					looks := w.Executed("zrank") // of each call that looks at its ticket
					w.Await("each looks, the last time for long", func() bool { return w.Executed("zrank") >= looks+processes-1 })
					w.Do(command...)
					start := time.Now()
					for range processes {
						require.NoError(w, <-got)
					}
					require.LessOrEqual(w, time.Since(start), 2500*time.Millisecond)
				})
			})
		}
	}
}
