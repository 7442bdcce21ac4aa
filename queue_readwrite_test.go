package lockregistry_test

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
)

// The queue of a read-write lock. Miniredis has none.

const rwQueue = "orders:{orders:42}:waiters"

// tickets are those in the queue, in their order, by their kinds.
func (w *world) rwTickets() string {
	w.Helper()
	var kinds strings.Builder
	for member := range strings.FieldsSeq(strings.Trim(w.do("ZRANGEBYSCORE", rwQueue, "0", "+inf"), "[]")) {
		if strings.Contains(member, "|") { // else it notes that a writer waits without a ticket
			kinds.WriteString(member[len(member)-1:])
		}
	}
	return kinds.String()
}

// lines up starts a call in a process of its own, and returns when it has its ticket.
func (w *world) linesUp(l *lockregistry.Lock, opts ...lockregistry.LockOption) (*goroutine, <-chan error) {
	w.Helper()
	before := len(w.rwTickets())
	g := w.goroutine()
	got := g.starts(l, opts...)
	w.await("its ticket", func() bool { return len(w.rwTickets()) > before })
	return g, got
}

// soon has a result within the time of a few commands, and not of a poll or a timer.
func (w *world) soon(result <-chan error) {
	w.Helper()
	select {
	case err := <-result:
		require.NoError(w, err)
	case <-time.After(900 * time.Millisecond):
		w.Fatal("not granted")
	}
}

// Readers and writers of several processes are served in the order in which they came: a release lets all readers in that are in
// front of the next writer.
func TestQueue_ReadersAndWritersInOneQueue(t *testing.T) {
	realWorlds(t, func(w *world) {
		p := make([]pair, 7)
		for i := range p {
			p[i] = w.pair(lockregistry.WithPollInterval(noPoll))
		}
		w.lock(p[0].writer)
		g1, r1 := w.linesUp(p[1].reader)
		g2, r2 := w.linesUp(p[2].reader)
		g3, w3 := w.linesUp(p[3].writer)
		g4, r4 := w.linesUp(p[4].reader)
		g5, w5 := w.linesUp(p[5].writer)
		require.Equal(w, "rrwrw", w.rwTickets())

		w.unlock(p[0].writer)
		w.soon(r1)
		w.soon(r2)
		require.Equal(w, "wrw", w.rwTickets())
		require.Len(w, w.holdersOf(theKey), 2)

		// One who comes to read does not overtake the writer, although others read.
		g6, r6 := w.linesUp(p[6].reader)
		require.NoError(w, g1.unlock(p[1].reader))
		w.pending(w3)
		require.NoError(w, g2.unlock(p[2].reader))
		w.soon(w3)
		w.pending(r4)
		require.NoError(w, g3.unlock(p[3].writer))
		w.soon(r4)
		w.pending(r6)
		w.pending(w5)
		require.NoError(w, g4.unlock(p[4].reader))
		w.soon(w5)
		require.NoError(w, g5.unlock(p[5].writer))
		w.soon(r6)
		require.NoError(w, g6.unlock(p[6].reader))
		w.leftNothing()
	})
}

// More readers than one script serves.
func TestQueue_VeryManyReadersAreServed(t *testing.T) {
	realWorlds(t, func(w *world) {
		const readers = 150
		client := w.client()
		holder := w.pair()
		w.lock(holder.writer)
		results := make([]<-chan error, readers)
		locks := make([]*lockregistry.Lock, readers)
		goroutines := make([]*goroutine, readers)
		for i := range readers {
			locks[i] = pairOf(w.registryOn(client, lockregistry.WithPollInterval(noPoll))).reader
			goroutines[i] = w.goroutine()
			results[i] = goroutines[i].starts(locks[i])
		}
		w.await("their tickets", func() bool { return len(w.rwTickets()) == readers })
		w.unlock(holder.writer)
		for i := range readers {
			w.soon(results[i])
		}
		require.Len(w, w.holdersOf(theKey), readers)
		for i, g := range goroutines {
			require.NoError(w, g.unlock(locks[i]))
		}
		w.leftNothing()
	})
}

// A writer that gives up, or whose process is gone, keeps nobody out.
func TestQueue_AWriterThatLeavesTheQueue(t *testing.T) {
	realWorlds(t, func(w *world) {
		a, b, c := w.pair(), w.pair(), w.pair()
		w.lock(a.reader)
		g, writer := w.goroutine(), make(chan error, 1)
		ctx, cancel := context.WithCancel(w.Context())
		go func() { writer <- b.writer.Lock(ctx) }()
		w.await("its ticket", func() bool { return w.rwTickets() == "w" })
		got := g.starts(c.reader)
		w.await("their tickets", func() bool { return w.rwTickets() == "wr" })
		// Nor does it keep out those of the process that reads.
		first := w.goroutine()
		w.await("it is held back", func() bool {
			ctx, cancel := context.WithTimeout(w.Context(), 50*time.Millisecond)
			defer cancel()
			err := first.do(func() error {
				if err := a.reader.Lock(ctx); err != nil {
					return err
				}
				return a.reader.Unlock(w.Context())
			})
			return err != nil
		})
		joins := first.starts(a.reader)
		w.pending(got)
		cancel()
		require.ErrorIs(w, <-writer, context.Canceled)
		w.soon(got)
		w.soon(joins)
		require.NoError(w, g.unlock(c.reader))
		require.NoError(w, first.unlock(a.reader))

		// A ticket of a process that is gone is passed over.
		w.do("ZADD", rwQueue, "5", "gone:7|60000w")
		require.NoError(w, g.lock(c.reader))
		require.Empty(w, w.rwTickets())
		require.NoError(w, g.unlock(c.reader))
		w.unlock(a.reader)
		w.leftNothing()
	})
}

// A writer that goes on reading lets the readers in that wait in front.
func TestQueue_DowngradeServesReaders(t *testing.T) {
	realWorlds(t, func(w *world) {
		a, b, c, d := w.pair(), w.pair(), w.pair(), w.pair()
		w.lock(a.writer)
		gb, rb := w.linesUp(b.reader)
		gc, wc := w.linesUp(c.writer)
		_, rd := w.linesUp(d.reader)
		w.lock(a.reader) // past the queue: it writes
		w.unlock(a.writer)
		w.soon(rb)
		require.Equal(w, "wr", w.rwTickets())
		require.Equal(w, "read", w.fields(theKey)["mode"])
		w.unlock(a.reader)
		w.pending(wc)
		require.NoError(w, gb.unlock(b.reader))
		w.soon(wc)

		// A writer that was granted the lock by another process does the same.
		require.NoError(w, gc.lock(c.reader))
		require.Equal(w, "write", w.fields(theKey)["mode"])
		require.Len(w, w.holdersOf(theKey), 2)
		w.pending(rd)
		require.NoError(w, gc.unlock(c.writer))
		w.soon(rd)
		require.NoError(w, gc.unlock(c.reader))
	})
}

// The lease of a grant is short, and lengthened soon: readers that share the hold meanwhile do not wait for that.
func TestQueue_AGrantedReaderKeepsItsLease(t *testing.T) {
	realWorlds(t, func(w *world) {
		f := w.flaky()
		a, b, c := w.pair(), pairOf(f.registry()), w.pair()
		w.lock(a.writer)
		g, got := w.linesUp(b.reader)
		held, other := w.linesUp(c.reader, lockregistry.Lease(20*time.Second))
		f.all("read", refused(loading))
		w.unlock(a.writer)
		w.soon(got)
		w.soon(other)
		require.LessOrEqual(w, w.pttl("{orders:42}:"+w.reader(b)+":rwlock_timeout:1"), time.Second)
		second := w.goroutine()
		require.NoError(w, second.lock(b.reader), "no command is needed")
		require.NoError(w, second.unlock(b.reader))
		f.Forget()
		for _, p := range []pair{b, c} {
			w.await("its lease", func() bool { return w.pttl("{orders:42}:"+w.reader(p)+":rwlock_timeout:1") > 15*time.Second })
		}
		<-time.After(1200 * time.Millisecond)
		require.True(w, b.reader.IsHeld())
		require.True(w, c.reader.IsHeld())
		require.NoError(w, g.unlock(b.reader))
		require.NoError(w, held.unlock(c.reader))
		w.leftNothing()
	})
}

// reader is the field of a process's hold on reading.
func (w *world) reader(p pair) string {
	w.Helper()
	for _, field := range w.holdersOf(theKey) {
		if strings.HasPrefix(field, p.reg.ClientID()) {
			return field
		}
	}
	return "none"
}

// Messages of grants that never arrive: the calls find out by looking.
func TestQueue_LostGrantsOfReadersAndWriters(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{"reader", "writer"} {
		t.Run(kind, func(t *testing.T) {
			realWorlds(t, func(w *world) {
				pick := func(p pair) *lockregistry.Lock {
					if kind == "reader" {
						return p.reader
					}
					return p.writer
				}
				a, d := w.pair(), &deaf{w: w}
				b := pairOf(w.registryOn(w.clientWith(d.dial)))
				w.lock(a.writer)
				g, got := w.linesUp(pick(b))
				d.deafen()
				w.unlock(a.writer)
				select {
				case err := <-got:
					require.NoError(w, err)
				case <-time.After(5 * time.Second):
					w.Fatal("never")
				}
				require.Len(w, w.holdersOf(theKey), 1)
				require.NoError(w, g.unlock(pick(b)))
				w.leftNothing()
			})
		})
	}
}

// Readers that overlap without end, in two processes, and a writer in a third one.
func TestQueue_ReadersElsewhereLetAWriterIn(t *testing.T) {
	realWorlds(t, func(w *world) {
		reads, stop := w.readOn()
		writer := w.pair().writer
		for range 10 {
			<-time.After(50 * time.Millisecond)
			before := reads.Load()
			start := time.Now()
			w.lock(writer)
			require.Less(w, time.Since(start), time.Second, "about 200 ms, and a section")
			w.unlock(writer)
			w.await("they read again", func() bool { return reads.Load() > before+6 })
		}
		stop()
	})
}

// A ticket that becomes the first one before its call has looked hears of Redisson's release all the same.
func TestQueue_ANewFirstTicketHearsOfRedissonsRelease(t *testing.T) {
	each(t, func(t *testing.T, pick func(pair) *lockregistry.Lock) {
		realWorlds(t, func(w *world) {
			const timeout = "{orders:42}:java:1:rwlock_timeout:1"
			w.do("HSET", theKey, "mode", "write", "java:1:write", "1")
			w.do("SET", timeout, "1", "PX", "30000")
			w.do("PEXPIRE", theKey, "30000")
			ctx, cancel := context.WithCancel(w.Context())
			left := lockElsewhere(w.pair().writer, ctx)
			w.await("its ticket", func() bool { return w.rwTickets() == "w" })
			_, got := w.linesUp(pick(w.pair()))
			cancel()
			require.ErrorIs(w, <-left, context.Canceled)
			w.await("it has left", func() bool { return len(w.rwTickets()) == 1 })
			start := time.Now()
			w.do("DEL", theKey, timeout)
			w.do("PUBLISH", rwChannel, "0")
			w.soon(got)
			require.Less(w, time.Since(start), 600*time.Millisecond, "it looks after 1.1 s by itself")
		})
	})
}

// readOn has goroutines of two processes read without a pause.
func (w *world) readOn(opts ...lockregistry.Option) (reads *atomic.Int64, stop func()) {
	return w.readWith(w.pair(opts...).reader, w.pair(opts...).reader)
}

// readWith has three goroutines with each lock read without a pause, until stop is called. Reads counts how often they did.
func (w *world) readWith(readers ...*lockregistry.Lock) (reads *atomic.Int64, stop func()) {
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
					if err := l.Lock(w.Context()); err != nil {
						w.Error(err)
						return
					}
					<-time.After(time.Duration(5+rand.IntN(10)) * time.Millisecond)
					reads.Add(1)
					if err := l.Unlock(w.Context()); err != nil {
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

// Readers of several processes come and go. While no writer waits nobody keeps them out: there is no queue.
func TestQueue_ReadersThatComeAndGoAreNotHeldBackWithoutAWriter(t *testing.T) {
	realWorlds(t, func(w *world) {
		_, stop := w.readOn()
		for start := time.Now(); time.Since(start) < 4*time.Second; {
			<-time.After(20 * time.Millisecond)
			require.Equal(w, "0", w.do("EXISTS", rwQueue))
		}
		stop()
		w.leftNothing()
	})
}

// A writer that polls has no ticket. The readers of all processes leave it a window.
func TestQueue_ReadersLetAPollingWriterIn(t *testing.T) {
	realWorlds(t, func(w *world) {
		_, stop := w.readOn()
		writer := w.pair(polling).writer
		var waits []time.Duration
		for range 5 {
			start := time.Now()
			w.lock(writer)
			waits = append(waits, time.Since(start))
			w.unlock(writer)
			<-time.After(50 * time.Millisecond)
		}
		stop()
		w.Log(waits)
		require.Less(w, slices.Max(waits), 2*time.Second)
	})
}

// A writer that polls keeps those who come to read waiting while another one reads on, but not for long, be it that they have
// tickets or poll, too.
func TestQueue_APollingWriterDoesNotKeepReadersOut(t *testing.T) {
	t.Parallel()
	for name, opts := range map[string][]lockregistry.Option{"tickets": nil, "polling": {polling}} {
		t.Run(name, func(t *testing.T) {
			realWorlds(t, func(w *world) {
				holder := w.pair()
				w.lock(holder.reader)
				ctx, cancel := context.WithCancel(w.Context())
				writes := w.goroutine().start(func() error { return w.pair(polling).writer.Lock(ctx) })
				w.await("its guest", func() bool { return w.do("ZSCORE", rwQueue, "guest") != "(nil)" })
				r := w.pair(opts...).reader
				var waited time.Duration
				for range 6 {
					start := time.Now()
					w.lock(r)
					waited += time.Since(start)
					w.unlock(r)
					<-time.After(100 * time.Millisecond) // it tries again
				}
				require.Less(w, waited, 1000*time.Millisecond, "half of the time, at most")
				w.pending(writes)
				w.unlock(holder.reader)
				require.NoError(w, <-writes)
				cancel()
			})
		})
	}
}

// What is left of a writer that polled and gave up does not keep the first one in the queue from listening to the key.
func TestQueue_ATicketBehindAGuest(t *testing.T) {
	realWorlds(t, func(w *world) {
		holder, waiter := w.pair(), w.pair(lockregistry.WithPollInterval(noPoll))
		w.lock(holder.reader)
		ctx, cancel := context.WithCancel(w.Context())
		polls := w.goroutine().start(func() error { return w.pair(polling).writer.Lock(ctx) })
		w.await("its guest", func() bool { return w.do("ZSCORE", rwQueue, "guest") != "(nil)" })
		cancel()
		require.ErrorIs(w, <-polls, context.Canceled)
		g := w.goroutine()
		writes := g.starts(waiter.writer)
		w.watched()
		w.do("DEL", theKey)
		w.soon(writes)
		require.NoError(w, g.unlock(waiter.writer))
	})
}

// A writer of a version without tickets listens on a channel of its own.
func TestQueue_ReadersLetAWriterOfAnOlderVersionIn(t *testing.T) {
	realWorlds(t, func(w *world) {
		_, stop := w.readOn()
		defer stop()
		listener := w.client()
		ctx, cancel := context.WithCancel(w.Context())
		listens := w.goroutine().start(func() error {
			channel := listener.B().Subscribe().Channel("redisson_rwlock:{orders:42}:waiting").Build()
			return listener.Receive(ctx, channel, func(rueidis.PubSubMessage) {})
		})
		start := time.Now()
		w.await("that nobody reads", func() bool { return w.do("EXISTS", theKey) == "0" })
		require.Less(w, time.Since(start), 3*time.Second)
		cancel()
		require.ErrorIs(w, <-listens, context.Canceled)
	})
}

// Locks of all kinds of processes that fight: exclusion holds, and everybody gets on.
func TestQueue_ReadersAndWritersOfManyProcesses(t *testing.T) {
	realWorlds(t, func(w *world) {
		const processes, goroutines = 5, 3
		var readers, writers atomic.Int32
		var all sync.WaitGroup
		stop := time.Now().Add(3 * time.Second)
		turns := make([]atomic.Int32, 2*processes)
		for i := range processes {
			p := w.pair(lockregistry.WithHandoff(time.Duration(rand.IntN(3)) * 10 * time.Millisecond))
			for g := range goroutines {
				dice := rand.New(rand.NewPCG(uint64(i), uint64(g)))
				all.Go(func() {
					for time.Now().Before(stop) {
						ctx, cancel := context.WithCancel(w.Context())
						if dice.IntN(5) == 0 {
							cancel()
							ctx, cancel = context.WithTimeout(w.Context(), time.Duration(dice.IntN(3000))*time.Microsecond)
						}
						writes := dice.IntN(3) == 0
						l := p.reader
						if writes {
							l = p.writer
						}
						if err := l.Lock(ctx); err != nil {
							if ctx.Err() == nil {
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
						if err := l.Unlock(w.Context()); err != nil {
							w.Error(err)
						}
						cancel()
					}
				})
			}
		}
		all.Wait()
		for i := range turns {
			require.Greater(w, turns[i].Load(), int32(10), strconv.Itoa(i))
		}
		w.await("nobody has it", func() bool { return w.free(theKey) && w.rwTickets() == "" })
	})
}

// Users whose permissions are those of before have no queue, and locks all the same.
func TestQueue_ReadWriteLocksWithoutPermissionForTheQueue(t *testing.T) {
	realWorlds(t, func(w *world) {
		rights := []string{"resetkeys", "~orders:42", "~{orders:42*", "resetchannels", "&redisson_rwlock:{orders:*"}
		a, b := pairOf(w.registryOn(w.user(rights...))), pairOf(w.registryOn(w.user(rights...)))
		for _, held := range []*lockregistry.Lock{a.writer, a.reader} {
			w.lock(held)
			g := w.goroutine()
			got := g.starts(b.writer)
			<-time.After(50 * time.Millisecond)
			w.pending(got)
			w.unlock(held)
			w.soon(got)
			require.NoError(w, g.unlock(b.writer))
		}
		w.leftNothing()

		// Readers still come and go, and a writer gets in.
		_, stop := w.readWith(a.reader)
		for range 3 {
			<-time.After(10 * time.Millisecond)
			start := time.Now()
			w.lock(b.writer)
			require.Less(w, time.Since(start), 3*time.Second)
			w.unlock(b.writer)
		}
		stop()
	})
}
