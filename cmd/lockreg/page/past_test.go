package page_test

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry/cmd/lockreg/page"
	"github.com/lockregistry/lockregistry/inspect"
	"github.com/lockregistry/lockregistry/observe"
)

// counted is what the last of what was told says of grants and handoffs.
func counted(t *testing.T, text string) string {
	t.Helper()
	all := regexp.MustCompile(`"grants":(\d+),"handoffs":(\d+)`).FindAllStringSubmatch(text, -1)
	require.NotEmpty(t, all)
	last := all[len(all)-1]
	return last[1] + " " + last[2]
}

// heldBy is a lock with holders.
func heldBy(path string, holders ...string) inspect.Lock {
	lock := someLock(path, 0)
	one := lock.Holders[0]
	lock.Holders, lock.HolderCount = nil, len(holders)
	for _, holder := range holders {
		one.Holder = holder
		lock.Holders = append(lock.Holders, one)
	}
	return lock
}

func TestGrantsAndHandoffsAreCounted(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		source := newFake()
		source.set(heldBy("a", "r1:1"), heldBy("b", "r1:2"))
		h := newPage(t, source)
		b := look(t, h)
		next := func() string {
			t.Helper()
			<-time.After(700 * time.Millisecond)
			synctest.Wait()
			return counted(t, b.read())
		}
		require.Equal(t, "0 0", next(), "what was there before is no grant")
		source.set(heldBy("c", "r1:3"))
		require.Equal(t, "1 0", next())
		source.set(heldBy("a", "r2:1"))
		require.Equal(t, "2 1", next())
		source.remove("b")
		require.Equal(t, "2 1", next(), "a release is none")
		source.set(heldBy("b"))
		require.Equal(t, "2 1", next(), "nor is a waiter")
		source.set(heldBy("b", "r1:4"))
		require.Equal(t, "3 1", next())

		// Readers come and go. All others than before are a handoff.
		source.set(heldBy("b", "r1:4", "r2:4", "r3:4"))
		require.Equal(t, "5 1", next())
		source.set(heldBy("b", "r3:4", "r4:4"))
		require.Equal(t, "6 1", next())
		source.set(heldBy("b", "r5:4"))
		require.Equal(t, "7 2", next())
		many := heldBy("b", "r6:4")
		many.HolderCount = 101
		source.set(many)
		require.Equal(t, "7 2", next(), "those that are not listed may be the same")
		source.set(heldBy("b", "r7:4"))
		require.Equal(t, "7 2", next())

		// A path that stays taken after its release has no owner.
		kept := heldBy("c", "r1:3:atleast")
		kept.Holders[0].Kept = true
		source.set(kept)
		require.Equal(t, "7 2", next())
		source.set(heldBy("c", "r2:3"))
		require.Equal(t, "8 2", next())

		// What happens while a pass fails is counted once it succeeds.
		source.do(func() { source.failure = errors.New("gone") })
		source.set(heldBy("d", "r1:5"))
		require.Equal(t, "8 2", next())
		source.do(func() { source.failure = nil })
		require.Equal(t, "9 2", next())

		// While nobody looks nothing is counted, and the counts go on.
		b.close()
		synctest.Wait()
		source.set(heldBy("e", "r1:6"), heldBy("a", "r3:1"))
		b = look(t, h)
		require.Equal(t, "9 2", next())
		source.set(heldBy("a", "r4:1"))
		require.Equal(t, "10 3", next())
		late := look(t, h)
		synctest.Wait()
		require.Regexp(t, `"history":\[\[\d+,0,2,0,0,0,0\],.*,(9,2|10,3)\]\]`, late.read())
	})
}

// A pass that takes long, and is shown in parts, counts each grant once.
func TestGrantsOfALongPass(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		source := newFake()
		for _, path := range []string{"a", "b", "c"} {
			source.set(heldBy(path, "r1:1"))
		}
		source.each = time.Second
		b := look(t, newPage(t, source, page.WithInterval(time.Second)))
		<-time.After(5 * time.Second)
		for _, path := range []string{"a", "b", "c"} {
			source.set(heldBy(path, "r2:1"))
		}
		<-time.After(30 * time.Second)
		synctest.Wait()
		require.Equal(t, "3 3", counted(t, b.read()))
	})
}

// overdueBy is a lock whose holder should have renewed it before: its lease of 30 s has so long to go.
func overdueBy(path, holder string, left time.Duration) inspect.Lock {
	lock := heldBy(path, holder)
	lock.Holders[0].Renewed, lock.Holders[0].Lease = 30*time.Second, left
	return lock
}

func TestLossesAreTold(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		source := newFake()
		h := newPage(t, source)
		b := look(t, h)
		after := func(d time.Duration) string {
			<-time.After(d)
			synctest.Wait()
			return b.read()
		}
		require.Contains(t, after(time.Millisecond), `"lost":[]`)

		notOverdue := overdueBy("healthy", "r1:2", 19*time.Second) // 1 s, not 3 s late: it may be chance
		unrenewed := heldBy("once", "r1:3")                        // its lease ends as it is meant to
		unrenewed.Holders[0].Lease = 2 * time.Second
		unlisted := heldBy("unlisted", "r1:7") // its record says nothing of it, but its process is probably dead
		unlisted.Holders[0].Lease, unlisted.Holders[0].Silent = 2*time.Second, 28*time.Second
		source.set(unlisted, overdueBy("gone", "r1:1", 2*time.Second), notOverdue, unrenewed, overdueBy("late", "r1:4", 10*time.Second),
			overdueBy("kept", "r1:5", 2*time.Second), overdueBy("taken", "r1:6", 2*time.Second))
		require.NotContains(t, after(1900*time.Millisecond), `"lost"`)
		for _, path := range []string{"gone", "once", "healthy", "unlisted"} {
			source.remove(path)
		}
		source.remove("late")                                  // long before its lease ends, so somebody has released it
		source.set(overdueBy("kept", "r1:5", 30*time.Second))  // renewed after all
		source.set(overdueBy("taken", "r2:6", 30*time.Second)) // another owner has it
		text := after(time.Second)
		require.Equal(t, 1, strings.Count(text, `"lost":[`), "once: %s", text)
		require.Equal(t, 1, strings.Count(text, `"id":"r1%3A1"`))
		require.Equal(t, 1, strings.Count(text, `"id":"r1%3A6"`))
		require.Equal(t, 1, strings.Count(text, `"id":"r1%3A7"`))
		_, lost, _ := strings.Cut(text, `"lost":[`)
		for _, path := range []string{"healthy", "once", "late", "kept"} {
			require.NotContains(t, lost, `"path":"`+path+`"`)
		}
		require.Contains(t, lost, `"host":"web-1"`)

		late := look(t, h)
		synctest.Wait()
		require.Equal(t, 1, strings.Count(late.read(), `"path":"gone"`), "also to those who come later")
		late.close()
		require.NotContains(t, after(9*time.Minute), `"lost"`)
		require.Contains(t, after(2*time.Minute), `"lost":[]`, "ten minutes")
	})
}

// The record of a process that has died may expire before its lease.
func TestLossOfAHolderWithoutARecord(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		source := newFake()
		lock := overdueBy("a", "r1:1", 10*time.Second)
		lock.Holders[0].Silent = 20 * time.Second
		source.set(lock)
		b := look(t, newPage(t, source))
		<-time.After(5 * time.Second)
		lock.Holders = slices.Clone(lock.Holders) // the source has the others
		lock.Holders[0].Label, lock.Holders[0].Renewed, lock.Holders[0].Lease = observe.Label{}, 0, 5*time.Second
		lock.Holders[0].Silent = 0
		source.set(lock)
		synctest.Wait()
		b.read()
		<-time.After(4600 * time.Millisecond)
		synctest.Wait()
		require.NotContains(t, b.read(), `"path":"a"`, "nothing new is known")
		source.remove("a")
		<-time.After(2 * time.Second)
		synctest.Wait()
		_, lost, _ := strings.Cut(b.read(), `"lost":[`)
		require.Contains(t, lost, `"host":"web-1"`)
	})
}

// A hundred losses are remembered, the newest. While nobody looks none is seen.
func TestLossesAreLimited(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		source := newFake()
		h := newPage(t, source)
		b := look(t, h)
		for i := range 120 {
			source.set(overdueBy(fmt.Sprint("p", i), "r1:1", time.Second))
			if i == 60 { // those are older
				<-time.After(900 * time.Millisecond)
				source.do(func() { clear(source.locks) })
				<-time.After(time.Second)
			}
		}
		<-time.After(900 * time.Millisecond)
		source.do(func() { clear(source.locks) })
		<-time.After(time.Second)
		synctest.Wait()
		b.read()
		late := look(t, h)
		synctest.Wait()
		_, lost, _ := strings.Cut(late.read(), `"lost":[`)
		require.Equal(t, 100, strings.Count(lost, `"path":`))
		for i := 61; i < 120; i++ {
			require.Contains(t, lost, fmt.Sprintf(`"path":"p%d"`, i))
		}
		late.close()
		b.close()
		synctest.Wait()

		source.set(overdueBy("unseen", "r1:1", time.Second))
		<-time.After(time.Second)
		source.remove("unseen")
		again := look(t, h)
		<-time.After(time.Second)
		synctest.Wait()
		text := again.read()
		require.NotContains(t, text, "unseen")
		require.Contains(t, text, `"path":"p119"`, "what was seen stays")
	})
}
