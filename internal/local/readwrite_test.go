package local

import (
	"context"
	"maps"
	"math/rand/v2"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry/internal/fault"
	"github.com/lockregistry/lockregistry/internal/owner"
)

// rwHalf is a ReadWrite. Until a test says otherwise, its hold can be shared, and nobody asks about writers elsewhere.
type rwHalf struct {
	*ReadWrite
	asks     bool // it is time to ask
	asked    int  // how often that was done
	unshared bool
	ask      func() // when set it takes the place of counting
	every    time.Duration
}

func (h *rwHalf) Sharable() bool { return !h.unshared }
func (h *rwHalf) LookDue() bool  { return h.asks }

func (h *rwHalf) LookAgain() time.Duration { return h.every }

func (h *rwHalf) Look() bool {
	if h.ask != nil {
		h.ask()
	} else {
		h.asked++
	}
	return true
}

const heldBackFor = time.Second

func newRWHalf() *rwHalf {
	h := &rwHalf{ReadWrite: &ReadWrite{}, every: heldBackFor}
	h.Init(h)
	return h
}

// holders are owners and how often each has locked.
type holders map[owner.ID]int32

// look is what a side of a ReadWrite should look like.
type look struct {
	phase  phase
	asking owner.ID // when it is acquiring, or stuck
	owners holders
}

var aFree = look{phase: phaseFree}

func acquiring(o owner.ID) look { return look{phase: phaseAcquiring, asking: o} }
func stuck(o owner.ID) look     { return look{phase: phaseStuck, asking: o} }
func has(o holders) look        { return look{phase: phaseHeld, owners: o} }

var aLeaving = look{phase: phaseLeaving}

// looks checks everything that both sides and the queue know, including how many of the waiters wait to write.
func (h *rwHalf) looks(t *testing.T, read, write look, queue ...owner.ID) {
	t.Helper()
	h.mu.Lock()
	defer h.mu.Unlock()
	for name, c := range map[string]struct {
		want look
		got  *Side
	}{"read": {read, &h.read}, "write": {write, &h.write}} {
		require.Equal(t, c.want.phase, c.got.phase, name)
		if c.want.phase == phaseAcquiring || c.want.phase == phaseStuck {
			require.Equal(t, c.want.asking, h.asking, name)
		}
		require.Len(t, maps.Collect(c.got.owners.all()), len(c.want.owners), name)
		require.EqualValues(t, len(c.want.owners), c.got.Count(), name)
		for o, n := range c.want.owners {
			require.Equal(t, n, c.got.owners.of(o), name)
		}
	}
	var forward, backward []owner.ID
	writers := 0
	for w := h.queue.first; w != nil; w = w.next {
		require.True(t, w.queued)
		forward = append(forward, w.owner)
		if w.writes {
			writers++
		}
	}
	require.EqualValues(t, writers, h.queue.writers)
	for w := h.queue.last(); w != nil; w = before(&h.queue, w) {
		backward = append([]owner.ID{w.owner}, backward...)
	}
	require.Equal(t, queue, forward, "queue")
	require.Equal(t, forward, backward, "queue from the end")
}

const (
	reads  = false
	writes = true
)

// in enters, and checks that this needs no waiting.
func (h *rwHalf) in(t *testing.T, o owner.ID, writes bool, want Admission) {
	t.Helper()
	how, w := h.side(writes).Enter(o, 0, false, nil)
	require.Equal(t, want, how)
	require.Nil(t, w)
}

// waits enters, and checks that this needs waiting.
func (h *rwHalf) waits(t *testing.T, o owner.ID, writes bool) *Waiter {
	t.Helper()
	how, w := h.side(writes).Enter(o, 0, true, nil)
	require.Equal(t, Refused, how)
	require.NotNil(t, w)
	require.Equal(t, o, w.owner)
	require.Equal(t, writes, w.writes)
	return w
}

// held is a lock that the owners read, or that the first one writes.
func rwHeld(t *testing.T, writes bool, owners ...owner.ID) *rwHalf {
	t.Helper()
	h := newRWHalf()
	for i, o := range owners {
		if i == 0 {
			h.in(t, o, writes, Entered)
			h.side(writes).Granted()
		} else {
			h.in(t, o, writes, Joined)
		}
	}
	return h
}

func (h *rwHalf) out(t *testing.T, o owner.ID, writes bool, want Departure) {
	t.Helper()
	require.Equal(t, want, departs(h.side(writes).Exit(o)))
}

func eachSide(t *testing.T, test func(t *testing.T, writes bool)) {
	t.Helper()
	t.Run("read", func(t *testing.T) { test(t, reads) })
	t.Run("write", func(t *testing.T) { test(t, writes) })
}

// sides returns the looks of both sides, of which one is free, in order.
func sides(writes bool, mine look) (read, write look) {
	if writes {
		return aFree, mine
	}
	return mine, aFree
}

func TestReadWrite_Transitions(t *testing.T) {
	eachSide(t, func(t *testing.T, writes bool) {
		for _, wait := range []bool{false, true} {
			h := newRWHalf()
			is := func(mine look, queue ...owner.ID) {
				t.Helper()
				read, write := sides(writes, mine)
				h.looks(t, read, write, queue...)
			}
			is(aFree)
			how, w := h.side(writes).Enter(anna, 0, wait, nil)
			require.Equal(t, Entered, how)
			require.Nil(t, w)
			is(acquiring(anna))
			require.False(t, h.side(writes).HeldBy(anna), "who has no grant yet holds nothing")
			h.out(t, anna, writes, NotIn)

			h.side(writes).Granted()
			is(has(holders{anna: 1}))
			require.True(t, h.side(writes).HeldBy(anna))
			require.False(t, h.side(!writes).HeldBy(anna))
			require.False(t, h.side(writes).HeldBy(bert))

			h.out(t, anna, writes, Last)
			is(aLeaving)
			require.False(t, h.side(writes).HeldBy(anna))
			h.out(t, anna, writes, NotIn)
			h.in(t, anna, reads, Refused)
			h.in(t, anna, true, Refused)
			is(aLeaving)

			h.side(writes).Free()
			is(aFree)

			// Not granted.
			h.in(t, bert, writes, Entered)
			h.side(writes).Free()
			is(aFree)
			h.in(t, bert, writes, Entered)
			next := h.waits(t, cleo, writes)
			is(acquiring(bert), cleo)
			h.side(writes).Free()
			is(acquiring(cleo))
			require.Equal(t, Entered, h.side(writes).Wait(t.Context(), next, nil))
		}
	})
}

func TestReadWrite_ReadersJoin(t *testing.T) {
	h := rwHeld(t, reads, anna, bert, cleo)
	h.looks(t, has(holders{anna: 1, bert: 1, cleo: 1}), aFree)
	h.out(t, anna, reads, Leaves)
	h.out(t, anna, reads, NotIn)
	h.in(t, anna, reads, Joined)
	h.out(t, cleo, reads, Leaves)
	h.out(t, anna, reads, Leaves)
	h.looks(t, has(holders{bert: 1}), aFree)
	h.out(t, bert, reads, Last)
	h.looks(t, aLeaving, aFree)

	// A reader that comes while the first one still asks Redis joins when Redis has answered.
	h = newRWHalf()
	h.in(t, anna, reads, Entered)
	second, third := h.waits(t, bert, reads), h.waits(t, cleo, reads)
	h.looks(t, acquiring(anna), aFree, bert, cleo)
	h.Reader().Granted()
	h.looks(t, has(holders{anna: 1, bert: 1, cleo: 1}), aFree)
	require.Equal(t, Joined, turn(second))
	require.Equal(t, Joined, turn(third))
}

func TestReadWrite_WriterExcludes(t *testing.T) {
	leavingAs := func(writes bool) *rwHalf {
		h := rwHeld(t, writes, anna)
		h.out(t, anna, writes, Last)
		return h
	}
	asking := newRWHalf()
	asking.in(t, anna, writes, Entered)
	for name, h := range map[string]*rwHalf{
		"acquiring": asking, "held": rwHeld(t, writes, anna), "leaving": leavingAs(writes),
	} {
		t.Run("a writer, "+name, func(t *testing.T) {
			h.in(t, bert, reads, Refused)
			h.in(t, bert, writes, Refused)
			h.waits(t, bert, reads)
			h.in(t, cleo, reads, Refused)
		})
	}
	asking = newRWHalf()
	asking.in(t, anna, reads, Entered)
	for name, h := range map[string]*rwHalf{
		"acquiring": asking, "held": rwHeld(t, reads, anna), "leaving": leavingAs(reads),
	} {
		t.Run("a reader, "+name, func(t *testing.T) {
			h.in(t, bert, writes, Refused)
			h.waits(t, bert, writes)
			h.in(t, cleo, reads, Refused) // nobody overtakes a waiter
			h.waits(t, cleo, reads)
		})
	}
}

func TestReadWrite_Reentrancy(t *testing.T) {
	eachSide(t, func(t *testing.T, writes bool) {
		for _, o := range []owner.ID{anna, team} {
			h := rwHeld(t, writes, o)
			const depth = 5
			for i := range depth {
				h.in(t, o, writes, Reentered)
				require.Equal(t, int32(i+2), map[bool]*Side{reads: &h.read, true: &h.write}[writes].owners.of(o))
			}
			h.waits(t, bert, true) // does not keep the owner from entering again
			h.in(t, o, writes, Reentered)
			for range depth + 1 {
				h.out(t, o, writes, Stays)
			}
			h.out(t, o, writes, Last)
			h.side(writes).Free()
			h.looks(t, aFree, acquiring(bert))
		}
	})
	// One of several readers.
	h := rwHeld(t, reads, anna, bert)
	h.in(t, bert, reads, Reentered)
	h.Answer(true)
	h.in(t, bert, reads, Reentered)
	h.looks(t, has(holders{anna: 1, bert: 3}), aFree)
	h.out(t, bert, reads, Stays)
	h.out(t, bert, reads, Stays)
	h.out(t, bert, reads, Leaves)
	h.out(t, anna, reads, Last)
}

func TestReadWrite_WriterReads(t *testing.T) {
	for _, o := range []owner.ID{anna, team} {
		h := rwHeld(t, writes, o)
		first, second, other := h.waits(t, bert, reads), h.waits(t, cleo, writes), h.waits(t, dora, reads)
		h.in(t, o, reads, Entered) // the queue waits for o
		h.looks(t, acquiring(o), has(holders{o: 1}), bert, cleo, dora)
		h.Reader().Free() // Redis was not reached
		h.looks(t, aFree, has(holders{o: 1}), bert, cleo, dora)
		h.in(t, o, reads, Entered)
		h.Reader().Granted()
		h.looks(t, has(holders{o: 1}), has(holders{o: 1}), bert, cleo, dora)
		h.in(t, o, reads, Reentered)
		h.in(t, o, writes, Reentered)
		h.out(t, o, writes, Stays)

		// Downgrade: the readers at the head come in when the writer is out, not before.
		h.out(t, o, writes, Last)
		h.looks(t, has(holders{o: 2}), aLeaving, bert, cleo, dora)
		h.in(t, o, reads, Reentered)
		h.in(t, o, writes, Upgrade)
		h.Writer().Free()
		require.Equal(t, Joined, turn(first))
		h.looks(t, has(holders{o: 3, bert: 1}), aFree, cleo, dora)
		require.Equal(t, Refused, turn(second))
		for range 2 {
			h.out(t, o, reads, Stays)
		}
		h.out(t, o, reads, Leaves)
		h.out(t, bert, reads, Last)
		h.Reader().Free()
		require.Equal(t, Entered, turn(second))
		require.Equal(t, Refused, turn(other))
		h.looks(t, aFree, acquiring(cleo), dora)
	}

	// It may also give up reading first, and read again.
	h := rwHeld(t, writes, anna)
	h.in(t, anna, reads, Entered)
	h.Reader().Granted()
	h.out(t, anna, reads, Last)
	h.looks(t, aLeaving, has(holders{anna: 1}))
	h.in(t, anna, reads, Refused) // its own removal is under way
	h.Reader().Free()
	h.in(t, anna, reads, Entered)
}

// A writer that wants to read again waits for the removal of its last reading hold, which may go on in the background. It must
// not wait for the calls in the queue, since they wait for it.
func TestReadWrite_WriterReadsAgainPastTheQueue(t *testing.T) {
	for _, o := range []owner.ID{anna, team} {
		h := rwHeld(t, writes, o)
		h.in(t, o, reads, Entered)
		h.Reader().Granted()
		h.out(t, o, reads, Last)
		w := h.waits(t, bert, writes)
		again := h.waits(t, o, reads)
		h.looks(t, aLeaving, has(holders{o: 1}), bert, o)
		h.Reader().Free()
		require.Equal(t, Entered, turn(again))
		h.looks(t, acquiring(o), has(holders{o: 1}), bert)
		require.Equal(t, Refused, turn(w))
	}
}

func TestReadWrite_ReadersCannotBecomeWriters(t *testing.T) {
	for _, o := range []owner.ID{anna, team} {
		h := rwHeld(t, reads, o, bert)
		for _, wait := range []bool{false, true} {
			how, w := h.Writer().Enter(o, 0, wait, nil)
			require.Equal(t, Upgrade, how)
			require.Nil(t, w)
		}
		h.waits(t, cleo, writes)
		h.in(t, bert, writes, Upgrade)
		h.looks(t, has(holders{o: 1, bert: 1}), aFree, cleo)
	}
}

// Readers and writers are admitted in the order in which they came, and readers next to each other together.
func TestReadWrite_IsFirstInFirstOut(t *testing.T) {
	h := rwHeld(t, reads, anna)
	const r1, w1, r2, r3, w2, w3, r4 owner.ID = 11, 12, 13, 14, 15, 16, 17
	h.in(t, r1, reads, Joined)
	waiting := map[owner.ID]*Waiter{}
	for _, o := range []owner.ID{w1, r2, r3, w2, w3, r4} {
		waiting[o] = h.waits(t, o, o == w1 || o == w2 || o == w3)
	}
	h.in(t, 99, reads, Refused)
	h.looks(t, has(holders{anna: 1, r1: 1}), aFree, w1, r2, r3, w2, w3, r4)
	h.out(t, anna, reads, Leaves)
	h.looks(t, has(holders{r1: 1}), aFree, w1, r2, r3, w2, w3, r4)
	h.out(t, r1, reads, Last)
	h.looks(t, aLeaving, aFree, w1, r2, r3, w2, w3, r4)
	h.Reader().Free()
	h.looks(t, aFree, acquiring(w1), r2, r3, w2, w3, r4)
	h.Writer().Granted()
	h.out(t, w1, writes, Last)
	h.Writer().Free()
	h.looks(t, acquiring(r2), aFree, r3, w2, w3, r4)
	h.Reader().Granted()
	h.looks(t, has(holders{r2: 1, r3: 1}), aFree, w2, w3, r4)
	h.out(t, r2, reads, Leaves)
	h.out(t, r3, reads, Last)
	h.Reader().Free()
	h.looks(t, aFree, acquiring(w2), w3, r4)
	h.Writer().Granted()
	h.out(t, w2, writes, Last)
	h.Writer().Free()
	h.looks(t, aFree, acquiring(w3), r4)
	h.Writer().Free() // gives up while it asks Redis
	h.looks(t, acquiring(r4), aFree)
	for o, how := range map[owner.ID]Admission{w1: Entered, r2: Entered, r3: Joined, w2: Entered, w3: Entered, r4: Entered} {
		require.Equal(t, how, turn(waiting[o]), "%d", o)
	}
}

func TestReadWrite_ExitByOthersChangesNothing(t *testing.T) {
	h := rwHeld(t, reads, anna, team)
	for _, o := range []owner.ID{owner.Nobody, bert, crew, owner.Leaving} {
		h.out(t, o, reads, NotIn)
		h.out(t, o, writes, NotIn)
	}
	h.out(t, anna, writes, NotIn)
	h.looks(t, has(holders{anna: 1, team: 1}), aFree)
	h = rwHeld(t, writes, anna)
	for _, o := range []owner.ID{owner.Nobody, bert, team, owner.Leaving} {
		h.out(t, o, reads, NotIn)
		h.out(t, o, writes, NotIn)
	}
	h.out(t, anna, reads, NotIn)
	h.looks(t, aFree, has(holders{anna: 1}))
}

// The ways to give up.
var givingUp = map[string]func(h *Side, w *Waiter, stop <-chan struct{}) Admission{
	"context": func(h *Side, w *Waiter, stop <-chan struct{}) Admission {
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		go func() {
			<-stop
			cancel()
		}()
		return h.Wait(ctx, w, nil)
	},
	"timeout": func(h *Side, w *Waiter, stop <-chan struct{}) Admission {
		timeout := make(chan time.Time, 1)
		go func() {
			<-stop
			timeout <- time.Time{}
		}()
		return h.Wait(context.Background(), w, timeout)
	},
	"cancelled": func(h *Side, w *Waiter, stop <-chan struct{}) Admission {
		go func() {
			<-stop
			h.Cancel(w)
		}()
		return h.Wait(context.Background(), w, nil)
	},
}

// Anna reads. A writer or reader in the queue gives up, wherever it stands.
func TestReadWrite_WaiterGivesUp(t *testing.T) {
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
						results, stops := make([]chan Admission, len(all)), make([]chan struct{}, len(all))
						isWriter := func(i int) bool { return kinds>>i&1 == 1 }
						for i, o := range all {
							results[i], stops[i] = make(chan Admission, 1), make(chan struct{})
							w := h.waits(t, o, isWriter(i))
							go func() { results[i] <- wait(h.side(isWriter(i)), w, stops[i]) }()
						}
						synctest.Wait()
						h.looks(t, has(holders{anna: 1}), aFree, all...)
						start := time.Now()
						close(stops[quitter])
						require.Equal(t, Refused, <-results[quitter])

						// The readers who are at the head now join at once.
						reading := holders{anna: 1}
						var left []owner.ID
						for i, o := range all {
							switch {
							case i == quitter:
							case len(left) == 0 && !isWriter(i):
								reading[o] = 1
								require.Equal(t, Joined, <-results[i])
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
						require.Nil(t, h.queue.last())
						require.Equal(t, look{phase: phaseHeld}.phase, h.read.phase)
						require.Equal(t, phaseFree, h.write.phase)
					})
				})
			}
		}
	}
}

// A waiter gives up, but its turn comes before it has left the queue: the turn passes to the next waiter.
func TestReadWrite_TurnBeforeTheCancelledWaiterLeft(t *testing.T) {
	eachSide(t, func(t *testing.T, mine bool) {
		eachSide(t, func(t *testing.T, next bool) {
			h := rwHeld(t, writes, anna)
			w, behind := h.waits(t, bert, mine), h.waits(t, cleo, next)
			h.out(t, anna, writes, Last)
			how := h.side(mine).Wait(tooLate{cancelled(), func() {
				w.turn = make(chan Admission, 1) // the select looks at the old one, in which nothing ever comes
				h.Writer().Free()
			}}, w, nil)
			require.Equal(t, Refused, how)
			read, write := sides(next, acquiring(cleo))
			h.looks(t, read, write)
			require.Equal(t, Entered, turn(behind))
		})
	})
	// An owner that has joined an existing hold keeps it.
	h := newRWHalf()
	h.in(t, anna, reads, Entered)
	w := h.waits(t, bert, reads)
	how := h.Reader().Wait(tooLate{cancelled(), func() {
		w.turn = make(chan Admission, 1)
		h.Reader().Granted()
	}}, w, nil)
	require.Equal(t, Joined, how)
	h.looks(t, has(holders{anna: 1, bert: 1}), aFree)
}

// Several goroutines with one owner.
func TestReadWrite_SharedOwners(t *testing.T) {
	eachSide(t, func(t *testing.T, writes bool) {
		h := newRWHalf()
		h.in(t, team, writes, Entered)
		if writes {
			h.in(t, team, writes, Refused) // nothing is granted yet
		}
		behind := h.waits(t, anna, true)
		same, third := h.waits(t, team, writes), h.waits(t, team, writes)
		h.side(writes).Granted()
		require.Equal(t, Reentered, turn(same))
		require.Equal(t, Reentered, turn(third))
		require.Equal(t, Refused, turn(behind))
		read, write := sides(writes, has(holders{team: 3}))
		h.looks(t, read, write, anna)
		for range 2 {
			h.out(t, team, writes, Stays)
		}
		h.out(t, team, writes, Last)
	})
	t.Run("one reads, another wants to write", func(t *testing.T) {
		h := newRWHalf()
		h.in(t, team, reads, Entered)
		writer, reader := h.waits(t, team, writes), h.waits(t, bert, reads)
		h.Reader().Granted()
		require.Equal(t, Upgrade, turn(writer))
		// Bert stood behind a writer that is gone now. It comes in with the next change at the latest.
		if turn(reader) == Refused {
			h.looks(t, has(holders{team: 1}), aFree, bert)
			t.Fatal("a reader waits for nobody")
		}
	})
	t.Run("one writes, another wants to read", func(t *testing.T) {
		h := newRWHalf()
		h.in(t, team, writes, Entered)
		other, reader := h.waits(t, anna, writes), h.waits(t, team, reads)
		second := h.waits(t, team, reads)
		h.Writer().Granted()
		require.Equal(t, Entered, turn(reader))
		require.Equal(t, Refused, turn(second), "one of them asks Redis")
		require.Equal(t, Refused, turn(other))
		h.Reader().Granted()
		require.Equal(t, Reentered, turn(second))
		h.looks(t, has(holders{team: 2}), has(holders{team: 1}), anna)
	})
	t.Run("one writes no more while another asks Redis to read", func(t *testing.T) {
		h := rwHeld(t, writes, team)
		h.in(t, team, reads, Entered)
		w := h.waits(t, anna, writes)
		h.out(t, team, writes, Last)
		h.Writer().Free()
		h.looks(t, acquiring(team), aFree, anna)
		h.Reader().Granted()
		h.looks(t, has(holders{team: 1}), aFree, anna)
		h.out(t, team, reads, Last)
		h.Reader().Free()
		require.Equal(t, Entered, turn(w))
	})
	t.Run("a writer is handed the lock", func(t *testing.T) {
		h := rwHeld(t, writes, anna)
		first, bystander := h.waits(t, team, writes), h.waits(t, bert, writes)
		same, reader := h.waits(t, team, writes), h.waits(t, team, reads)
		h.out(t, anna, writes, Last)
		require.True(t, h.Writer().HandOff(0))
		require.Equal(t, HandedOff, turn(first))
		require.Equal(t, Reentered, turn(same))
		require.Equal(t, Entered, turn(reader))
		require.Equal(t, Refused, turn(bystander))
		h.looks(t, acquiring(team), has(holders{team: 2}), bert)
	})
}

func TestReadWrite_WriterHandsOver(t *testing.T) {
	h := rwHeld(t, writes, anna)
	h.out(t, anna, writes, Last)
	require.False(t, h.Writer().HandOff(time.Hour), "nobody waits")
	h.looks(t, aFree, aLeaving)

	how, w := h.Writer().Enter(bert, time.Minute, true, nil)
	require.Equal(t, Refused, how)
	reader := h.waits(t, cleo, reads)
	require.False(t, h.Writer().HandOff(time.Minute-1), "it asks for a longer lease")
	h.looks(t, aFree, aLeaving, bert, cleo)
	require.True(t, h.Writer().HandOff(time.Minute))
	require.Equal(t, HandedOff, turn(w))
	h.looks(t, aFree, has(holders{bert: 1}), cleo)

	h.out(t, bert, writes, Last)
	require.False(t, h.Writer().HandOff(time.Hour), "a reader is next")
	h.Writer().Free()
	require.Equal(t, Entered, turn(reader))
	h.Reader().Granted()

	h.waits(t, dora, writes)
	h.out(t, cleo, reads, Last)
	require.False(t, h.Reader().HandOff(time.Hour), "a reader has nothing to hand over")

	// A writer that goes on reading cannot hand over the hold that it wrote with.
	h = rwHeld(t, writes, anna)
	h.in(t, anna, reads, Entered)
	h.Reader().Granted()
	h.waits(t, bert, writes)
	h.out(t, anna, writes, Last)
	require.False(t, h.Writer().HandOff(time.Hour))
	h.Writer().Free()
	h.looks(t, has(holders{anna: 1}), aFree, bert)
}

// While a writer waits elsewhere, new readers wait, first in, first out. As long as they do, one timer asks again. There is no
// timer when the answer would let no reader in.
func TestReadWrite_ReadersAreKeptOutForAWriterElsewhere(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := rwHeld(t, reads, anna)
		h.Answer(true)
		h.in(t, bert, reads, Joined) // it does not wait
		h.out(t, bert, reads, Leaves)
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
				assert.Equal(t, Joined, h.Reader().Wait(context.Background(), w, nil))
				results <- o
			}()
		}
		require.Zero(t, h.asked)
		h.in(t, dora, reads, Refused) // once others wait for the writer, it does not pass them
		<-time.After(heldBackFor - 1)
		require.Zero(t, h.asked)
		timed(true)
		<-time.After(1)
		synctest.Wait()
		require.Equal(t, 1, h.asked)
		h.Answer(true)
		<-time.After(heldBackFor)
		synctest.Wait()
		require.Equal(t, 2, h.asked)
		h.looks(t, has(holders{anna: 1}), aFree, bert, cleo)
		h.Answer(false)
		<-results
		<-results
		h.looks(t, has(holders{anna: 1, bert: 1, cleo: 1}), aFree)
		timed(false)
		h.in(t, dora, reads, Joined)

		// When the only waiter leaves, the timer is stopped.
		h = rwHeld(t, reads, anna)
		h.Answer(true)
		w := h.waits(t, dora, reads)
		timed(true)
		require.Equal(t, Refused, h.Reader().Wait(cancelled(), w, nil))
		timed(false)

		// A newcomer asks, too, if nobody has for a while, and does not wait for the timer.
		h.asks = true
		w = h.waits(t, dora, reads)
		require.Equal(t, 1, h.asked)
		h.waits(t, bert, reads)
		require.Equal(t, 1, h.asked, "there is no answer yet")
		h.Answer(false)
		require.Equal(t, Joined, turn(w))
		h.asks = false

		// A writer in front of them is not overtaken; when it gives up they wait for the answer.
		h = rwHeld(t, reads, anna)
		h.Answer(true)
		first, second := h.waits(t, team, writes), h.waits(t, crew, reads)
		timed(false)
		require.Equal(t, Refused, h.Writer().Wait(cancelled(), first, nil))
		timed(true)
		h.Answer(false)
		require.Equal(t, Joined, turn(second))

		// Readers that are kept out come in when the others are out, and the next ones with them.
		h = rwHeld(t, reads, anna)
		h.Answer(true)
		w = h.waits(t, bert, reads)
		timed(true)
		h.out(t, anna, reads, Last)
		timed(false)
		h.Answer(true) // too late
		h.Reader().Free()
		require.Equal(t, Entered, h.Reader().Wait(t.Context(), w, nil))
		h.Reader().Granted()
		h.in(t, cleo, reads, Joined)

		// Without an answer in time they come in. Where there never is one they do so every other time.
		h = rwHeld(t, reads, anna)
		h.Answer(true)
		w = h.waits(t, bert, reads)
		<-time.After(2 * heldBackFor)
		synctest.Wait()
		require.Equal(t, Joined, turn(w))
		h.Unknown()
		w = h.waits(t, cleo, reads)
		h.Unknown()
		require.Equal(t, Joined, turn(w))

		// A timer that is stopped at the moment at which it fires asks nobody.
		h = rwHeld(t, reads, anna)
		h.Answer(true)
		h.waits(t, bert, reads)
		stopped := h.timer
		h.again(new(*time.Timer))
		require.Zero(t, h.asked)
		require.Same(t, stopped, h.timer)
		stopped.Stop()
	})
}

// Goroutines of all kinds enter, and one goroutine checks that there are only readers, or only one writer.
func TestReadWrite_Hammer(t *testing.T) {
	const goroutines, rounds = 12, 300
	h := newRWHalf()
	var asked atomic.Int64
	var all sync.WaitGroup
	h.every = 50 * time.Microsecond
	h.asks = true
	h.ask = func() {
		asked.Add(1)
		all.Go(func() { h.Answer(asked.Load()%3 == 0) })
	}
	var readers, writers atomic.Int32
	var redis atomic.Int32 // owners that ask or have asked: the two sides never do so at once, but for one owner
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
			how, w := h.side(writes).Enter(o, 0, dice.IntN(5) > 0, nil)
			if w != nil {
				how = h.side(writes).Wait(ctx, w, nil)
			}
			switch how {
			case Refused, Upgrade, Denied, Evicted:
				return false
			case Entered:
				if n := redis.Add(1); n > 1 && !writes {
					assert.True(t, h.Writer().HeldBy(o), "two ask Redis at once")
				}
				failed := dice.IntN(10) == 0
				if dice.IntN(3) == 0 {
					h.side(writes).Taken()
				}
				redis.Add(-1)
				if failed {
					h.side(writes).Free()
					return false
				}
				h.side(writes).Granted()
			case HandedOff:
				assert.True(t, writes)
			case Reentered, Joined:
			}
			return true
		}
		unlock := func(writes bool) {
			switch departs(h.side(writes).Exit(o)) {
			case Last:
				if !writes || !h.Writer().HandOff(0) {
					h.side(writes).Free()
				}
			case NotIn, Lost:
				assert.Fail(t, "not in")
			case Stays, Leaves:
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
						how, _ := h.Writer().Enter(o, 0, true, nil)
						assert.Equal(t, Upgrade, how)
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

// tries enters as a reader that does not wait for other owners, but waits for the answer that is under way.
func (h *rwHalf) tries(t *testing.T, o owner.ID) *Waiter {
	t.Helper()
	how, w := h.Reader().Enter(o, 0, false, nil)
	require.Equal(t, Refused, how)
	require.NotNil(t, w)
	require.True(t, w.tries)
	return w
}

// Readers that try while one of them asks Redis get the same answer.
func TestReadWrite_TryingReaders(t *testing.T) {
	ask := func(t *testing.T) (*rwHalf, *Waiter, *Waiter) {
		t.Helper()
		h := newRWHalf()
		h.in(t, anna, reads, Entered)
		return h, h.tries(t, bert), h.tries(t, cleo)
	}
	t.Run("granted", func(t *testing.T) {
		h, bert2, cleo2 := ask(t)
		h.Reader().Granted()
		require.Equal(t, Joined, turn(bert2))
		require.Equal(t, Joined, turn(cleo2))
		h.looks(t, has(holders{anna: 1, bert: 1, cleo: 1}), aFree)
	})
	t.Run("taken, and who asked waits", func(t *testing.T) {
		h, bert2, cleo2 := ask(t)
		h.Reader().Taken()
		require.Equal(t, Denied, turn(bert2))
		require.Equal(t, Denied, turn(cleo2))
		h.in(t, bert, reads, Refused)
		h.looks(t, stuck(anna), aFree)
		h.Reader().Granted()
		h.in(t, bert, reads, Joined)
	})
	t.Run("no answer", func(t *testing.T) { // the one that asked has failed: the next one asks
		h, bert2, cleo2 := ask(t)
		h.Reader().Free()
		require.Equal(t, Entered, turn(bert2))
		require.Equal(t, Refused, turn(cleo2))
		h.looks(t, acquiring(bert), aFree, cleo)
		h.Reader().Granted()
		require.Equal(t, Joined, turn(cleo2))
	})
	t.Run("taken, and who asked gives up", func(t *testing.T) {
		h, bert2, cleo2 := ask(t)
		h.Reader().Taken()
		h.Reader().Free()
		require.Equal(t, Denied, turn(bert2))
		require.Equal(t, Denied, turn(cleo2))
		h.looks(t, aFree, aFree)
		h.in(t, bert, reads, Entered) // a new question
		require.Equal(t, Refused, turn(h.tries(t, cleo)))
	})
	t.Run("nobody may join", func(t *testing.T) {
		h, bert2, cleo2 := ask(t)
		h.unshared = true
		h.Reader().Granted()
		require.Equal(t, Denied, turn(bert2))
		require.Equal(t, Denied, turn(cleo2))
		h.looks(t, has(holders{anna: 1}), aFree)
	})
	t.Run("beside a reader that waits", func(t *testing.T) {
		for name, c := range map[string]struct {
			happens                  func(h *rwHalf)
			waiting, trying, another Admission
		}{
			"granted":   {func(h *rwHalf) { h.Reader().Granted() }, Joined, Joined, Joined},
			"taken":     {func(h *rwHalf) { h.Reader().Taken() }, Refused, Denied, Denied},
			"no answer": {func(h *rwHalf) { h.Reader().Free() }, Refused, Entered, Refused}, // in their order
		} {
			h := newRWHalf()
			h.in(t, anna, reads, Entered)
			waiting := h.waits(t, bert, reads)
			trying, another := h.tries(t, cleo), h.tries(t, dora)
			h.looks(t, acquiring(anna), aFree, cleo, dora, bert)
			c.happens(h)
			require.Equal(t, c.trying, turn(trying), name)
			require.Equal(t, c.another, turn(another), name)
			require.Equal(t, c.waiting, turn(waiting), name)
		}
	})
	t.Run("beside one that has waited for longer", func(t *testing.T) {
		h := newRWHalf()
		h.in(t, anna, reads, Entered)
		h.waits(t, bert, reads).Began(1)
		for _, o := range []owner.ID{cleo, dora} {
			h.tries(t, o).Began(5)
			_, since := h.Reader().Queued()
			require.EqualValues(t, 1, since)
		}
		team2 := h.tries(t, team)
		team2.Began(6)
		require.Equal(t, Refused, h.Reader().Wait(cancelled(), team2, nil))
		_, since := h.Reader().Queued()
		require.EqualValues(t, 1, since, "the last one has given up")
	})
	t.Run("beside one, and the last one gives up", func(t *testing.T) {
		h, _, cleo2 := ask(t)
		h.waits(t, dora, reads)
		require.Equal(t, Refused, h.Reader().Wait(cancelled(), cleo2, nil))
		h.tries(t, team)
		h.tries(t, crew)
		h.looks(t, acquiring(anna), aFree, bert, team, crew, dora)
		h.Reader().Taken()
		h.looks(t, stuck(anna), aFree, dora)
		require.Nil(t, h.lastTry)
	})
	t.Run("behind a writer", func(t *testing.T) {
		h, bert2, _ := ask(t)
		dora2 := h.waits(t, dora, writes)
		h.in(t, anna, reads, Refused) // that would be overtaking
		h.Reader().Granted()
		require.Equal(t, Joined, turn(bert2))
		require.Equal(t, Refused, turn(dora2))
	})
	t.Run("a writer asks", func(t *testing.T) {
		h := newRWHalf()
		h.in(t, anna, writes, Entered)
		h.in(t, bert, reads, Refused)
		h.Writer().Granted()
		h.in(t, bert, reads, Refused)
		h.in(t, anna, reads, Entered) // reads under its own writing, which keeps others out
		h.in(t, bert, reads, Refused)
	})
	t.Run("who writes does not wait for an answer", func(t *testing.T) {
		h, _, _ := ask(t)
		h.in(t, dora, writes, Refused)
	})
}

// A transition looks only at the waiters that it admits, and at the first one that it does not admit.
func TestReadWrite_DoesConstantWork(t *testing.T) {
	h := rwHeld(t, reads, anna, bert)
	writer, same := h.waits(t, team, writes), h.waits(t, team, reads)
	h.waits(t, dora, writes)
	reader, joins := h.waits(t, cleo, reads), h.waits(t, crew, reads)
	middle := h.waits(t, 20, writes)
	behind := []*Waiter{h.waits(t, 21, writes), h.waits(t, 22, reads), h.waits(t, team, writes), h.waits(t, team, reads)}
	untie := knot(middle)
	looksAtNobody(t, func() {
		h.in(t, 30, reads, Refused)
		assert.Equal(t, Refused, h.Reader().Wait(cancelled(), h.waits(t, 31, reads), nil))
		h.Reader().Taken()
		h.out(t, anna, reads, Leaves)
		h.out(t, bert, reads, Last)
		h.Reader().Free()
		assert.Equal(t, Entered, turn(writer))
		assert.True(t, h.Writer().Granted())
		assert.Equal(t, Entered, turn(same))
		assert.Equal(t, Reentered, turn(behind[2]))
		assert.True(t, h.Reader().Granted())
		assert.Equal(t, Reentered, turn(behind[3]))
		h.out(t, team, writes, Stays)
		h.out(t, team, writes, Last)
		h.Writer().Free()
		assert.True(t, h.Reader().Evict(always))
		h.Reader().Free()
		h.Writer().Granted() // dora
		h.out(t, dora, writes, Last)
		h.Writer().Free()
		assert.Equal(t, Entered, turn(reader))
		h.Reader().Granted()
		assert.Equal(t, Joined, turn(joins))
		h.out(t, crew, reads, Leaves)
	})
	untie()
	h.looks(t, has(holders{cleo: 1}), aFree, 20, 21, 22)
	require.Empty(t, h.queue.oldest)
}

// Readers that are held back, or wait behind a writer, cost nothing while nothing happens, and when it is time to ask again,
// one question is enough for all of them.
func TestReadWrite_WaitingReadersCostNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const readers = 1000
		h := rwHeld(t, reads, anna)
		h.Answer(true)
		writer := h.waits(t, bert, writes)
		var all sync.WaitGroup
		for i := range owner.ID(readers) {
			w := h.waits(t, 1000+i, reads)
			all.Go(func() { assert.Equal(t, Joined, h.Reader().Wait(context.Background(), w, nil)) })
		}
		<-time.After(time.Hour)
		require.Zero(t, h.asked)
		require.Equal(t, Refused, h.Writer().Wait(cancelled(), writer, nil))
		<-time.After(heldBackFor)
		synctest.Wait()
		require.Equal(t, 1, h.asked)
		h.Answer(false)
		all.Wait()
		require.Equal(t, 1, h.asked)
	})
}

func TestReadWrite_Evicts(t *testing.T) {
	h := rwHeld(t, reads, anna, bert)
	h.in(t, bert, reads, Reentered)
	require.False(t, h.Writer().Evict(always))
	require.False(t, h.Reader().Evict(still))
	w := h.waits(t, cleo, writes)
	require.True(t, h.Reader().Evict(always))
	h.looks(t, aLeaving, aFree, cleo)
	require.Zero(t, h.read.Count())
	h.Reader().Free()
	require.Equal(t, Entered, turn(w))
	h.Writer().Granted()
	h.in(t, anna, reads, Evicted)
	h.in(t, anna, writes, Upgrade) // as it would be told if nobody else had come
	h.out(t, anna, reads, Lost)
	h.out(t, anna, reads, NotIn)
	h.in(t, anna, reads, Refused)
	require.Equal(t, fault.LeaseOver, h.Reader().Lost(bert))
	h.out(t, bert, reads, Lost)
	h.out(t, bert, reads, Lost)
	h.out(t, bert, reads, NotIn)

	// A writer that also reads loses one of the two.
	h.in(t, cleo, reads, Entered)
	h.Reader().Granted()
	dora2 := h.waits(t, dora, reads)
	require.True(t, h.Writer().Evict(always))
	h.looks(t, has(holders{cleo: 1}), aLeaving, dora)
	h.in(t, cleo, reads, Reentered)
	h.in(t, cleo, writes, Evicted)
	h.Writer().Free()
	require.Equal(t, Joined, turn(dora2))
	h.looks(t, has(holders{cleo: 2, dora: 1}), aFree)
	h.out(t, cleo, writes, Lost)
	h.in(t, cleo, writes, Upgrade)
}
