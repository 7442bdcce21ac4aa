package lease_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry/internal/clock"
	"github.com/lockregistry/lockregistry/internal/lease"
)

var (
	anna = lease.Caller{Owner: 1, Goroutine: 1}
	bert = lease.Caller{Owner: 1, Goroutine: 2} // of the same owner
	carl = lease.Caller{Owner: 3, Goroutine: 3} // another owner, which shares the lease

	nobody lease.Caller
)

// step is an action of a caller on a lease whose outermost call has asked for a minute, and the term that the lease then has.
type step struct {
	what string
	by   lease.Caller
	t    *lease.Term
	want *lease.Term
}

func TestState_Nest(t *testing.T) {
	day := lease.NewTerm(24 * time.Hour)
	for name, steps := range map[string][]step{
		"a shorter one": {{"nest", anna, second, minute}, {"unnest", anna, nil, minute}},
		"none":          {{"nest", anna, nil, minute}, {"unnest", anna, nil, minute}},
		"a longer one":  {{"nest", anna, hour, hour}, {"unnest", anna, nil, minute}},
		"a shorter one within": {
			{"nest", anna, hour, hour}, {"nest", anna, second, hour}, {"unnest", anna, nil, hour}, {"unnest", anna, nil, minute},
		},
		"none within": {
			{"nest", anna, hour, hour}, {"nest", anna, nil, hour}, {"unnest", anna, nil, hour}, {"unnest", anna, nil, minute},
		},
		"a longer one within": {
			{"nest", anna, hour, hour}, {"nest", anna, day, day}, {"unnest", anna, nil, hour}, {"unnest", anna, nil, minute},
		},
		"after a shorter one": {
			{"nest", anna, second, minute}, {"nest", anna, hour, hour}, {"unnest", anna, nil, minute}, {"unnest", anna, nil, minute},
		},
		"two, the longer first": {
			{"nest", anna, day, day}, {"nest", bert, hour, day}, {"unnest", anna, nil, hour}, {"unnest", bert, nil, minute},
		},
		"two, the longer last": {
			{"nest", anna, hour, hour}, {"nest", bert, day, day}, {"unnest", anna, nil, day}, {"unnest", bert, nil, minute},
		},
		"undone by another": {
			{"nest", anna, hour, hour}, {"unnest", bert, nil, hour}, {"leave", anna, nil, minute},
		},
		"of two owners": {
			{"nest", anna, hour, hour}, {"nest", carl, day, day}, {"leave", carl, nil, hour}, {"unnest", anna, nil, minute},
		},
		"one that joins": {
			{"nest", anna, day, day}, {"join", carl, hour, day}, {"unnest", anna, nil, hour}, {"leave", carl, nil, hour},
		},
		"one that joins longer": {
			{"nest", anna, hour, hour}, {"join", carl, day, day}, {"unnest", anna, nil, day}, {"leave", carl, nil, day},
		},
		"one that joins longer, without levels": {
			{"join", carl, hour, hour}, {"nest", anna, day, day}, {"unnest", anna, nil, hour},
		},
		"one that joins shorter": {
			{"nest", anna, day, day}, {"join", carl, second, day}, {"unnest", anna, nil, minute},
		},
		"Renew, shorter": {
			{"nest", anna, hour, hour}, {"choose", anna, second, second}, {"unnest", anna, nil, second},
		},
		"Renew, longer": {
			{"choose", anna, hour, hour}, {"nest", anna, minute, hour}, {"unnest", anna, nil, hour},
		},
		"one that comes meanwhile": {
			{"choose, and nest", anna, second, day}, {"unnest", anna, nil, second},
		},
		"Renew that fails": {
			{"nest", anna, hour, hour}, {"choose in vain", anna, second, hour}, {"unnest", anna, nil, hour},
		},
		"another owner": {
			{"nest", anna, hour, hour}, {"hand over", nobody, nil, hour}, {"terms", carl, minute, minute}, {"unnest", anna, nil, minute},
		},
		"another owner, which nests before": {
			{"hand over", nobody, nil, minute}, {"nest", bert, minute, minute}, {"nest", bert, nil, minute},
			{"terms", anna, second, minute}, {"unnest", bert, nil, minute}, {"unnest", bert, nil, second},
		},
		"another owner, which nests longer before": {
			{"hand over", nobody, nil, minute}, {"nest", bert, hour, hour}, {"terms", anna, minute, hour}, {"unnest", bert, nil, minute},
		},
		"another owner, which renews before": {
			{"hand over", nobody, nil, minute}, {"choose", bert, hour, hour}, {"terms", anna, minute, hour},
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := granted(t, false)
			for i, step := range steps {
				before := s.Term
				sooner := take(s, step, day)
				require.Same(t, step.want, s.Term, "step %d", i)
				if step.what != "choose" { // otherwise the key is known to have that
					require.GreaterOrEqual(t, s.Longest(), before.Length)
				}
				if step.what == "unnest" || step.what == "leave" {
					require.Equal(t, s.Term.Length < before.Length, sooner)
				}
			}
		})
	}
}

// take does a step.
func take(s *lease.State, what step, day *lease.Term) (sooner bool) {
	switch what.what {
	case "nest":
		if s.Nests(what.t) {
			s.Nest(what.t, what.by)
		}
	case "unnest":
		return s.Unnest(what.by, now)
	case "leave":
		return s.Leave(what.by.Owner, now)
	case "join":
		_, _ = s.Join(what.t, false, now)
	case "hand over":
		s.Handoff()
	case "terms":
		s.SetTerms(what.t, false, 0, now)
	case "choose":
		s.Choose(now)
		s.Reply(renew(s, now, what.t), now, confirm)
	case "choose in vain":
		s.Choose(now)
		s.Reply(renew(s, now, what.t), now, refused)
	case "choose, and nest":
		s.Choose(now)
		r := renew(s, now, what.t)
		s.Nest(day, what.by)
		s.Reply(r, now, confirm)
	}
	return false
}

// After a nested call with a longer lease the key gets its former lease at once, by one renewal, even if the hold is not renewed.
func TestUnnest_ShortensTheKey(t *testing.T) {
	for _, renewed := range []bool{false, true} {
		s := granted(t, renewed)
		s.Nest(hour, anna)
		require.Equal(t, lease.Extended, s.Reply(s.Begin(now, s.Term), now, confirm))
		require.Equal(t, certain(time.Hour), s.Left(now))
		later := now.Add(30 * time.Minute)
		require.True(t, s.Unnest(anna, later))
		due, looks := s.Due(false)
		require.True(t, looks)
		require.LessOrEqual(t, due, later)
		require.Equal(t, lease.Renew, s.Tick(later, false))
		r := s.Begin(later, s.Term)
		require.Same(t, minute, r.Term)
		require.Equal(t, certain(time.Minute), s.Left(later), "the server may have executed it")
		require.Equal(t, lease.Extended, s.Reply(r, later, confirm))
		require.Equal(t, time.Minute, s.Longest())
		due, looks = s.Due(false)
		require.Equal(t, renewed, looks)
		if renewed {
			require.Equal(t, later.Add(20*time.Second), due)
		}
	}
}

// A lease that is over is not shortened.
func TestUnnest_AfterTheEnd(t *testing.T) {
	s := granted(t, false)
	s.Nest(hour, anna)
	s.End(now)
	require.False(t, s.Unnest(anna, now))
	require.False(t, s.Unnest(anna, now))
	require.False(t, s.Leave(anna.Owner, now))
}

// An owner that shares a lease has at least nine tenths of what it asks for, half if the lease is renewed.
func TestState_Join(t *testing.T) {
	for name, c := range map[string]struct {
		asks   *lease.Term
		keeps  bool
		part   time.Duration // what must be left
		renews bool          // whatever is left
	}{
		"as long":                {minute, false, 54 * time.Second, false},
		"shorter":                {short, false, 1800 * time.Millisecond, false},
		"longer":                 {hour, false, 0, true},
		"as long, to be renewed": {minute, true, 30 * time.Second, false},
		"longer, to be renewed":  {hour, true, 0, true},
	} {
		t.Run(name, func(t *testing.T) {
			enough := now.Add(certain(time.Minute) - c.part)
			for at, want := range map[clock.Instant]bool{enough: c.renews, enough + 1: true} {
				s := granted(t, c.keeps)
				renew, sooner := s.Join(c.asks, c.keeps, at)
				require.Equal(t, want, renew)
				require.False(t, sooner)
				require.GreaterOrEqual(t, s.Term.Length, c.asks.Length)
			}
		})
	}
	s := granted(t, false)
	renew, sooner := s.Join(minute, true, now)
	require.True(t, renew, "it was not renewed so far")
	require.True(t, sooner)
	require.True(t, s.Renewed)

	for _, keeps := range []bool{false, true} { // half of a short one that is lengthened soon
		middle := now.Add(certain(time.Second) - time.Second/2)
		for at, want := range map[clock.Instant]bool{middle: false, middle + 1: true} {
			s := &lease.State{Term: minute, Renewed: keeps}
			require.True(t, s.GrantShort(now, now, time.Second, 0))
			renew, _ := s.Join(minute, keeps, at)
			require.Equal(t, want, renew)
		}
	}
}

// An owner alone chooses a shorter lease, and another owner joins before the reply. The second owner does not get less than it
// asks for, in whatever order the server executes the two renewals, and in whatever order the replies come.
func TestState_JoinDuringARenewal(t *testing.T) {
	for _, joins := range []*lease.Term{lease.NewTerm(10 * time.Second), minute, hour} {
		for _, shortFirst := range []bool{false, true} {
			for name, outcome := range map[string]lease.Outcome{"renewed": confirm, "refused": refused} {
				t.Run(joins.MS+" "+name, func(t *testing.T) {
					s := granted(t, false)
					s.Choose(now)
					chosen, at := renew(s, now, short), now.Add(time.Millisecond)
					must, _ := s.Join(joins, false, at)
					require.True(t, must)
					mine := s.Begin(at, s.Term)
					if shortFirst {
						s.Reply(chosen, at, outcome)
					}
					require.Equal(t, lease.Extended, s.Reply(mine, at, confirm))
					require.GreaterOrEqual(t, s.Left(at), certain(2*time.Second)-time.Millisecond)
					if !shortFirst {
						s.Reply(chosen, at, outcome)
					}
					require.GreaterOrEqual(t, s.Term.Length, joins.Length)

					due, looks := s.Due(false)
					require.True(t, looks)
					require.LessOrEqual(t, due, at.Add(time.Second))
					require.Equal(t, lease.Renew, s.Tick(due, false))
					last := s.Begin(due, s.Term)
					require.Equal(t, lease.Extended, s.Reply(last, due, confirm))
					require.Equal(t, certain(s.Term.Length), s.Left(due))
					_, looks = s.Due(false)
					require.False(t, looks, "nothing is owed")
				})
			}
		}
	}
}

// The lease that the former owner has chosen does not count for the next owner, even if the reply comes only then.
func TestState_ChosenBeforeHandoff(t *testing.T) {
	for _, adopted := range []bool{false, true} {
		s := granted(t, false)
		s.Choose(now)
		chosen := renew(s, now, hour)
		s.Handoff()
		if adopted {
			s.SetTerms(minute, false, 0, now+1)
		}
		require.Equal(t, lease.Extended, s.Reply(chosen, now+1, confirm))
		require.Equal(t, minute.Length, s.Term.Length)
		require.Equal(t, hour.Length, s.Longest())
		if !adopted {
			s.SetTerms(short, false, 0, now+1)
			require.Same(t, short, s.Term)
		}
	}
}

// The generation changes when owners change, and at no other time.
func TestState_Generation(t *testing.T) {
	for name, c := range map[string]struct {
		change func(s *lease.State)
		owners bool
	}{
		"handed over":     {func(s *lease.State) { s.Handoff() }, true},
		"another joins":   {func(s *lease.State) { s.Join(minute, false, now) }, true},
		"another leaves":  {func(s *lease.State) { s.Leave(carl.Owner, now) }, true},
		"its terms":       {func(s *lease.State) { s.SetTerms(hour, true, 0, now) }, false},
		"a nested call":   {func(s *lease.State) { s.Nest(hour, anna); s.Unnest(anna, now) }, false},
		"a chosen lease":  {func(s *lease.State) { s.Choose(now); renew(s, now, short) }, false},
		"renewal, anyway": {func(s *lease.State) { s.SetRenewed(now); s.RenewAnyway(true) }, false},
	} {
		t.Run(name, func(t *testing.T) {
			s := granted(t, false)
			before := s.Generation()
			c.change(s)
			require.Equal(t, c.owners, s.Generation() != before)
		})
	}
}
