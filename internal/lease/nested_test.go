package lease_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry/internal/lease"
)

var (
	anna = lease.Caller{Owner: 1, Goroutine: 1}
	bert = lease.Caller{Owner: 1, Goroutine: 2} // of the same owner
	carl = lease.Caller{Owner: 3, Goroutine: 3} // another owner, which shares the lease
)

// step is what a caller does to a lease whose outermost call has asked for a minute, and the term after that.
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
			{"nest", anna, hour, hour}, {"adopt", carl, minute, minute}, {"unnest", anna, nil, minute},
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := granted(t, false)
			for i, step := range steps {
				before := s.Term
				sooner := take(s, step, day)
				require.Same(t, step.want, s.Term, "step %d", i)
				if step.what != "choose" { // else the key is known to have that
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
		s.Join(what.t)
	case "adopt":
		s.Adopt(what.t, false, 0, now)
	case "choose":
		s.Choose()
		s.Reply(renew(s, now, what.t), now, confirm)
	case "choose in vain":
		s.Choose()
		s.Reply(renew(s, now, what.t), now, refused)
	case "choose, and nest":
		s.Choose()
		r := renew(s, now, what.t)
		s.Nest(day, what.by)
		s.Reply(r, now, confirm)
	}
	return false
}

// After a nested call with a longer lease the key gets the one before at once, by one renewal, even if the hold is not renewed.
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

// What is over is not shortened.
func TestUnnest_AfterTheEnd(t *testing.T) {
	s := granted(t, false)
	s.Nest(hour, anna)
	s.End(now)
	require.False(t, s.Unnest(anna, now))
	require.False(t, s.Unnest(anna, now))
	require.False(t, s.Leave(anna.Owner, now))
}
