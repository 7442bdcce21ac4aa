package lease_test

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry/internal/clock"
	"github.com/lockregistry/lockregistry/internal/fault"
	"github.com/lockregistry/lockregistry/internal/lease"
)

const now = clock.Instant(time.Hour)

var (
	second  = lease.NewTerm(time.Second)
	short   = lease.NewTerm(2 * time.Second)
	minute  = lease.NewTerm(time.Minute)
	hour    = lease.NewTerm(time.Hour)
	confirm = lease.Outcome{Ours: true}
	unknown = lease.Outcome{Failed: true, Unknown: true}
	refused = lease.Outcome{Failed: true}
	few     = lease.Outcome{Ours: true, Failed: true}
)

// granted returns a lease of a minute that begins now.
func granted(t *testing.T, renewed bool) *lease.State {
	t.Helper()
	s := &lease.State{Term: minute, Renewed: renewed}
	require.True(t, s.Grant(now, now))
	return s
}

// certain returns how long a lease is valid: its length less the margin.
func certain(d time.Duration) time.Duration { return d - d/100 - time.Millisecond }

func renew(s *lease.State, at clock.Instant, t *lease.Term) lease.Renewal {
	r := s.Begin(at, t)
	r.Chosen = true
	return r
}

// A lease that is yet to be lengthened, or that is not renewed, has no renewal lease.
func TestState_RenewalLease(t *testing.T) {
	require.Equal(t, time.Minute, granted(t, true).RenewalLease(now))
	require.Zero(t, granted(t, false).RenewalLease(now))
	s := &lease.State{Term: minute, Renewed: true}
	require.Zero(t, s.RenewalLease(now))
	require.True(t, s.GrantShort(now, now, time.Second, 0))
	require.Zero(t, s.RenewalLease(now))
	r := renew(s, now, minute)
	r.Sent = now
	s.Reply(r, now, confirm)
	require.Equal(t, time.Minute, s.RenewalLease(now))
	s.End(now)
	require.Zero(t, s.RenewalLease(now))
}

func TestTerm(t *testing.T) {
	want := &lease.Term{Length: 1500 * time.Millisecond, MS: "1500"}
	require.Equal(t, want, lease.NewTerm(1500*time.Millisecond+999*time.Microsecond))
}

func TestState_Grant(t *testing.T) {
	for name, c := range map[string]struct {
		came  time.Duration
		fresh bool
	}{
		"in time":             {certain(time.Minute) - 1, true},
		"when it is over":     {certain(time.Minute), false},
		"long after its time": {time.Hour, false},
	} {
		t.Run(name, func(t *testing.T) {
			s := &lease.State{Term: minute}
			require.Equal(t, c.fresh, s.Grant(now, now.Add(c.came)))
			require.Equal(t, c.fresh, s.Live())
			require.Equal(t, c.fresh, s.Fresh(now.Add(c.came)))
			require.False(t, s.Fresh(now.Add(certain(time.Minute))))
		})
	}
}

// A command for the same value may still be executed, and sets the key's lease back to its own.
func TestGrant_ALateOneBesideIt(t *testing.T) {
	s := &lease.State{Term: short, MayArrive: true}
	require.True(t, s.Grant(now, now))
	require.Equal(t, lease.Extended, s.Reply(s.Begin(now, minute), now, confirm))
	require.Equal(t, certain(2*time.Second), s.Left(now))
}

func TestState_GrantShort(t *testing.T) {
	for name, c := range map[string]struct {
		age       time.Duration // of the command from which it counts
		roundTrip time.Duration
		length    time.Duration
		renewed   bool
		ok        bool
		due       time.Duration // from now on
		looks     bool
	}{
		"nearby":                   {0, time.Millisecond, time.Second, false, true, certain(time.Second) / 3, true},
		"from far away":            {0, certain(time.Second)/3 + 1, time.Second, false, true, 0, true},
		"half of it is certain":    {certain(time.Second) - time.Second/2, 0, time.Second, false, true, time.Second / 6, true},
		"less than half is":        {certain(time.Second) - time.Second/2 + 1, 0, time.Second, false, false, 0, false},
		"a whole lease":            {0, 0, time.Minute, false, true, 0, false},
		"a whole lease, renewed":   {0, 0, time.Minute, true, true, 20 * time.Second, true},
		"a whole one, asked again": {time.Second, 0, time.Minute, true, true, 19 * time.Second, true},
	} {
		t.Run(name, func(t *testing.T) {
			s := &lease.State{Term: minute, Renewed: c.renewed}
			require.Equal(t, c.ok, s.GrantShort(now.Add(-c.age), now, c.length, c.roundTrip))
			require.Equal(t, c.ok, s.Live())
			if !c.ok {
				return
			}
			due, looks := s.Due(false)
			require.Equal(t, c.looks, looks)
			if looks {
				require.Equal(t, c.due, now.Until(due))
				require.Equal(t, lease.Nothing, s.Tick(due-1, false))
				require.Equal(t, lease.Renew, s.Tick(due, false))
				require.Equal(t, lease.Nothing, s.Tick(due, false), "it is under way")
			}
		})
	}
}

// A lost lease stays lost, and says why. A lease that is over does not come back.
func TestState_Lose(t *testing.T) {
	s := granted(t, true)
	r := s.Begin(now, minute)
	require.True(t, s.Lose(fault.KeyTaken))
	require.False(t, s.Lose(fault.LeaseOver), "once")
	require.Equal(t, lease.NotLive, s.Reply(r, now, confirm))
	require.False(t, s.Verify(now))
	require.True(t, s.Lost())
	require.False(t, s.Fresh(now))
	require.False(t, first(s.End(now)))
	require.Equal(t, fault.KeyTaken, s.Why())
	require.True(t, s.Over())
	require.False(t, s.Lose(fault.LeaseOver))
}

func TestState_End(t *testing.T) {
	for name, c := range map[string]struct {
		after time.Duration
		sound bool
		why   fault.Loss
	}{
		"in time":  {certain(time.Minute) - 1, true, fault.NotLost},
		"too late": {certain(time.Minute), false, fault.LeaseOver},
	} {
		t.Run(name, func(t *testing.T) {
			s := granted(t, false)
			sound, noticed := s.End(now.Add(c.after))
			require.Equal(t, c.sound, sound)
			require.Equal(t, c.sound, s.Sound())
			require.Equal(t, !c.sound, noticed)
			_, noticed = s.End(now.Add(c.after))
			require.False(t, noticed, "for the second time")
			require.Equal(t, c.why, s.Why())
		})
	}
}

// A look goes by the clock. The first look after the end reports that it has ended the lease.
func TestState_Look(t *testing.T) {
	s := granted(t, true)
	look := func(at clock.Instant, valid, ended bool) {
		t.Helper()
		isValid, hasEnded := s.Look(at)
		require.Equal(t, valid, isValid)
		require.Equal(t, ended, hasEnded)
	}
	end := now.Add(certain(time.Minute))
	look(end-1, true, false)
	look(end, false, true)
	require.Equal(t, fault.LeaseOver, s.Why())
	look(end, false, false)
	look(end-1, false, false)

	s = granted(t, true)
	require.True(t, s.Lose(fault.KeyTaken))
	look(now, false, false)
	require.Equal(t, fault.KeyTaken, s.Why())

	s = granted(t, true)
	require.True(t, first(s.End(now)))
	look(end, false, false)
	require.True(t, s.Sound())
}

// The key of a lost lease may be removed once the lease is over on the server, too, and not at an earlier look.
func TestState_PlanRemoval(t *testing.T) {
	s := granted(t, false)
	require.True(t, s.Lose(fault.LeaseOver))
	at := s.PlanRemoval(time.Second, 0)
	require.Equal(t, now.Add(certain(time.Minute)+2*lease.Margin(time.Minute)+time.Second), at)
	require.False(t, s.Remove(at-1))
	require.True(t, s.Remove(at))
	require.False(t, s.Remove(at+1), "once")
	require.Equal(t, now.Add(time.Hour), s.PlanRemoval(time.Second, now.Add(time.Hour)), "it is kept for longer")
}

func TestState_Reply(t *testing.T) {
	const later = 10 * time.Second
	for name, c := range map[string]struct {
		outcome lease.Outcome
		verdict lease.Verdict
		left    time.Duration
		next    time.Duration // when the next one is due, from the reply on
	}{
		"extended":                    {confirm, lease.Extended, certain(time.Minute), 20 * time.Second},
		"not its own":                 {lease.Outcome{}, lease.NotOurs, certain(time.Minute) - later, clock.Longest},
		"late":                        {lease.Outcome{Ours: true, Late: true}, lease.Unconfirmed, certain(time.Minute) - later, 0},
		"refused":                     {refused, lease.Failed, certain(time.Minute) - later, -1},
		"not answered":                {unknown, lease.Failed, certain(time.Minute) - later, -1},
		"too few replicas":            {few, lease.Failed, certain(time.Minute) - later, -1},
		"late, and not its own":       {lease.Outcome{Late: true}, lease.NotOurs, certain(time.Minute) - later, clock.Longest},
		"refused late, by whoever is": {lease.Outcome{Failed: true, Late: true}, lease.Failed, certain(time.Minute) - later, -1},
	} {
		t.Run(name, func(t *testing.T) {
			s, at := granted(t, true), now.Add(later)
			due, _ := s.Due(false)
			require.Equal(t, now.Add(20*time.Second), due)
			require.Equal(t, lease.Renew, s.Tick(due, false))
			r := s.Begin(at, minute)
			r.Scheduled = true
			require.Equal(t, c.verdict, s.Reply(r, at, c.outcome))
			require.Equal(t, c.left, s.Left(at))
			due, _ = s.Due(false)
			switch next := at.Until(due); c.next {
			case -1:
				require.Less(t, next, time.Second, "after a pause")
				require.Positive(t, next)
			case clock.Longest:
				require.Equal(t, c.left, next)
			default:
				require.Equal(t, c.next, next)
			}
		})
	}
}

// A renewal that is answered after the end of the lease does not revive it.
func TestReply_AfterTheEnd(t *testing.T) {
	s := granted(t, true)
	r := s.Begin(now.Add(time.Second), minute)
	require.Equal(t, lease.TooLate, s.Reply(r, now.Add(certain(time.Minute)), confirm))
}

// Two renewals are under way at once. Until both are answered, it is not known which of them the server executes last.
func TestReply_TwoUnderWay(t *testing.T) {
	s := granted(t, false)
	first := s.Begin(now, minute)
	second := s.Begin(now, short)
	require.Equal(t, certain(2*time.Second), s.Left(now), "the shorter one may be executed now")
	require.Equal(t, lease.Extended, s.Reply(second, now, confirm))
	require.Equal(t, lease.Extended, s.Reply(first, now, confirm))
	require.Equal(t, certain(2*time.Second), s.Left(now), "or last")
	require.Equal(t, lease.Extended, s.Reply(s.Begin(now, minute), now, confirm))
	require.Equal(t, certain(time.Minute), s.Left(now), "the next one counts")
}

func TestReply_ARefusedOneChangesNothing(t *testing.T) {
	s := granted(t, false)
	r := s.Begin(now, short)
	require.Equal(t, certain(2*time.Second), s.Left(now))
	require.Equal(t, lease.Failed, s.Reply(r, now, refused))
	require.Equal(t, certain(time.Minute), s.Left(now))
}

// A shorter renewal that too few replicas have may have been executed. Another renewal that was refused does not undo that.
func TestReply_TooFewReplicasBesideARefusedOne(t *testing.T) {
	s := granted(t, false)
	shorter, long := s.Begin(now, second), s.Begin(now, minute)
	require.Equal(t, lease.Failed, s.Reply(shorter, now, few))
	require.Equal(t, lease.Failed, s.Reply(long, now, refused))
	require.Equal(t, certain(time.Second), s.Left(now))
	require.Equal(t, lease.Extended, s.Reply(s.Begin(now, minute), now, confirm))
	require.Equal(t, certain(time.Minute), s.Left(now), "the next one counts")
}

// The key may have the longest lease that was asked for, until a shorter one is confirmed and no command with a longer one can be
// executed after it.
func TestState_Longest(t *testing.T) {
	shorten := func(s *lease.State) { s.Reply(renew(s, now, short), now, confirm) }
	for name, c := range map[string]struct {
		happens func(s *lease.State)
		longest time.Duration
	}{
		"granted":    {func(*lease.State) {}, time.Minute},
		"shortened":  {shorten, 2 * time.Second},
		"lengthened": {func(s *lease.State) { shorten(s); s.Begin(now, lease.NewTerm(time.Hour)) }, time.Hour},
		"shortened for the next owner only": {func(s *lease.State) {
			s.Handoff()
			s.SetTerms(short, false, 0, now)
		}, time.Minute},
		"shortened while the longer one was under way": {func(s *lease.State) {
			long := s.Begin(now, minute)
			other := renew(s, now, short)
			s.Reply(long, now, confirm)
			s.Reply(other, now, confirm)
		}, time.Minute},
		"shortened while the longer one is in doubt": {func(s *lease.State) {
			s.Reply(s.Begin(now, minute), now, unknown)
			shorten(s)
		}, time.Minute},
		"once longer": {func(s *lease.State) { s.Reply(s.Begin(now, hour), now, confirm) }, time.Hour},
		"longer, and then renewed": {func(s *lease.State) {
			s.Reply(s.Begin(now, hour), now, confirm)
			s.Reply(s.Begin(now, minute), now, confirm)
		}, time.Minute},
		"longer, and then renewed, as a late reply says": {func(s *lease.State) {
			s.Reply(s.Begin(now, hour), now, confirm)
			s.Reply(s.Begin(now, minute), now, lease.Outcome{Ours: true, Late: true})
		}, time.Hour},
		"longer, perhaps, and then renewed": {func(s *lease.State) {
			s.Reply(s.Begin(now, hour), now, unknown)
			s.Reply(s.Begin(now, minute), now, confirm)
		}, time.Hour},
		"longer and renewed at once": {func(s *lease.State) {
			longer := s.Begin(now, hour)
			s.Reply(s.Begin(now, minute), now, confirm)
			s.Reply(longer, now, refused)
		}, time.Hour},
		"shortened, as a late reply says": {func(s *lease.State) {
			s.Reply(renew(s, now, short), now, lease.Outcome{Ours: true, Late: true})
		}, time.Minute},
	} {
		t.Run(name, func(t *testing.T) {
			s := granted(t, false)
			c.happens(s)
			require.Equal(t, c.longest, s.Longest())
		})
	}
}

// What the next owner asks for counts from the next renewal on.
func TestState_Adopt(t *testing.T) {
	s := granted(t, false)
	require.False(t, s.SetTerms(lease.NewTerm(time.Minute), false, 0, now))
	require.True(t, s.SetTerms(minute, true, 0, now))
	due, _ := s.Due(false)
	require.Equal(t, now.Add(certain(time.Minute)-40*time.Second), due)

	for _, renewed := range []bool{false, true} { // what is to be asked is asked, whoever has it
		s = granted(t, false)
		require.True(t, s.Verify(now))
		require.True(t, s.SetTerms(lease.NewTerm(time.Hour), renewed, 0, now))
		due, _ = s.Due(false)
		require.Equal(t, now, due)
	}

	s = &lease.State{Term: lease.NewTerm(clock.Longest)}
	require.True(t, s.Grant(now, now))
	require.True(t, s.SetTerms(lease.NewTerm(clock.Longest), true, 0, now))
	due, _ = s.Due(false)
	require.InDelta(t, float64(clock.Longest/3), float64(due), float64(clock.Longest/50), "it does not overflow")
}

// Renewals go up to the bound and no further. After the last one there are no more, not even for the little that is left.
func TestState_Bound(t *testing.T) {
	for _, most := range []time.Duration{2 * time.Second, 2500 * time.Millisecond, time.Minute, 61 * time.Second, 1e12 + 1} {
		for _, chosen := range []*lease.Term{nil, lease.NewTerm(3 * time.Second), minute, lease.NewTerm(time.Hour)} {
			term := lease.NewTerm(min(time.Minute, most))
			s := &lease.State{Term: term, Renewed: true}
			require.True(t, s.Grant(now, now))
			s.Bound(now.Add(most))
			if chosen != nil {
				r := renew(s, now, chosen)
				r.Chosen = r.Term == chosen
				require.LessOrEqual(t, r.Term.Length, most)
				require.Equal(t, lease.Extended, s.Reply(r, now, confirm))
			}
			shortest := term.Length
			if chosen != nil {
				shortest = min(shortest, chosen.Length)
			}
			end, at, sent := now.Add(most-lease.Margin(shortest)), now, 0
			for ; s.Fresh(at); at, _ = s.Due(true) {
				if s.Tick(at, false) == lease.Renew {
					r := s.Begin(at, s.Term)
					require.LessOrEqual(t, at.Add(r.Term.Length), now.Add(most))
					require.Equal(t, lease.Extended, s.Reply(r, at, confirm))
					sent++
				}
				require.LessOrEqual(t, s.Left(at), at.Until(end))
				if at.Add(s.Term.Length) >= now.Add(most) {
					require.Zero(t, s.RenewalLease(at), "no renewal is to set that")
				}
			}
			require.InDelta(t, float64(now.Until(end)), float64(now.Until(at)), float64(time.Millisecond))
			require.LessOrEqual(t, sent, int(3*most/shortest)+1, "at most %v", most)
			require.Zero(t, s.RenewalLease(at))
		}
	}
}

// A renewal of the former owner, answered or refused, does not make the lease valid beyond the bound of the next owner. The bound
// of the former owner no longer counts.
func TestBound_OfTheNextOwner(t *testing.T) {
	for name, o := range map[string]lease.Outcome{"answered": confirm, "refused": refused, "unknown": unknown, "few": few} {
		t.Run(name, func(t *testing.T) {
			s := granted(t, true)
			r := s.Begin(now, minute)
			bound := now.Add(10 * time.Second)
			require.True(t, s.SetTerms(lease.NewTerm(10*time.Second), true, bound, now))
			s.Reply(r, now, o)
			require.LessOrEqual(t, s.Left(now), certain(10*time.Second))
			require.Equal(t, time.Minute, s.Longest(), "which is to be shortened")

			require.True(t, s.SetTerms(lease.NewTerm(10*time.Second), true, 0, now), "with terms that are the same else")
			due, _ := s.Due(false)
			require.LessOrEqual(t, now.Until(due), 4*time.Second)
			r = s.Begin(now, minute)
			require.Equal(t, minute, r.Term)
			s.Reply(r, now, confirm)
			require.Greater(t, s.Left(now), 9*time.Second)
		})
	}
}

func TestState_Keep(t *testing.T) {
	s := granted(t, false)
	require.True(t, s.SetRenewed(now))
	require.False(t, s.SetRenewed(now), "it is renewed")
	require.Equal(t, lease.Renew, s.Tick(now, false))
}

// A deserted lease is not renewed, but looked at again: another owner may still join.
func TestTick_Deserted(t *testing.T) {
	s := granted(t, true)
	require.Equal(t, lease.Nothing, s.Tick(now.Add(20*time.Second), true))
	due, _ := s.Due(false)
	require.Equal(t, now.Add(40*time.Second), due)
}

// A hold goes to another owner of its process while at least half of its lease is left, and for a limited time.
func TestState_MayPass(t *testing.T) {
	long := granted(t, false)
	middle := now.Add(certain(time.Minute) - time.Minute/2)
	short := &lease.State{Term: minute}
	require.True(t, short.GrantShort(now, now, time.Second, 0))
	shortMiddle := now.Add(certain(time.Second) - time.Second/2)
	gone := granted(t, false)
	require.True(t, gone.Lose(fault.Forced))
	for name, c := range map[string]struct {
		s        *lease.State
		at       clock.Instant
		had      time.Duration
		may, due bool
	}{
		"half is left":                  {long, middle, 0, true, false},
		"less is left":                  {long, middle + 1, 0, false, true},
		"half of the short one is left": {short, shortMiddle, 0, true, false},
		"less of the short one is left": {short, shortMiddle + 1, 0, false, true},
		"just before the limit":         {long, now, time.Second - 1, true, false},
		"at the limit":                  {long, now, time.Second, true, true},
		"it is lost":                    {gone, now, 0, false, false},
	} {
		may, due := c.s.MayHandOff(c.at, c.had, time.Second)
		require.Equal(t, c.may, may, name)
		require.Equal(t, c.due, due, name)
	}
}

// Outlasts reports a hold that is held for long, as long as it is valid.
func TestState_Outlasts(t *testing.T) {
	s := granted(t, true)
	require.False(t, s.Outlasts(now, 2*time.Minute-1, 2))
	require.True(t, s.Outlasts(now, 2*time.Minute, 2))
	require.False(t, s.Outlasts(now.Add(certain(time.Minute)), 2*time.Minute, 2), "its time is over")
}

// When the server may no longer be the master, it is asked whether it has the key, and asked again until it answers.
func TestState_Verified(t *testing.T) {
	for name, c := range map[string]struct {
		outcome lease.Outcome
		refused bool
		verdict lease.Verdict
		again   bool
	}{
		"it has it":        {confirm, false, lease.Extended, false},
		"it has not":       {lease.Outcome{}, false, lease.NotOurs, false},
		"no answer":        {unknown, false, lease.Failed, true},
		"a late answer":    {lease.Outcome{Ours: true, Late: true}, false, lease.Failed, true},
		"it may not be so": {refused, true, lease.Extended, false},
	} {
		t.Run(name, func(t *testing.T) {
			s := granted(t, false)
			require.True(t, s.Verify(now))
			require.Equal(t, lease.Verify, s.Tick(now, false))
			require.Equal(t, c.verdict, s.Verified(now, c.outcome, c.refused))
			due, looks := s.Due(false)
			if c.verdict == lease.NotOurs {
				return
			}
			require.Equal(t, c.again, looks)
			if c.again {
				require.Less(t, now.Until(due), time.Second)
			}
		})
	}
}

// A renewal that only the owner sends, and that is not sent again, makes no pause longer.
func TestVerified_AfterRenewalsOfTheOwner(t *testing.T) {
	s := granted(t, false)
	for range 8 {
		require.Equal(t, lease.Failed, s.Reply(renew(s, now, minute), now, refused))
	}
	require.True(t, s.Verify(now))
	require.Equal(t, lease.Verify, s.Tick(now, false))
	require.Equal(t, lease.Failed, s.Verified(now, unknown, false))
	due, looks := s.Due(false)
	require.True(t, looks)
	require.LessOrEqual(t, now.Until(due), clock.Backoff(1, time.Minute)*2)
}

// Whatever is sent, and whenever the server executes it, if ever: the lease is over before the key's lease is.
func TestState_WhatIsBelievedIsOverFirst(t *testing.T) {
	for seed := range uint64(3000) {
		random := rand.New(rand.NewPCG(seed, 7))
		upTo := func(d time.Duration) time.Duration { return time.Duration(random.Int64N(int64(d))) }
		type command struct {
			renewal  lease.Renewal
			executed bool
			answered bool
		}
		var flying []*command
		at := now
		s := &lease.State{Term: minute, Renewed: seed%2 == 0}
		expires := at.Add(minute.Length)
		require.True(t, s.Grant(at, at))
		bound := clock.Never
		bounded := func() (b clock.Instant) {
			if bound = clock.Never; random.IntN(2) == 0 {
				b = at.Add(time.Minute + upTo(time.Minute))
				bound = b
			}
			return b
		}
		s.Bound(bounded())
		for range 60 {
			at = at.Add(upTo(5 * time.Second))
			if at >= expires || !s.Fresh(at) {
				break
			}
			switch random.IntN(6) {
			case 0:
				term := s.Term
				if random.IntN(3) > 0 {
					term = lease.NewTerm(time.Second + upTo(time.Minute))
				}
				c := &command{renewal: s.Begin(at, term)}
				require.LessOrEqual(t, at.Add(c.renewal.Term.Length), bound, "seed %d", seed)
				c.renewal.Chosen, c.renewal.Scheduled = random.IntN(2) == 0, random.IntN(2) == 0
				flying = append(flying, c)
			case 1: // the server executes one of those that it has not executed
				for _, i := range random.Perm(len(flying)) {
					if c := flying[i]; !c.executed {
						c.executed, expires = true, at.Add(c.renewal.Term.Length)
						break
					}
				}
			case 2: // one is answered, lost, or refused
				for _, i := range random.Perm(len(flying)) {
					c := flying[i]
					if c.answered {
						continue
					}
					c.answered = true
					switch o := unknown; {
					case c.executed && random.IntN(3) > 0:
						s.Reply(c.renewal, at, lease.Outcome{Ours: true, Late: random.IntN(4) == 0, Failed: random.IntN(4) == 0})
					case !c.executed && random.IntN(3) == 0:
						c.executed = true // it never will be
						s.Reply(c.renewal, at, refused)
					default:
						s.Reply(c.renewal, at, o)
					}
					break
				}
			case 3:
				if asks := lease.NewTerm(time.Second + upTo(2*time.Minute)); s.Nests(asks) {
					s.Nest(asks, []lease.Caller{anna, bert, carl}[random.IntN(3)])
					require.GreaterOrEqual(t, s.Term.Length, asks.Length, "seed %d", seed)
				}
			case 4:
				s.Unnest([]lease.Caller{anna, bert, carl}[random.IntN(3)], at)
			default:
				s.SetTerms(lease.NewTerm(time.Second+upTo(time.Minute)), random.IntN(2) == 0, bounded(), at)
			}
			require.LessOrEqual(t, s.Left(at), at.Until(min(expires, bound)), "seed %d", seed)
			require.LessOrEqual(t, expires, at.Add(s.Longest()), "seed %d", seed)
		}
	}
}

// first is the first of two answers.
func first(a, _ bool) bool { return a }
