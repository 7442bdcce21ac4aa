package lockregistry

import (
	"context"
	"math/rand/v2"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry/internal/clock"
	"github.com/lockregistry/lockregistry/internal/fault"
	"github.com/lockregistry/lockregistry/internal/owner"
)

// rwHalf is the local half of a read-write lock. Until a test says otherwise, nobody asks about writers elsewhere.
type rwHalf struct {
	*localReadWrite
	asks  bool // it is time to ask, unless somebody must
	asked int  // how often that was done
}

const heldBackFor = time.Second

func newRWHalf() *rwHalf {
	h := &rwHalf{localReadWrite: &localReadWrite{fresh: func() bool { return true }, every: heldBackFor}}
	h.seek = func(must bool) bool {
		if !h.asks && !must {
			return false
		}
		h.asked++
		return true
	}
	return h
}

func (h *rwHalf) reading() *readSide  { return (*readSide)(h.localReadWrite) }
func (h *rwHalf) writing() *writeSide { return (*writeSide)(h.localReadWrite) }

// side is that of one who writes, or reads.
func (h *rwHalf) side(writes bool) localHalf {
	if writes {
		return h.writing()
	}
	return h.reading()
}

// holders are owners and how often each has locked.
type holders map[owner.ID]int32

// look is what a side of a localReadWrite should look like.
type look struct {
	phase  phase
	asking owner.ID // when it is acquiring
	owners holders
}

var aFree = look{phase: phaseFree}

func acquiring(o owner.ID) look { return look{phase: phaseAcquiring, asking: o} }
func has(o holders) look        { return look{phase: phaseHeld, owners: o} }

var aLeaving = look{phase: phaseLeaving}

// looks checks everything that both sides and the queue know. Those who wait to write are told by writer.
func (h *rwHalf) looks(t *testing.T, read, write look, queue ...owner.ID) {
	t.Helper()
	h.mu.Lock()
	defer h.mu.Unlock()
	for name, c := range map[string]struct {
		want look
		got  *side
	}{"read": {read, &h.read}, "write": {write, &h.write}} {
		require.Equal(t, c.want.phase, c.got.phase, name)
		if c.want.phase == phaseAcquiring {
			require.Equal(t, c.want.asking, c.got.asking, name)
		}
		require.Len(t, c.got.owners, len(c.want.owners), name)
		for o, n := range c.want.owners {
			require.Equal(t, n, c.got.owners[o], name)
		}
	}
	var forward, backward []owner.ID
	for w := h.queue.first; w != nil; w = w.next {
		require.True(t, w.queued)
		forward = append(forward, w.owner)
	}
	for w := h.queue.last; w != nil; w = w.prev {
		backward = append([]owner.ID{w.owner}, backward...)
	}
	require.Equal(t, queue, forward, "queue")
	require.Equal(t, forward, backward, "queue from the end")
}

const (
	reads  = false
	writes = true
)

// in enters where that must not need waiting.
func (h *rwHalf) in(t *testing.T, o owner.ID, writes bool, want entry) {
	t.Helper()
	how, w := h.side(writes).enter(o, 0, false, nil)
	require.Equal(t, want, how)
	require.Nil(t, w)
}

// waits enters where that must need waiting.
func (h *rwHalf) waits(t *testing.T, o owner.ID, writes bool) *waiter {
	t.Helper()
	how, w := h.side(writes).enter(o, 0, true, nil)
	require.Equal(t, refused, how)
	require.NotNil(t, w)
	require.Equal(t, o, w.owner)
	require.Equal(t, writes, w.writes)
	return w
}

// turn is how a waiter was let in; refused when it was not yet.
func turn(w *waiter) entry {
	select {
	case how := <-w.turn:
		return how
	default:
		return refused
	}
}

// held is a lock that the owners read, or that the first one writes.
func rwHeld(t *testing.T, writes bool, owners ...owner.ID) *rwHalf {
	t.Helper()
	h := newRWHalf()
	for i, o := range owners {
		if i == 0 {
			h.in(t, o, writes, entered)
			h.side(writes).granted()
		} else {
			h.in(t, o, writes, joined)
		}
	}
	return h
}

func (h *rwHalf) out(t *testing.T, o owner.ID, writes bool, want departure) {
	t.Helper()
	require.Equal(t, want, leavesHow(h.side(writes).exit(o)))
}

func eachSide(t *testing.T, test func(t *testing.T, writes bool)) {
	t.Helper()
	t.Run("read", func(t *testing.T) { test(t, reads) })
	t.Run("write", func(t *testing.T) { test(t, writes) })
}

// sides puts the looks of a side and of the other one, which is free, in order.
func sides(writes bool, mine look) (read, write look) {
	if writes {
		return aFree, mine
	}
	return mine, aFree
}

func TestReadWriteTransitions(t *testing.T) {
	eachSide(t, func(t *testing.T, writes bool) {
		for _, wait := range []bool{false, true} {
			h := newRWHalf()
			is := func(mine look, queue ...owner.ID) {
				t.Helper()
				read, write := sides(writes, mine)
				h.looks(t, read, write, queue...)
			}
			is(aFree)
			how, w := h.side(writes).enter(anna, 0, wait, nil)
			require.Equal(t, entered, how)
			require.Nil(t, w)
			is(acquiring(anna))
			require.False(t, h.side(writes).heldBy(anna), "who has no grant yet holds nothing")
			h.out(t, anna, writes, notIn)

			h.side(writes).granted()
			is(has(holders{anna: 1}))
			require.True(t, h.side(writes).heldBy(anna))
			require.False(t, h.side(!writes).heldBy(anna))
			require.False(t, h.side(writes).heldBy(bert))

			h.out(t, anna, writes, last)
			is(aLeaving)
			require.False(t, h.side(writes).heldBy(anna))
			h.out(t, anna, writes, notIn)
			h.in(t, anna, reads, refused)
			h.in(t, anna, true, refused)
			is(aLeaving)

			h.side(writes).free()
			is(aFree)

			// Not granted.
			h.in(t, bert, writes, entered)
			h.side(writes).free()
			is(aFree)
			h.in(t, bert, writes, entered)
			next := h.waits(t, cleo, writes)
			is(acquiring(bert), cleo)
			require.True(t, h.side(writes).contended())
			h.side(writes).free()
			is(acquiring(cleo))
			require.False(t, h.side(writes).contended())
			require.Equal(t, entered, h.side(writes).wait(t.Context(), next, nil))
		}
	})
}

func TestReadersJoin(t *testing.T) {
	h := rwHeld(t, reads, anna, bert, cleo)
	h.looks(t, has(holders{anna: 1, bert: 1, cleo: 1}), aFree)
	h.out(t, anna, reads, leaves)
	h.out(t, anna, reads, notIn)
	h.in(t, anna, reads, joined)
	h.out(t, cleo, reads, leaves)
	h.out(t, anna, reads, leaves)
	h.looks(t, has(holders{bert: 1}), aFree)
	h.out(t, bert, reads, last)
	h.looks(t, aLeaving, aFree)

	// Who comes while the first one still asks Redis joins when it is answered.
	h = newRWHalf()
	h.in(t, anna, reads, entered)
	second, third := h.waits(t, bert, reads), h.waits(t, cleo, reads)
	h.looks(t, acquiring(anna), aFree, bert, cleo)
	h.reading().granted()
	h.looks(t, has(holders{anna: 1, bert: 1, cleo: 1}), aFree)
	require.Equal(t, joined, turn(second))
	require.Equal(t, joined, turn(third))
}

func TestWriterExcludes(t *testing.T) {
	leavingAs := func(writes bool) *rwHalf {
		h := rwHeld(t, writes, anna)
		h.out(t, anna, writes, last)
		return h
	}
	asking := newRWHalf()
	asking.in(t, anna, writes, entered)
	for name, h := range map[string]*rwHalf{
		"acquiring": asking, "held": rwHeld(t, writes, anna), "leaving": leavingAs(writes),
	} {
		t.Run("a writer, "+name, func(t *testing.T) {
			h.in(t, bert, reads, refused)
			h.in(t, bert, writes, refused)
			h.waits(t, bert, reads)
			h.in(t, cleo, reads, refused)
		})
	}
	asking = newRWHalf()
	asking.in(t, anna, reads, entered)
	for name, h := range map[string]*rwHalf{
		"acquiring": asking, "held": rwHeld(t, reads, anna), "leaving": leavingAs(reads),
	} {
		t.Run("a reader, "+name, func(t *testing.T) {
			h.in(t, bert, writes, refused)
			h.waits(t, bert, writes)
			h.in(t, cleo, reads, refused) // nobody overtakes who waits
			h.waits(t, cleo, reads)
		})
	}
}

func TestReadWriteReentrancy(t *testing.T) {
	eachSide(t, func(t *testing.T, writes bool) {
		for _, o := range []owner.ID{anna, team} {
			h := rwHeld(t, writes, o)
			const depth = 5
			for i := range depth {
				h.in(t, o, writes, reentered)
				require.Equal(t, int32(i+2), map[bool]*side{reads: &h.read, true: &h.write}[writes].owners[o])
			}
			h.waits(t, bert, true) // does not keep the owner from entering again
			h.in(t, o, writes, reentered)
			for range depth + 1 {
				h.out(t, o, writes, stays)
			}
			h.out(t, o, writes, last)
			h.side(writes).free()
			h.looks(t, aFree, acquiring(bert))
		}
	})
	// One of several readers.
	h := rwHeld(t, reads, anna, bert)
	h.in(t, bert, reads, reentered)
	h.told(true)
	h.in(t, bert, reads, reentered)
	h.looks(t, has(holders{anna: 1, bert: 3}), aFree)
	h.out(t, bert, reads, stays)
	h.out(t, bert, reads, stays)
	h.out(t, bert, reads, leaves)
	h.out(t, anna, reads, last)
}

func TestWriterReads(t *testing.T) {
	for _, o := range []owner.ID{anna, team} {
		h := rwHeld(t, writes, o)
		first, second, other := h.waits(t, bert, reads), h.waits(t, cleo, writes), h.waits(t, dora, reads)
		h.in(t, o, reads, entered) // the queue waits for o
		h.looks(t, acquiring(o), has(holders{o: 1}), bert, cleo, dora)
		h.reading().free() // Redis was not reached
		h.looks(t, aFree, has(holders{o: 1}), bert, cleo, dora)
		h.in(t, o, reads, entered)
		h.reading().granted()
		h.looks(t, has(holders{o: 1}), has(holders{o: 1}), bert, cleo, dora)
		h.in(t, o, reads, reentered)
		h.in(t, o, writes, reentered)
		h.out(t, o, writes, stays)

		// Downgrade: the readers at the head come in when the writer is out, not before.
		h.out(t, o, writes, last)
		h.looks(t, has(holders{o: 2}), aLeaving, bert, cleo, dora)
		h.in(t, o, reads, reentered)
		h.in(t, o, writes, upgrade)
		h.writing().free()
		require.Equal(t, joined, turn(first))
		h.looks(t, has(holders{o: 3, bert: 1}), aFree, cleo, dora)
		require.Equal(t, refused, turn(second))
		for range 2 {
			h.out(t, o, reads, stays)
		}
		h.out(t, o, reads, leaves)
		h.out(t, bert, reads, last)
		h.reading().free()
		require.Equal(t, entered, turn(second))
		require.Equal(t, refused, turn(other))
		h.looks(t, aFree, acquiring(cleo), dora)
	}

	// It may also give up reading first, and read again.
	h := rwHeld(t, writes, anna)
	h.in(t, anna, reads, entered)
	h.reading().granted()
	h.out(t, anna, reads, last)
	h.looks(t, aLeaving, has(holders{anna: 1}))
	h.in(t, anna, reads, refused) // its own removal is under way
	h.reading().free()
	h.in(t, anna, reads, entered)
}

// A writer that wants to read anew waits for the removal of its last hold on reading, which may go on in the background.
// It must not wait for those in the queue: they wait for it.
func TestWriterReadsAgainPastTheQueue(t *testing.T) {
	for _, o := range []owner.ID{anna, team} {
		h := rwHeld(t, writes, o)
		h.in(t, o, reads, entered)
		h.reading().granted()
		h.out(t, o, reads, last)
		w := h.waits(t, bert, writes)
		again := h.waits(t, o, reads)
		h.looks(t, aLeaving, has(holders{o: 1}), bert, o)
		h.reading().free()
		require.Equal(t, entered, turn(again))
		h.looks(t, acquiring(o), has(holders{o: 1}), bert)
		require.Equal(t, refused, turn(w))
	}
}

func TestReadersCannotBecomeWriters(t *testing.T) {
	for _, o := range []owner.ID{anna, team} {
		h := rwHeld(t, reads, o, bert)
		for _, wait := range []bool{false, true} {
			how, w := h.writing().enter(o, 0, wait, nil)
			require.Equal(t, upgrade, how)
			require.Nil(t, w)
		}
		h.waits(t, cleo, writes)
		h.in(t, bert, writes, upgrade)
		h.looks(t, has(holders{o: 1, bert: 1}), aFree, cleo)
	}
}

// Readers and writers in the order in which they came; readers next to each other together.
func TestReadWriteIsFirstInFirstOut(t *testing.T) {
	h := rwHeld(t, reads, anna)
	const r1, w1, r2, r3, w2, w3, r4 owner.ID = 11, 12, 13, 14, 15, 16, 17
	h.in(t, r1, reads, joined)
	waiting := map[owner.ID]*waiter{}
	for _, o := range []owner.ID{w1, r2, r3, w2, w3, r4} {
		waiting[o] = h.waits(t, o, o == w1 || o == w2 || o == w3)
	}
	h.in(t, 99, reads, refused)
	h.looks(t, has(holders{anna: 1, r1: 1}), aFree, w1, r2, r3, w2, w3, r4)
	h.out(t, anna, reads, leaves)
	h.looks(t, has(holders{r1: 1}), aFree, w1, r2, r3, w2, w3, r4)
	h.out(t, r1, reads, last)
	h.looks(t, aLeaving, aFree, w1, r2, r3, w2, w3, r4)
	h.reading().free()
	h.looks(t, aFree, acquiring(w1), r2, r3, w2, w3, r4)
	h.writing().granted()
	h.out(t, w1, writes, last)
	h.writing().free()
	h.looks(t, acquiring(r2), aFree, r3, w2, w3, r4)
	h.reading().granted()
	h.looks(t, has(holders{r2: 1, r3: 1}), aFree, w2, w3, r4)
	h.out(t, r2, reads, leaves)
	h.out(t, r3, reads, last)
	h.reading().free()
	h.looks(t, aFree, acquiring(w2), w3, r4)
	h.writing().granted()
	h.out(t, w2, writes, last)
	h.writing().free()
	h.looks(t, aFree, acquiring(w3), r4)
	h.writing().free() // gives up while it asks Redis
	h.looks(t, acquiring(r4), aFree)
	for o, how := range map[owner.ID]entry{w1: entered, r2: entered, r3: joined, w2: entered, w3: entered, r4: entered} {
		require.Equal(t, how, turn(waiting[o]), "%d", o)
	}
}

func TestReadWriteExitByOthersChangesNothing(t *testing.T) {
	h := rwHeld(t, reads, anna, team)
	for _, o := range []owner.ID{owner.Nobody, bert, crew, owner.Leaving} {
		h.out(t, o, reads, notIn)
		h.out(t, o, writes, notIn)
	}
	h.out(t, anna, writes, notIn)
	h.looks(t, has(holders{anna: 1, team: 1}), aFree)
	h = rwHeld(t, writes, anna)
	for _, o := range []owner.ID{owner.Nobody, bert, team, owner.Leaving} {
		h.out(t, o, reads, notIn)
		h.out(t, o, writes, notIn)
	}
	h.out(t, anna, reads, notIn)
	h.looks(t, aFree, has(holders{anna: 1}))
}

// The ways to give up.
var givingUp = map[string]func(h localHalf, w *waiter, stop <-chan struct{}) entry{
	"context": func(h localHalf, w *waiter, stop <-chan struct{}) entry {
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		go func() {
			<-stop
			cancel()
		}()
		return h.wait(ctx, w, nil)
	},
	"timeout": func(h localHalf, w *waiter, stop <-chan struct{}) entry {
		timeout := make(chan time.Time, 1)
		go func() {
			<-stop
			timeout <- time.Time{}
		}()
		return h.wait(context.Background(), w, timeout)
	},
	"turned away": func(h localHalf, w *waiter, stop <-chan struct{}) entry {
		go func() {
			<-stop
			h.turnAway(w)
		}()
		return h.wait(context.Background(), w, nil)
	},
}

// Anna reads. A writer or reader in the queue gives up, wherever it stands.
func TestReadWriteWaiterGivesUp(t *testing.T) {
	all := []owner.ID{bert, cleo, dora}
	for name, wait := range givingUp {
		for kinds := range 8 { // who writes, as bits
			for quitter := range all {
				if kinds&1 == 0 { // the first one would not wait
					continue
				}
				t.Run(name+"/"+strconv.FormatInt(int64(kinds), 2)+"/"+strconv.Itoa(quitter), func(t *testing.T) {
					synctest.Test(t, func(t *testing.T) {
						h := rwHeld(t, reads, anna)
						results, stops := make([]chan entry, len(all)), make([]chan struct{}, len(all))
						isWriter := func(i int) bool { return kinds>>i&1 == 1 }
						for i, o := range all {
							results[i], stops[i] = make(chan entry, 1), make(chan struct{})
							w := h.waits(t, o, isWriter(i))
							go func() { results[i] <- wait(h.side(isWriter(i)), w, stops[i]) }()
						}
						synctest.Wait()
						h.looks(t, has(holders{anna: 1}), aFree, all...)
						start := time.Now()
						close(stops[quitter])
						require.Equal(t, refused, <-results[quitter])

						// The readers who are at the head now join at once.
						reading := holders{anna: 1}
						var left []owner.ID
						for i, o := range all {
							switch {
							case i == quitter:
							case len(left) == 0 && !isWriter(i):
								reading[o] = 1
								require.Equal(t, joined, <-results[i])
							default:
								left = append(left, o)
							}
						}
						require.Zero(t, time.Since(start))
						h.looks(t, has(reading), aFree, left...)
						for i := range all {
							if i != quitter {
								close(stops[i])
							}
						}
						synctest.Wait()
						require.Nil(t, h.queue.first)
						require.Nil(t, h.queue.last)
						require.Equal(t, look{phase: phaseHeld}.phase, h.read.phase)
						require.Equal(t, phaseFree, h.write.phase)
					})
				})
			}
		}
	}
}

// The turn of a waiter that gives up comes before it could leave the queue: it goes on to the next one.
func TestReadWriteTurnBeforeTheCancelledWaiterLeft(t *testing.T) {
	eachSide(t, func(t *testing.T, mine bool) {
		eachSide(t, func(t *testing.T, next bool) {
			h := rwHeld(t, writes, anna)
			w, behind := h.waits(t, bert, mine), h.waits(t, cleo, next)
			h.out(t, anna, writes, last)
			how := h.side(mine).wait(tooLate{cancelled(), func() {
				w.turn = make(chan entry, 1) // the select looks at the old one, in which nothing ever comes
				h.writing().free()
			}}, w, nil)
			require.Equal(t, refused, how)
			read, write := sides(next, acquiring(cleo))
			h.looks(t, read, write)
			require.Equal(t, entered, turn(behind))
		})
	})
	// Who has come in to a hold that is there already keeps it.
	h := newRWHalf()
	h.in(t, anna, reads, entered)
	w := h.waits(t, bert, reads)
	how := h.reading().wait(tooLate{cancelled(), func() {
		w.turn = make(chan entry, 1)
		h.reading().granted()
	}}, w, nil)
	require.Equal(t, joined, how)
	h.looks(t, has(holders{anna: 1, bert: 1}), aFree)
}

// Several goroutines with one owner.
func TestReadWriteSharedOwners(t *testing.T) {
	eachSide(t, func(t *testing.T, writes bool) {
		h := newRWHalf()
		h.in(t, team, writes, entered)
		if writes {
			h.in(t, team, writes, refused) // nothing is granted yet
		}
		behind := h.waits(t, anna, true)
		twin, third := h.waits(t, team, writes), h.waits(t, team, writes)
		h.side(writes).granted()
		require.Equal(t, reentered, turn(twin))
		require.Equal(t, reentered, turn(third))
		require.Equal(t, refused, turn(behind))
		read, write := sides(writes, has(holders{team: 3}))
		h.looks(t, read, write, anna)
		for range 2 {
			h.out(t, team, writes, stays)
		}
		h.out(t, team, writes, last)
	})
	t.Run("one reads, another wants to write", func(t *testing.T) {
		h := newRWHalf()
		h.in(t, team, reads, entered)
		writer, reader := h.waits(t, team, writes), h.waits(t, bert, reads)
		h.reading().granted()
		require.Equal(t, upgrade, turn(writer))
		// Bert stood behind a writer that is gone now. It comes in with the next change at the latest.
		if turn(reader) == refused {
			h.looks(t, has(holders{team: 1}), aFree, bert)
			t.Fatal("a reader waits for nobody")
		}
	})
	t.Run("one writes, another wants to read", func(t *testing.T) {
		h := newRWHalf()
		h.in(t, team, writes, entered)
		other, reader := h.waits(t, anna, writes), h.waits(t, team, reads)
		second := h.waits(t, team, reads)
		h.writing().granted()
		require.Equal(t, entered, turn(reader))
		require.Equal(t, refused, turn(second), "one of them asks Redis")
		require.Equal(t, refused, turn(other))
		h.reading().granted()
		require.Equal(t, reentered, turn(second))
		h.looks(t, has(holders{team: 2}), has(holders{team: 1}), anna)
	})
	t.Run("one writes no more while another asks Redis to read", func(t *testing.T) {
		h := rwHeld(t, writes, team)
		h.in(t, team, reads, entered)
		w := h.waits(t, anna, writes)
		h.out(t, team, writes, last)
		h.writing().free()
		h.looks(t, acquiring(team), aFree, anna)
		h.reading().granted()
		h.looks(t, has(holders{team: 1}), aFree, anna)
		h.out(t, team, reads, last)
		h.reading().free()
		require.Equal(t, entered, turn(w))
	})
	t.Run("a writer is handed the lock", func(t *testing.T) {
		h := rwHeld(t, writes, anna)
		first, bystander := h.waits(t, team, writes), h.waits(t, bert, writes)
		twin, reader := h.waits(t, team, writes), h.waits(t, team, reads)
		h.out(t, anna, writes, last)
		require.True(t, h.writing().pass(0))
		require.Equal(t, handed, turn(first))
		require.Equal(t, reentered, turn(twin))
		require.Equal(t, entered, turn(reader))
		require.Equal(t, refused, turn(bystander))
		h.looks(t, acquiring(team), has(holders{team: 2}), bert)
	})
}

func TestWriterHandsOver(t *testing.T) {
	h := rwHeld(t, writes, anna)
	h.out(t, anna, writes, last)
	require.False(t, h.writing().pass(time.Hour), "nobody waits")
	h.looks(t, aFree, aLeaving)

	how, w := h.writing().enter(bert, time.Minute, true, nil)
	require.Equal(t, refused, how)
	reader := h.waits(t, cleo, reads)
	require.False(t, h.writing().pass(time.Minute-1), "it asks for a longer lease")
	h.looks(t, aFree, aLeaving, bert, cleo)
	require.True(t, h.writing().pass(time.Minute))
	require.Equal(t, handed, turn(w))
	h.looks(t, aFree, has(holders{bert: 1}), cleo)

	h.out(t, bert, writes, last)
	require.False(t, h.writing().pass(time.Hour), "a reader is next")
	h.writing().free()
	require.Equal(t, entered, turn(reader))
	h.reading().granted()

	h.waits(t, dora, writes)
	h.out(t, cleo, reads, last)
	require.False(t, h.reading().pass(time.Hour), "a reader has nothing to hand over")

	// Who goes on reading cannot hand over what it wrote with.
	h = rwHeld(t, writes, anna)
	h.in(t, anna, reads, entered)
	h.reading().granted()
	h.waits(t, bert, writes)
	h.out(t, anna, writes, last)
	require.False(t, h.writing().pass(time.Hour))
	h.writing().free()
	h.looks(t, has(holders{anna: 1}), aFree, bert)
}

// While a writer waits elsewhere newcomers wait, first in, first out. As long as they do, one timer has somebody ask again. There
// is none when the answer would let nobody in.
func TestReadersAreKeptOutForAWriterElsewhere(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := rwHeld(t, reads, anna)
		h.told(true)
		h.in(t, bert, reads, joined) // it does not wait
		h.out(t, bert, reads, leaves)
		timed := func(want bool) {
			t.Helper()
			h.mu.Lock()
			defer h.mu.Unlock()
			require.Equal(t, want, h.timer != nil)
		}
		timed(false)
		results := make(chan owner.ID, 3)
		for _, o := range []owner.ID{bert, cleo} {
			w := h.waits(t, o, reads)
			go func() {
				assert.Equal(t, joined, h.reading().wait(context.Background(), w, nil))
				results <- o
			}()
		}
		require.Zero(t, h.asked)
		<-time.After(heldBackFor - 1)
		require.Zero(t, h.asked)
		timed(true)
		<-time.After(1)
		synctest.Wait()
		require.Equal(t, 1, h.asked)
		h.told(true)
		<-time.After(heldBackFor)
		synctest.Wait()
		require.Equal(t, 2, h.asked)
		h.looks(t, has(holders{anna: 1}), aFree, bert, cleo)
		h.told(false)
		<-results
		<-results
		h.looks(t, has(holders{anna: 1, bert: 1, cleo: 1}), aFree)
		timed(false)
		h.in(t, dora, reads, joined)

		// One who is served goes, and there is no need to wake up.
		h = rwHeld(t, reads, anna)
		h.told(true)
		w := h.waits(t, dora, reads)
		timed(true)
		require.Equal(t, refused, h.reading().wait(cancelled(), w, nil))
		timed(false)

		// A newcomer asks, too, if nobody has for a while, and does not wait for the timer.
		h.asks = true
		w = h.waits(t, dora, reads)
		require.Equal(t, 1, h.asked)
		h.waits(t, bert, reads)
		require.Equal(t, 1, h.asked, "there is no answer yet")
		h.told(false)
		require.Equal(t, joined, turn(w))
		h.asks = false

		// A writer before them is not passed by; when it gives up they wait for the answer.
		h = rwHeld(t, reads, anna)
		h.told(true)
		first, second := h.waits(t, team, writes), h.waits(t, crew, reads)
		timed(false)
		require.Equal(t, refused, h.writing().wait(cancelled(), first, nil))
		timed(true)
		h.told(false)
		require.Equal(t, joined, turn(second))

		// Those who are kept out come in when the others are out, and the next ones with them.
		h = rwHeld(t, reads, anna)
		h.told(true)
		w = h.waits(t, bert, reads)
		timed(true)
		h.out(t, anna, reads, last)
		timed(false)
		h.told(true) // too late
		h.reading().free()
		require.Equal(t, entered, h.reading().wait(t.Context(), w, nil))
		h.reading().granted()
		h.in(t, cleo, reads, joined)

		// Without an answer in time they come in. Where there never is one they do so every other time.
		h = rwHeld(t, reads, anna)
		h.told(true)
		w = h.waits(t, bert, reads)
		<-time.After(2 * heldBackFor)
		synctest.Wait()
		require.Equal(t, joined, turn(w))
		h.unknown()
		w = h.waits(t, cleo, reads)
		h.unknown()
		require.Equal(t, joined, turn(w))

		// A timer that is stopped at the moment at which it fires asks nobody.
		h = rwHeld(t, reads, anna)
		h.told(true)
		h.waits(t, bert, reads)
		stopped := h.timer
		h.again(new(*time.Timer))
		require.Zero(t, h.asked)
		require.Same(t, stopped, h.timer)
		stopped.Stop()
	})
}

// Goroutines of all kinds, and one who looks: readers, or one writer, and nobody else.
func TestReadWriteHammer(t *testing.T) {
	const goroutines, rounds = 12, 300
	h := newRWHalf()
	var asked atomic.Int64
	var all sync.WaitGroup
	h.every = 50 * time.Microsecond
	h.seek = func(bool) bool {
		asked.Add(1)
		all.Go(func() { h.told(asked.Load()%3 == 0) })
		return true
	}
	var readers, writers atomic.Int32
	var redis atomic.Int32 // who asks or has been asked: the two sides never do at once, but for one owner
	guarded := 0           // writers change it, readers read it: the race detector looks as well
	for i := range goroutines {
		o := owner.ID(100 + i)
		dice := rand.New(rand.NewPCG(7, uint64(i)))
		lock := func(writes bool) bool {
			ctx := t.Context()
			if dice.IntN(4) == 0 {
				limited, cancel := context.WithTimeout(ctx, time.Duration(dice.IntN(200))*time.Microsecond)
				defer cancel()
				ctx = limited
			}
			how, w := h.side(writes).enter(o, 0, dice.IntN(5) > 0, nil)
			if w != nil {
				how = h.side(writes).wait(ctx, w, nil)
			}
			switch how {
			case refused, upgrade, denied, outcast:
				return false
			case entered:
				if n := redis.Add(1); n > 1 && !writes {
					assert.True(t, h.writing().heldBy(o), "two ask Redis at once")
				}
				failed := dice.IntN(10) == 0
				if dice.IntN(3) == 0 {
					h.side(writes).waits()
				}
				redis.Add(-1)
				if failed {
					h.side(writes).free()
					return false
				}
				h.side(writes).granted()
			case handed:
				assert.True(t, writes)
			case reentered, joined:
			}
			return true
		}
		unlock := func(writes bool) {
			switch leavesHow(h.side(writes).exit(o)) {
			case last:
				if !writes || !h.writing().pass(0) {
					h.side(writes).free()
				}
			case notIn, evicted:
				assert.Fail(t, "not in")
			case stays, leaves:
			}
		}
		all.Go(func() {
			for range rounds {
				writes := dice.IntN(4) == 0
				if !lock(writes) {
					continue
				}
				if !writes {
					readers.Add(1)
					assert.Zero(t, writers.Load())
					_ = guarded
					if dice.IntN(3) == 0 && lock(reads) {
						unlock(reads)
					}
					if dice.IntN(5) == 0 {
						how, _ := h.writing().enter(o, 0, true, nil)
						assert.Equal(t, upgrade, how)
					}
					readers.Add(-1)
					unlock(reads)
					continue
				}
				assert.Equal(t, int32(1), writers.Add(1))
				assert.Zero(t, readers.Load())
				guarded++
				reading := dice.IntN(3) == 0 && lock(reads)
				writers.Add(-1)
				if reading {
					readers.Add(1)
				}
				unlock(true)
				if reading {
					assert.Zero(t, writers.Load())
					_ = guarded
					readers.Add(-1)
					unlock(reads)
				}
			}
		})
	}
	all.Wait()
	h.looks(t, aFree, aFree)
	require.Positive(t, guarded)
}

// A reader of several has left the local half, and before it looks at the hold the last of the others has ended it.
func TestLeavingAHoldThatOthersHaveEnded(t *testing.T) {
	for name, c := range map[string]struct {
		meanwhile func(*hold)
		sound     bool
	}{
		"in time": {func(*hold) {}, true},
		"lost":    {func(h *hold) { h.mu.Lock(); h.unlockLose(fault.KeyGone) }, false},
		"late":    {func(h *hold) { h.until = 0 }, false},
	} {
		t.Run(name, func(t *testing.T) {
			reg := &Registry{clock: clock.New()}
			h := &hold{lock: &Lock{reg: reg, pair: &ReadWriteLock{}}, state: live, until: clock.Never}
			c.meanwhile(h)
			h.end(h.lock.reg.clock.Now())
			require.Equal(t, c.sound, h.dismiss(anna))
		})
	}
}

// The lease of a hold may get shorter when one owner has it; that is asked without the mutex.
func TestSeveralReaders(t *testing.T) {
	rw := &ReadWriteLock{}
	rw.reader.pair, rw.writer.pair = rw, rw
	rw.local.fresh = func() bool { return true }
	rw.local.seek = func(bool) bool { return false }
	h := &rwHalf{localReadWrite: &rw.local}
	h.in(t, anna, writes, entered)
	h.writing().granted()
	require.False(t, rw.writer.several())
	h.in(t, anna, reads, entered)
	h.reading().granted()
	h.out(t, anna, writes, last)
	h.writing().free()
	h.in(t, anna, reads, reentered)
	require.False(t, rw.reader.several(), "one, twice")
	h.in(t, bert, reads, joined)
	require.True(t, rw.reader.several())
	require.False(t, rw.writer.several())
	h.out(t, anna, reads, stays)
	require.True(t, rw.reader.several())
	h.out(t, anna, reads, leaves)
	require.False(t, rw.reader.several())
	h.out(t, bert, reads, last)
	require.False(t, rw.reader.several())
	require.False(t, (&Lock{}).several(), "a plain lock")
}

// tries enters as one who cannot wait for others, but waits for the answer that is under way.
func (h *rwHalf) tries(t *testing.T, o owner.ID) *waiter {
	t.Helper()
	how, w := h.reading().enter(o, 0, false, nil)
	require.Equal(t, refused, how)
	require.NotNil(t, w)
	require.True(t, w.tries)
	return w
}

// Readers that try while one of them asks Redis hear the same answer.
func TestTryingReaders(t *testing.T) {
	ask := func(t *testing.T) (*rwHalf, *waiter, *waiter) {
		t.Helper()
		h := newRWHalf()
		h.in(t, anna, reads, entered)
		return h, h.tries(t, bert), h.tries(t, cleo)
	}
	t.Run("granted", func(t *testing.T) {
		h, bert2, cleo2 := ask(t)
		h.reading().granted()
		require.Equal(t, joined, turn(bert2))
		require.Equal(t, joined, turn(cleo2))
		h.looks(t, has(holders{anna: 1, bert: 1, cleo: 1}), aFree)
	})
	t.Run("taken, and who asked waits", func(t *testing.T) {
		h, bert2, cleo2 := ask(t)
		h.reading().waits()
		require.Equal(t, denied, turn(bert2))
		require.Equal(t, denied, turn(cleo2))
		h.in(t, bert, reads, refused)
		h.looks(t, acquiring(anna), aFree)
		h.reading().granted()
		h.in(t, bert, reads, joined)
	})
	t.Run("not told", func(t *testing.T) { // who asked has failed: the next one asks
		h, bert2, cleo2 := ask(t)
		h.reading().free()
		require.Equal(t, entered, turn(bert2))
		require.Equal(t, refused, turn(cleo2))
		h.looks(t, acquiring(bert), aFree, cleo)
		h.reading().granted()
		require.Equal(t, joined, turn(cleo2))
	})
	t.Run("taken, and who asked gives up", func(t *testing.T) {
		h, bert2, cleo2 := ask(t)
		h.reading().waits()
		h.reading().free()
		require.Equal(t, denied, turn(bert2))
		require.Equal(t, denied, turn(cleo2))
		h.looks(t, aFree, aFree)
		h.in(t, bert, reads, entered) // a new question
		require.Equal(t, refused, turn(h.tries(t, cleo)))
	})
	t.Run("nobody may join", func(t *testing.T) {
		h, bert2, cleo2 := ask(t)
		h.fresh = func() bool { return false }
		h.reading().granted()
		require.Equal(t, denied, turn(bert2))
		require.Equal(t, denied, turn(cleo2))
		h.looks(t, has(holders{anna: 1}), aFree)
	})
	t.Run("behind a writer", func(t *testing.T) {
		h, bert2, _ := ask(t)
		dora2 := h.waits(t, dora, writes)
		h.in(t, anna, reads, refused) // that would be to overtake
		h.reading().granted()
		require.Equal(t, joined, turn(bert2))
		require.Equal(t, refused, turn(dora2))
	})
	t.Run("a writer asks", func(t *testing.T) {
		h := newRWHalf()
		h.in(t, anna, writes, entered)
		h.in(t, bert, reads, refused)
		h.writing().granted()
		h.in(t, bert, reads, refused)
		h.in(t, anna, reads, entered) // reads under its own writing, which keeps others out
		h.in(t, bert, reads, refused)
	})
	t.Run("who writes does not wait for an answer", func(t *testing.T) {
		h, _, _ := ask(t)
		h.in(t, dora, writes, refused)
	})
}

// No transition looks at the waiters but for those that it lets in and the first one that it does not.
func TestReadWriteDoesConstantWork(t *testing.T) {
	h := rwHeld(t, reads, anna, bert)
	writer, twin := h.waits(t, team, writes), h.waits(t, team, reads)
	h.waits(t, dora, writes)
	reader, joins := h.waits(t, cleo, reads), h.waits(t, crew, reads)
	middle := h.waits(t, 20, writes)
	behind := []*waiter{h.waits(t, 21, writes), h.waits(t, 22, reads), h.waits(t, team, writes), h.waits(t, team, reads)}
	untie := knot(middle)
	looksAtNobody(t, func() {
		h.in(t, 30, reads, refused)
		assert.Equal(t, refused, h.reading().wait(cancelled(), h.waits(t, 31, reads), nil))
		h.reading().waits()
		h.out(t, anna, reads, leaves)
		h.out(t, bert, reads, last)
		h.reading().free()
		assert.Equal(t, entered, turn(writer))
		assert.True(t, h.writing().granted())
		assert.Equal(t, entered, turn(twin))
		assert.Equal(t, reentered, turn(behind[2]))
		assert.True(t, h.reading().granted())
		assert.Equal(t, reentered, turn(behind[3]))
		h.out(t, team, writes, stays)
		h.out(t, team, writes, last)
		h.writing().free()
		assert.True(t, h.reading().evict(always))
		h.reading().free()
		h.writing().granted() // dora
		h.out(t, dora, writes, last)
		h.writing().free()
		assert.Equal(t, entered, turn(reader))
		h.reading().granted()
		assert.Equal(t, joined, turn(joins))
		h.out(t, crew, reads, leaves)
	})
	untie()
	h.looks(t, has(holders{cleo: 1}), aFree, 20, 21, 22)
	require.Empty(t, h.queue.rings)
}

// Those who are held back, or wait behind a writer, cost nothing while nothing happens, and nobody asks for each of them when
// their time has come.
func TestWaitingReadersCostNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const readers = 1000
		h := rwHeld(t, reads, anna)
		h.told(true)
		writer := h.waits(t, bert, writes)
		var all sync.WaitGroup
		for i := range owner.ID(readers) {
			w := h.waits(t, 1000+i, reads)
			all.Go(func() { assert.Equal(t, joined, h.reading().wait(context.Background(), w, nil)) })
		}
		<-time.After(time.Hour)
		require.Zero(t, h.asked)
		require.Equal(t, refused, h.writing().wait(cancelled(), writer, nil))
		<-time.After(heldBackFor)
		synctest.Wait()
		require.Equal(t, 1, h.asked)
		h.told(false)
		all.Wait()
		require.Equal(t, 1, h.asked)
	})
}

func TestReadWriteEvicts(t *testing.T) {
	h := rwHeld(t, reads, anna, bert)
	h.in(t, bert, reads, reentered)
	require.False(t, h.writing().evict(always))
	require.False(t, h.reading().evict(still))
	w := h.waits(t, cleo, writes)
	require.True(t, h.reading().evict(always))
	h.looks(t, aLeaving, aFree, cleo)
	require.Zero(t, h.read.crowd.Load())
	h.reading().free()
	require.Equal(t, entered, turn(w))
	h.writing().granted()
	h.in(t, anna, reads, outcast)
	h.in(t, anna, writes, upgrade) // as it would be told if nobody else had come
	h.out(t, anna, reads, evicted)
	h.out(t, anna, reads, notIn)
	h.in(t, anna, reads, refused)
	require.Equal(t, fault.LeaseOver, h.reading().expelled(bert))
	h.out(t, bert, reads, evicted)
	h.out(t, bert, reads, evicted)
	h.out(t, bert, reads, notIn)

	// A writer that also reads loses one of the two.
	h.in(t, cleo, reads, entered)
	h.reading().granted()
	dora2 := h.waits(t, dora, reads)
	require.True(t, h.writing().evict(always))
	h.looks(t, has(holders{cleo: 1}), aLeaving, dora)
	h.in(t, cleo, reads, reentered)
	h.in(t, cleo, writes, outcast)
	h.writing().free()
	require.Equal(t, joined, turn(dora2))
	h.looks(t, has(holders{cleo: 2, dora: 1}), aFree)
	h.out(t, cleo, writes, evicted)
	h.in(t, cleo, writes, upgrade)
}

// What a reader has under its own writer counts until the writer's key is known to be removed.
func TestReaderUnderALeavingWriter(t *testing.T) {
	rw := &ReadWriteLock{wrote: "the writer's"}
	h := &rwHalf{localReadWrite: &rw.local}
	require.Empty(t, rw.under())
	h.in(t, team, writes, entered)
	h.writing().granted()
	h.in(t, team, reads, entered)
	require.Equal(t, "the writer's", rw.under())
	h.out(t, team, writes, last)
	require.Equal(t, "the writer's", rw.under())
	h.writing().free()
	require.Empty(t, rw.under())
}
