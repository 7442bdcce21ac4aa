package lease

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry/internal/clock"
)

// Between two renewals a lease takes no memory for them, unless something about them may still matter.
func TestState_SettledAfterARenewal(t *testing.T) {
	const sent clock.Instant = 1
	minute, longer := NewTerm(time.Minute), NewTerm(time.Hour)
	done, unknown := Outcome{Ours: true}, Outcome{Failed: true, Unknown: true}
	renew := func(s *State, outcomes ...Outcome) {
		all := make([]Renewal, len(outcomes))
		for i := range outcomes {
			all[i] = s.Begin(sent, minute)
			require.NotNil(t, s.pending)
		}
		for i, o := range outcomes {
			s.Reply(all[i], sent, o)
		}
	}
	for name, c := range map[string]struct {
		do   func(s *State)
		kept bool
	}{
		"none":                         {func(*State) {}, false},
		"one":                          {func(s *State) { renew(s, done) }, false},
		"two at once":                  {func(s *State) { renew(s, done, done) }, false},
		"one is under way":             {func(s *State) { s.Begin(sent, minute); renew(s, done) }, true},
		"it may be executed yet":       {func(s *State) { renew(s, unknown) }, true},
		"it has a bound":               {func(s *State) { s.Bound(sent.Add(time.Hour)); renew(s, done) }, true},
		"a nested call asks for more":  {func(s *State) { s.Nest(longer, Caller{1, 1}); renew(s, done) }, true},
		"the key may live for longer":  {func(s *State) { s.become(longer); s.become(minute); renew(s, unknown) }, true},
		"its generation was asked for": {func(s *State) { s.Generation(); renew(s, done) }, true},
		"a sharer is owed one": {func(s *State) {
			r := s.Begin(sent, minute)
			s.Rely(longer)
			s.Reply(r, sent, Outcome{Failed: true})
		}, true},
	} {
		s := &State{Term: minute, Renewed: true}
		require.True(t, s.Grant(sent, sent), name)
		c.do(s)
		require.Equal(t, c.kept, s.pending != nil, name)
	}
}

// The generation stays the same while the owners do, however often the lease is renewed.
func TestState_GenerationOutlivesRenewals(t *testing.T) {
	const sent clock.Instant = 1
	minute := NewTerm(time.Minute)
	s := &State{Term: minute, Renewed: true}
	require.True(t, s.Grant(sent, sent))
	before := s.Generation()
	s.Handoff()
	s.Reply(s.Begin(sent, minute), sent, Outcome{Ours: true})
	require.NotEqual(t, before, s.Generation())
}
