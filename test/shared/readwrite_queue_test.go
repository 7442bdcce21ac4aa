package shared_test

import (
	"context"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry"
	"github.com/lockregistry/lockregistry/test/internal/kit"
)

// soon waits for a result that must arrive within the time of a few commands, and not by a poll or a timer, the first of which
// comes after a second. On a busy machine it waits longer, for as long as forty commands of a bystander take.
func soon(w *kit.World, result <-chan error) {
	w.Helper()
	comes := func(limit time.Duration) bool {
		select {
		case err := <-result:
			require.NoError(w, err)
			return true
		case <-time.After(limit):
			return false
		}
	}
	if !comes(900*time.Millisecond) && (w.Fake || !comes(10*w.Bystander())) {
		w.Fatal("not granted")
	}
}

// Readers and writers of several processes are served in the order of their arrival. A release lets in all readers in front of
// the next writer.
func TestQueue_ReadersAndWritersInOneQueue(t *testing.T) {
	kit.RealWorlds(t, func(w *kit.World) {
		p := make([]kit.Pair, 7)
		for i := range p {
			p[i] = w.Pair(lockregistry.WithPollInterval(kit.NoPoll))
		}
		w.Lock(p[0].Writer)
		g1, r1 := w.LinesUp(p[1].Reader)
		g2, r2 := w.LinesUp(p[2].Reader)
		g3, w3 := w.LinesUp(p[3].Writer)
		g4, r4 := w.LinesUp(p[4].Reader)
		g5, w5 := w.LinesUp(p[5].Writer)
		require.Equal(w, "rrwrw", w.RwTickets())

		w.Unlock(p[0].Writer)
		soon(w, r1)
		soon(w, r2)
		require.Equal(w, "wrw", w.RwTickets())
		require.Len(w, holdersOf(w, kit.TheKey), 2)

		// A new reader does not overtake the writer, although others read.
		g6, r6 := w.LinesUp(p[6].Reader)
		require.NoError(w, g1.Unlock(p[1].Reader))
		w.Pending(w3)
		require.NoError(w, g2.Unlock(p[2].Reader))
		soon(w, w3)
		w.Pending(r4)
		require.NoError(w, g3.Unlock(p[3].Writer))
		soon(w, r4)
		w.Pending(r6)
		w.Pending(w5)
		require.NoError(w, g4.Unlock(p[4].Reader))
		soon(w, w5)
		require.NoError(w, g5.Unlock(p[5].Writer))
		soon(w, r6)
		require.NoError(w, g6.Unlock(p[6].Reader))
		w.LeftNothing()
	})
}

// A reader that polls beside other readers waits for a writer in the queue, but not for tickets of dead processes.
func TestQueue_AReaderThatPollsPassesDeadTickets(t *testing.T) {
	kit.RealWorlds(t, func(w *kit.World) {
		reads, g := w.Pair().Reader, w.Goroutine()
		w.Lock(reads)
		w.Do("ZADD", kit.RwQueue, "5", "gone:7|60000w", "6", "gone:8|60000r", "7", "lost:1|60000w")
		polls := w.Pair(kit.WithWakeup(kit.WakeupPoll)).Reader
		require.NoError(w, g.Lock(polls, lockregistry.Wait(time.Minute)))
		require.Empty(w, w.RwTickets())
		require.NoError(w, g.Unlock(polls))
		w.Do("ZADD", kit.RwQueue, "5", "gone:9|60000x") // a ticket of a version that does not exist yet
		ok, err := g.Try(polls, lockregistry.Wait(300*time.Millisecond))
		require.NoError(w, err)
		require.False(w, ok)
		require.Equal(w, "1", w.Do("ZREM", kit.RwQueue, "gone:9|60000x"))

		writer := w.Pair().Writer
		writes, got := w.LinesUp(writer)
		ok, err = g.Try(polls, lockregistry.Wait(300*time.Millisecond))
		require.NoError(w, err)
		require.False(w, ok)
		require.Equal(w, "w", w.RwTickets())
		w.Unlock(reads)
		require.NoError(w, <-got)
		require.NoError(w, writes.Unlock(writer))
		w.LeftNothing()
	})
}

// More readers wait than one script serves.
func TestQueue_VeryManyReadersAreServed(t *testing.T) {
	kit.FakeWorld(t, func(w *kit.World) {
		w.WithQueues()
		const readers = 150
		client := w.Client()
		holder := w.Pair()
		w.Lock(holder.Writer)
		results := make([]<-chan error, readers)
		locks := make([]*lockregistry.Lock, readers)
		goroutines := make([]*kit.Goroutine, readers)
		for i := range readers {
			locks[i] = kit.PairOf(w.RegistryOn(client, lockregistry.WithPollInterval(kit.NoPoll))).Reader
			goroutines[i] = w.Goroutine()
			results[i] = goroutines[i].Starts(locks[i])
		}
		w.Await("their tickets", func() bool { return len(w.RwTickets()) == readers })
		w.Unlock(holder.Writer)
		for i := range readers {
			soon(w, results[i])
		}
		require.Len(w, holdersOf(w, kit.TheKey), readers)
		for i, g := range goroutines {
			require.NoError(w, g.Unlock(locks[i]))
		}
		w.LeftNothing()
	})
}

// A writer that gives up, or whose process has died, keeps nobody out.
func TestQueue_AWriterThatLeavesTheQueue(t *testing.T) {
	kit.FakeWorld(t, func(w *kit.World) {
		w.WithQueues()
		a, b, c := w.Pair(), w.Pair(), w.Pair()
		w.Lock(a.Reader)
		g, writer := w.Goroutine(), make(chan error, 1)
		ctx, cancel := context.WithCancel(w.Context())
		go func() { writer <- b.Writer.Lock(ctx) }()
		w.Await("its ticket", func() bool { return w.RwTickets() == "w" })
		got := g.Starts(c.Reader)
		w.Await("their tickets", func() bool { return w.RwTickets() == "wr" })
		// Nor does it keep out other readers of the process that reads.
		first := w.Goroutine()
		w.Await("it is held back", func() bool {
			ctx, cancel := context.WithTimeout(w.Context(), 50*time.Millisecond)
			defer cancel()
			err := first.Do(func() error {
				if err := a.Reader.Lock(ctx); err != nil {
					return err
				}
				return a.Reader.Unlock(w.Context())
			})
			return err != nil
		})
		joins := first.Starts(a.Reader)
		w.Pending(got)
		cancel()
		require.ErrorIs(w, <-writer, context.Canceled)
		soon(w, got)
		soon(w, joins)
		require.NoError(w, g.Unlock(c.Reader))
		require.NoError(w, first.Unlock(a.Reader))

		// A ticket of a dead process is passed over.
		w.Do("ZADD", kit.RwQueue, "5", "gone:7|60000w")
		require.NoError(w, g.Lock(c.Reader))
		require.Empty(w, w.RwTickets())
		require.NoError(w, g.Unlock(c.Reader))
		w.Unlock(a.Reader)
		w.LeftNothing()
	})
}

// A writer that continues as a reader lets in the readers at the front of the queue.
func TestQueue_DowngradeServesReaders(t *testing.T) {
	kit.RealWorlds(t, func(w *kit.World) {
		a, b, c, d := w.Pair(), w.Pair(), w.Pair(), w.Pair()
		w.Lock(a.Writer)
		gb, rb := w.LinesUp(b.Reader)
		gc, wc := w.LinesUp(c.Writer)
		_, rd := w.LinesUp(d.Reader)
		w.Lock(a.Reader) // past the queue, since it writes
		w.Unlock(a.Writer)
		soon(w, rb)
		require.Equal(w, "wr", w.RwTickets())
		require.Equal(w, "read", fields(w, kit.TheKey)["mode"])
		w.Unlock(a.Reader)
		w.Pending(wc)
		require.NoError(w, gb.Unlock(b.Reader))
		soon(w, wc)

		// A writer that was granted the lock by another process does the same.
		require.NoError(w, gc.Lock(c.Reader))
		require.Equal(w, "write", fields(w, kit.TheKey)["mode"])
		require.Len(w, holdersOf(w, kit.TheKey), 2)
		w.Pending(rd)
		require.NoError(w, gc.Unlock(c.Writer))
		soon(w, rd)
		require.NoError(w, gc.Unlock(c.Reader))
	})
}

// The lease of a grant is short, and soon lengthened: readers that share the hold meanwhile do not wait for that.
func TestQueue_AGrantedReaderKeepsItsLease(t *testing.T) {
	kit.FakeWorld(t, func(w *kit.World) {
		w.WithQueues()
		f := w.Flaky()
		a, b, c := w.Pair(), kit.PairOf(f.Registry()), w.Pair()
		w.Lock(a.Writer)
		g, got := w.LinesUp(b.Reader)
		held, other := w.LinesUp(c.Reader, lockregistry.Lease(20*time.Second))
		f.Fate("read", kit.Refused(kit.Loading))
		w.Unlock(a.Writer)
		soon(w, got)
		soon(w, other)
		require.LessOrEqual(w, w.Pttl("{orders:42}:"+reader(w, b)+":rwlock_timeout:1"), time.Second)
		second := w.Goroutine()
		require.NoError(w, second.Lock(b.Reader), "no command is needed")
		require.NoError(w, second.Unlock(b.Reader))
		f.Forget()
		for _, p := range []kit.Pair{b, c} {
			w.Await("its lease", func() bool { return w.Pttl("{orders:42}:"+reader(w, p)+":rwlock_timeout:1") > 15*time.Second })
		}
		w.Pass(1200 * time.Millisecond)
		require.True(w, b.Reader.IsHeld())
		require.True(w, c.Reader.IsHeld())
		require.NoError(w, g.Unlock(b.Reader))
		require.NoError(w, held.Unlock(c.Reader))
		w.LeftNothing()
	})
}

// reader returns the field of a process's read hold.
func reader(w *kit.World, p kit.Pair) string {
	w.Helper()
	for _, field := range holdersOf(w, kit.TheKey) {
		if strings.HasPrefix(field, kit.ClientID(p.Reg)) {
			return field
		}
	}
	return "none"
}

// Messages about grants never arrive: the calls find their grants by looking.
func TestQueue_LostGrantsOfReadersAndWriters(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{"reader", "writer"} {
		t.Run(kind, func(t *testing.T) {
			kit.RealWorlds(t, func(w *kit.World) {
				pick := func(p kit.Pair) *lockregistry.Lock {
					if kind == "reader" {
						return p.Reader
					}
					return p.Writer
				}
				a, d := w.Pair(), &kit.DeafDialer{W: w}
				b := kit.PairOf(w.RegistryOn(w.ClientWith(d.Dial)))
				w.Lock(a.Writer)
				g, got := w.LinesUp(pick(b))
				d.Deafen()
				w.Unlock(a.Writer)
				select {
				case err := <-got:
					require.NoError(w, err)
				case <-time.After(20 * time.Second): // each call looks every 30 s
					w.Fatal("never")
				}
				require.Len(w, holdersOf(w, kit.TheKey), 1)
				require.NoError(w, g.Unlock(pick(b)))
				w.LeftNothing()
			})
		})
	}
}

// starved is longer than any writer waits for readers that overlap without end, even on a busy machine.
const starved = 10 * time.Second

// Readers overlap without end, in two processes, and a writer in a third one gets in.
func TestQueue_ReadersElsewhereLetAWriterIn(t *testing.T) {
	kit.RealWorlds(t, func(w *kit.World) {
		reads, stop := readOn(w)
		writer := w.Pair().Writer
		var waits []time.Duration
		for range 10 {
			<-time.After(50 * time.Millisecond)
			before := reads.Load()
			start := time.Now()
			w.Lock(writer)
			waits = append(waits, time.Since(start))
			w.Unlock(writer)
			w.Await("they read again", func() bool { return reads.Load() > before+6 })
		}
		stop()
		slices.Sort(waits)
		w.Log(waits)
		require.Less(w, waits[len(waits)/2], time.Second+w.Bystander(), "about 200 ms, and a section")
		require.Less(w, waits[len(waits)-1], starved)
	})
}

// A ticket that becomes the first before its call has looked still learns of Redisson's release.
func TestQueue_ANewFirstTicketHearsOfRedissonsRelease(t *testing.T) {
	each(t, func(t *testing.T, pick func(kit.Pair) *lockregistry.Lock) {
		kit.RealWorlds(t, func(w *kit.World) {
			const timeout = "{orders:42}:java:1:rwlock_timeout:1"
			w.Do("HSET", kit.TheKey, "mode", "write", "java:1:write", "1")
			w.Do("SET", timeout, "1", "PX", "30000")
			w.Do("PEXPIRE", kit.TheKey, "30000")
			ctx, cancel := context.WithCancel(w.Context())
			left := kit.LockElsewhere(w.Pair().Writer, ctx)
			w.Await("its ticket", func() bool { return w.RwTickets() == "w" })
			_, got := w.LinesUp(pick(w.Pair()))
			cancel()
			require.ErrorIs(w, <-left, context.Canceled)
			w.Await("it has left", func() bool { return len(w.RwTickets()) == 1 })
			start := time.Now()
			w.Do("DEL", kit.TheKey, timeout)
			w.Do("PUBLISH", rwChannel, "0")
			require.Less(w, w.Takes(start, got), 600*time.Millisecond+10*w.Bystander(), "it looks after 1.1 s by itself")
		})
	})
}

// readOn has goroutines of two processes read without a pause.
func readOn(w *kit.World, opts ...lockregistry.Option) (reads *atomic.Int64, stop func()) {
	return readWith(w, w.Pair(opts...).Reader, w.Pair(opts...).Reader)
}

// readWith has three goroutines with each lock read without a pause, until stop is called. Reads counts their sections.
func readWith(w *kit.World, readers ...*lockregistry.Lock) (reads *atomic.Int64, stop func()) {
	reads = new(atomic.Int64)
	stopped := make(chan struct{})
	var all sync.WaitGroup
	for _, l := range readers {
		for range 3 {
			all.Go(func() {
				for {
					select {
					case <-stopped:
						return
					default:
					}
					if err := w.Answer(func() error { return l.Lock(w.Context()) }); err != nil {
						w.Error(err)
						return
					}
					<-time.After(time.Duration(5+rand.IntN(10)) * time.Millisecond)
					reads.Add(1)
					if err := w.UnlessBusy(l.Unlock(w.Context())); err != nil {
						w.Error(err)
					}
				}
			})
		}
	}
	return reads, func() {
		close(stopped)
		all.Wait()
	}
}

// Readers of several processes come and go. While no writer waits nothing delays them: there is no queue.
func TestQueue_ReadersThatComeAndGoAreNotHeldBackWithoutAWriter(t *testing.T) {
	kit.RealWorlds(t, func(w *kit.World) {
		_, stop := readOn(w)
		for start := time.Now(); time.Since(start) < 4*time.Second; {
			<-time.After(20 * time.Millisecond)
			require.Equal(w, "0", w.Do("EXISTS", kit.RwQueue))
		}
		stop()
		w.LeftNothing()
	})
}

// A writer that polls has no ticket. The readers of all processes leave it a window.
func TestQueue_ReadersLetAPollingWriterIn(t *testing.T) {
	kit.RealWorlds(t, func(w *kit.World) {
		_, stop := readOn(w)
		writer := w.Pair(kit.Polling).Writer
		var waits []time.Duration
		for range 5 {
			start := time.Now()
			w.Lock(writer)
			waits = append(waits, time.Since(start))
			w.Unlock(writer)
			<-time.After(50 * time.Millisecond)
		}
		stop()
		w.Log(waits)
		require.Less(w, slices.Max(waits), starved)
	})
}

// A polling writer makes new readers wait while another one reads on, but not for long, whether they have tickets or poll, too.
func TestQueue_APollingWriterDoesNotKeepReadersOut(t *testing.T) {
	t.Parallel()
	for name, opts := range map[string][]lockregistry.Option{"tickets": nil, "polling": {kit.Polling}} {
		t.Run(name, func(t *testing.T) {
			kit.RealWorlds(t, func(w *kit.World) {
				holder := w.Pair()
				w.Lock(holder.Reader)
				ctx, cancel := context.WithCancel(w.Context())
				writes := w.Goroutine().Start(func() error { return w.Pair(kit.Polling).Writer.Lock(ctx) })
				w.Await("its guest", func() bool { return w.Do("ZSCORE", kit.RwQueue, "guest") != "(nil)" })
				g, r := w.Goroutine(), w.Pair(opts...).Reader
				var all []time.Duration
				for range 6 {
					start := time.Now()
					all = append(all, w.Takes(start, g.Starts(r)))
					require.NoError(w, g.Unlock(r))
					<-time.After(100 * time.Millisecond) // the writer tries again
				}
				w.Log(all)
				slices.Sort(all)
				waited := all[0] + all[1] + all[2] + all[3] // a busy machine may stand still in the others
				require.Less(w, waited, time.Second+10*w.Bystander(), "half of the time, at most")
				require.Less(w, all[5], kit.AtOnce)
				w.Pending(writes)
				w.Unlock(holder.Reader)
				require.NoError(w, <-writes)
				cancel()
			})
		})
	}
}

// The guest of a polling writer that gave up does not keep the first in the queue from listening to the key.
func TestQueue_ATicketBehindAGuest(t *testing.T) {
	kit.RealWorlds(t, func(w *kit.World) {
		holder, waiter := w.Pair(), w.Pair(lockregistry.WithPollInterval(kit.NoPoll))
		w.Lock(holder.Reader)
		ctx, cancel := context.WithCancel(w.Context())
		polls := w.Goroutine().Start(func() error { return w.Pair(kit.Polling).Writer.Lock(ctx) })
		w.Await("its guest", func() bool { return w.Do("ZSCORE", kit.RwQueue, "guest") != "(nil)" })
		cancel()
		require.ErrorIs(w, <-polls, context.Canceled)
		g := w.Goroutine()
		writes := g.Starts(waiter.Writer)
		w.Watched()
		w.Do("DEL", kit.TheKey)
		soon(w, writes)
		require.NoError(w, g.Unlock(waiter.Writer))
	})
}

// A writer of a version without tickets listens on a channel of its own.
func TestQueue_ReadersLetAWriterOfAnOlderVersionIn(t *testing.T) {
	kit.RealWorlds(t, func(w *kit.World) {
		_, stop := readOn(w)
		defer stop()
		listener := w.Client()
		ctx, cancel := context.WithCancel(w.Context())
		listens := w.Goroutine().Start(func() error {
			channel := listener.B().Subscribe().Channel("redisson_rwlock:{orders:42}:waiting").Build()
			return listener.Receive(ctx, channel, func(rueidis.PubSubMessage) {})
		})
		start := time.Now()
		w.Await("that nobody reads", func() bool { return w.Do("EXISTS", kit.TheKey) == "0" })
		require.Less(w, time.Since(start), starved)
		cancel()
		require.ErrorIs(w, <-listens, context.Canceled)
	})
}

// With all kinds of processes that contend, exclusion holds, and everybody makes progress.
func TestQueue_ReadersAndWritersOfManyProcesses(t *testing.T) {
	kit.RealWorlds(t, func(w *kit.World) {
		const processes, goroutines, few = 5, 3, 10
		var readers, writers atomic.Int32
		var all sync.WaitGroup
		began := time.Now()
		turns := make([]atomic.Int32, 2*processes)
		goesOn := func() bool { // longer on a busy machine
			if time.Since(began) < time.Second {
				return true
			}
			for i := range turns {
				if turns[i].Load() <= few {
					return time.Since(began) < 20*time.Second
				}
			}
			return false
		}
		for i := range processes {
			p := w.Pair(lockregistry.WithHandoff(time.Duration(rand.IntN(3)) * 10 * time.Millisecond))
			for g := range goroutines {
				dice := rand.New(rand.NewPCG(uint64(i), uint64(g)))
				all.Go(func() {
					for goesOn() {
						ctx, cancel := context.WithCancel(w.Context())
						if dice.IntN(5) == 0 {
							cancel()
							ctx, cancel = context.WithTimeout(w.Context(), time.Duration(dice.IntN(3000))*time.Microsecond)
						}
						writes := dice.IntN(3) == 0
						l := p.Reader
						if writes {
							l = p.Writer
						}
						if err := l.Lock(ctx); err != nil {
							if ctx.Err() == nil && (w.Fake || !kit.TookLong(err)) {
								w.Error(err)
							}
							cancel()
							continue
						}
						if writes {
							if writers.Add(1) > 1 || readers.Load() > 0 {
								w.Error("a writer is not alone")
							}
							writers.Add(-1)
							turns[2*i].Add(1)
						} else {
							readers.Add(1)
							if writers.Load() > 0 {
								w.Error("a reader beside a writer")
							}
							readers.Add(-1)
							turns[2*i+1].Add(1)
						}
						if err := w.UnlessBusy(l.Unlock(w.Context())); err != nil {
							w.Error(err)
						}
						cancel()
					}
				})
			}
		}
		all.Wait()
		for i := range turns {
			require.Greater(w, turns[i].Load(), int32(few), strconv.Itoa(i))
		}
		w.Await("nobody has it", func() bool { return w.Free(kit.TheKey) && w.RwTickets() == "" })
	})
}

// Users with the permissions of earlier versions have no queue, but their locks work.
func TestQueue_ReadWriteLocksWithoutPermissionForTheQueue(t *testing.T) {
	kit.RealWorlds(t, func(w *kit.World) {
		rights := []string{"resetkeys", "~orders:42", "~{orders:42*", "resetchannels", "&redisson_rwlock:{orders:*"}
		a, b := kit.PairOf(w.RegistryOn(w.User(rights...))), kit.PairOf(w.RegistryOn(w.User(rights...)))
		for _, held := range []*lockregistry.Lock{a.Writer, a.Reader} {
			w.Lock(held)
			g := w.Goroutine()
			got := g.Starts(b.Writer)
			<-time.After(50 * time.Millisecond)
			w.Pending(got)
			w.Unlock(held)
			soon(w, got)
			require.NoError(w, g.Unlock(b.Writer))
		}
		w.LeftNothing()

		// Readers come and go, and a writer gets in.
		_, stop := readWith(w, a.Reader)
		for range 3 {
			<-time.After(10 * time.Millisecond)
			start := time.Now()
			w.Lock(b.Writer)
			require.Less(w, time.Since(start), starved)
			w.Unlock(b.Writer)
		}
		stop()
	})
}
