package queue

import (
	"fmt"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry/internal/hold"
	"github.com/lockregistry/lockregistry/internal/lease"
)

// What a reply means that says that the key was not the hold's any more, whether it comes first, or the reply to the call that
// has not waited.
func TestBehind_WhatIsALoss(t *testing.T) {
	for name, c := range map[string]struct {
		next  follower
		ended bool // its hold is over
		later bool // the reply says that the key is a later hold's, not that it is free, or another's
		lost  bool
	}{
		"nobody came":                          {next: nobody, lost: true},
		"nobody is known to have come":         {next: nobody, later: true},
		"refused":                              {next: refused, lost: true},
		"refused, and one behind it was not":   {next: refused, later: true, lost: true},
		"the key is the next one's":            {next: granted, later: true},
		"the key would be the next one's":      {next: granted, lost: true},
		"the next one's is removed":            {next: granted, ended: true},
		"the next one's was taken over":        {next: granted, ended: true, later: true},
		"what became of the next is not known": {next: unknown},
	} {
		for _, first := range []bool{false, true} {
			t.Run(fmt.Sprint(name, first), func(t *testing.T) {
				l := newLock(t)
				h := l.NewHold(hold.Terms{Lease: lease.NewTerm(time.Minute)})
				now := l.path.Clock.Now()
				require.True(t, h.Grant(now, now))
				if c.ended {
					h.End(now)
				}
				b := NewBackground(time.Second)
				r := b.begin("a", 0, 1)
				told := 0
				reply := func() { b.notOurs(r, c.later, func() { told++ }) }
				knows := func() {}
				if c.next != nobody {
					b.overtake(r)
					knows = func() { b.followed(r, c.next, h) }
				}
				if first {
					reply()
					require.Equal(t, c.next == nobody && c.lost, told == 1, "told before it is known")
					knows()
				} else {
					knows()
					reply()
				}
				require.Equal(t, c.lost, told == 1)
				b.followed(b.overtake(r), refused, nil)
				require.Equal(t, c.lost, told == 1, "once")
			})
		}
	}
}

// Of a call before the one that was refused something may have been removed, and the key with it. Those behind it change nothing.
func TestBehind_SeveralCallsDoNotWait(t *testing.T) {
	for name, c := range map[string]struct {
		calls []follower
		lost  bool
	}{
		"the first one was refused":  {[]follower{refused, unknown}, true},
		"the second one was refused": {[]follower{unknown, refused}, false},
	} {
		b, lost := NewBackground(time.Second), false
		r := b.begin("a", 0, 1)
		for _, how := range c.calls {
			b.followed(b.overtake(r), how, nil)
		}
		b.notOurs(r, false, func() { lost = true })
		require.Equal(t, c.lost, lost, name)
	}
}

func TestBehind_KnowsTheNewest(t *testing.T) {
	var none *Background
	require.Nil(t, none.of("a"))
	b := NewBackground(0)
	first, newest := b.begin("a", 0, 1), b.begin("a", 0, 2)
	require.Same(t, newest, b.of("a"))
	require.Nil(t, b.of("b"))
	b.end(newest)
	require.Nil(t, b.of("a"))
	b.end(first)
	require.Empty(t, b.newest)
}

// Those without a ticket have their chance after several holds in a row, not after one that was long.
func TestBehind_Yields(t *testing.T) {
	const trip = time.Millisecond
	b := NewBackground(100 * time.Millisecond)
	require.False(t, b.Yields(time.Hour, time.Hour-trip, trip))
	require.False(t, b.Yields(99*time.Millisecond, trip, trip))
	require.True(t, b.Yields(100*time.Millisecond, trip, trip))
	require.False(t, NewBackground(0).Yields(time.Hour, 0, trip))
}

func TestBehind_HasRoomForSoMany(t *testing.T) {
	b := NewBackground(0)
	all := make([]*removing, 0, mostInBackground)
	for i := range mostInBackground {
		all = append(all, b.begin(strconv.Itoa(i%10), 0, 1))
	}
	require.NotContains(t, all, (*removing)(nil))
	require.Nil(t, b.begin("another", 0, 1))
	b.end(all[0])
	require.NotNil(t, b.begin("another", 0, 1))
}

func TestBehind_CloseWaitsForAWhile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := NewBackground(0)
		b.Close(time.Hour) // for none
		b = NewBackground(0)
		r := b.begin("a", 0, 1)
		began := time.Now()
		b.Close(time.Second)
		require.Equal(t, time.Second, time.Since(began))
		require.Nil(t, b.begin("b", 0, 1))
		time.AfterFunc(time.Minute, func() { b.end(r) })
		b.Close(time.Hour)
		require.Equal(t, time.Second+time.Minute, time.Since(began))
	})
}
