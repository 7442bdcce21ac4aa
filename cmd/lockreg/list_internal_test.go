package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry/inspect"
	"github.com/lockregistry/lockregistry/internal/scan"
	"github.com/lockregistry/lockregistry/observe"
)

// slowly tells of locks, one each ten milliseconds.
func slowly(n int, failure error) func(yield func(inspect.Lock, error) bool) {
	return func(yield func(inspect.Lock, error) bool) {
		for i := range n {
			<-time.After(10 * time.Millisecond)
			if !yield(inspect.Lock{Path: fmt.Sprintf("p%03d", i), Kind: "lock", WaiterCount: i % 50}, nil) {
				return
			}
		}
		if failure != nil {
			yield(inspect.Lock{}, failure)
		}
	}
}

// A listing that takes long prints its first rows soon, and says on a terminal how far it is.
func TestListInParts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		out, errs := &lines{}, &lines{}
		a := &app{out: out, err: errs}
		p := &progress{to: errs, began: time.Now(), done: make(chan struct{})}
		p.begin()
		done := make(chan error)
		p.at(scan.Progress{Keys: 500, Part: 0.411})
		go func() { done <- listingOf(a, p).list(slowly(300, nil), func() {}) }()
		<-time.After(1500 * time.Millisecond)
		synctest.Wait()
		require.InDelta(t, 101, strings.Count(out.String(), "\n"), 1, "the first second")
		require.NoError(t, <-done)
		p.end()
		text := out.String()
		require.Regexp(t, `lockreg: reading for 2s, \d+ locks so far, in 41 % of the keys`, errs.String())
		require.True(t, strings.HasSuffix(errs.String(), "\r\x1b[K"), "nothing of it is left")
		_, end, found := strings.Cut(text, "\n300 locks\n\nthe longest queues:\n")
		require.True(t, found, text)
		require.Regexp(t, `^PATH .*\np049 .*49\np099 .*49\np149 `, end)
		require.Equal(t, 21, strings.Count(end, "\n"))
	})
}

// What is found is printed within a second, also when nothing follows for long; and a list that is cut off says so where it is.
func TestListThatIsCutOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		failure := errors.New("gone")
		for name, c := range map[string]struct {
			found int
			want  string
		}{"some": {3, `^PATH .*\np002 .*\np001 .*\np000 .*\n\nnot complete: 3 locks, in 7 % of the keys\n$`}, "none": {0, "^$"}} {
			out, p := &lines{}, &progress{}
			p.at(scan.Progress{Keys: 500, Part: 0.07})
			ctx, stop := context.WithCancel(t.Context())
			locks := func(yield func(inspect.Lock, error) bool) {
				slowly(c.found, nil)(yield)
				<-time.After(2 * partEach)
				assert.Equal(t, c.found > 0, strings.Contains(out.String(), "p000"), name)
				yield(inspect.Lock{}, failure)
				<-ctx.Done()
			}
			require.ErrorIs(t, listingOf(&app{out: out}, p).list(locks, stop), failure)
			require.Regexp(t, c.want, out.String(), name)
			require.Error(t, ctx.Err(), "nothing is read any more")
		}
	})
}

// When its output is gone a list ends.
func TestListThatNobodyReads(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, stop := context.WithCancel(t.Context())
		endless := func(yield func(inspect.Lock, error) bool) {
			for ctx.Err() == nil && yield(inspect.Lock{Path: "a"}, nil) {
				<-time.After(10 * time.Millisecond)
			}
		}
		require.ErrorIs(t, listingOf(&app{out: broken{}}, &progress{}).list(endless, stop), io.ErrClosedPipe)
	})
}

type broken struct{}

func (broken) Write([]byte) (int, error) { return 0, io.ErrClosedPipe }

// listingOf prints a list without marks.
func listingOf(a *app, p *progress) *listing {
	return &listing{app: a, progress: p, marks: func() marks { return nil }}
}

// A quick one is one table, in order.
func TestListAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out, errs bytes.Buffer
		a := &app{out: &out, err: &errs}
		p := a.progress()
		require.NoError(t, listingOf(a, p).list(slowly(60, nil), func() {}))
		p.end()
		require.Equal(t, 61, strings.Count(out.String(), "\n"))
		require.Regexp(t, `^PATH .*\np049 `, out.String())
		require.Empty(t, errs.String())
	})
}

// Calls that wait in their processes count as those in the queue of Redis do, wherever locks are in order.
func TestListOfCallsThatWaitInTheirProcesses(t *testing.T) {
	hot := inspect.Lock{Path: "hot", Kind: "lock", Holders: []inspect.Holder{{Holder: "x", Lease: -1, Behind: 28}}}
	hot.HolderCount = 1
	behind := inspect.Lock{Path: "behind", Kind: "lock", WaiterCount: 1, Waiters: []inspect.Waiter{{Behind: 3}}}
	infos := []inspect.Lock{{Path: "a", Kind: "lock", WaiterCount: 1}, {Path: "b", Kind: "lock", WaiterCount: 2}, hot, behind}
	shown, more := (&choice{sort: "waiting", limit: 2}).ordered(slices.Clone(infos))
	require.Equal(t, []string{"hot", "behind"}, []string{shown[0].Path, shown[1].Path})
	require.Equal(t, 2, more)
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		parts := func(yield func(inspect.Lock, error) bool) {
			for _, info := range infos {
				<-time.After(partEach)
				yield(info, nil)
			}
		}
		require.NoError(t, listingOf(&app{out: &out}, &progress{}).list(parts, func() {}))
		require.Regexp(t, `the longest queues:\nPATH .*\nhot .*\nbehind .*\nb .*\na `, out.String())
	})
}

// Of several holders it says how many are probably dead.
func TestListOfSeveralHolders(t *testing.T) {
	alive := inspect.Holder{Holder: "a", Renewed: time.Minute, Lease: 50 * time.Second}
	dead := inspect.Holder{Holder: "b", Renewed: time.Minute, Lease: 30 * time.Second}
	for want, info := range map[string]inspect.Lock{
		"2 holders":                  {Kind: observe.KindSemaphore, Holders: []inspect.Holder{alive, alive}, HolderCount: 2},
		"2 holders, 1 probably dead": {Kind: observe.KindSemaphore, Holders: []inspect.Holder{alive, dead}, HolderCount: 2},
		"3 readers, 2 probably dead": {Kind: observe.KindReadWrite, Holders: []inspect.Holder{dead, alive, dead}, HolderCount: 3},
	} {
		var out bytes.Buffer
		require.NoError(t, (&app{out: &out}).printLocks([]inspect.Lock{info}, nil))
		require.Regexp(t, "  "+want+"  +0\n$", out.String())
	}
}
