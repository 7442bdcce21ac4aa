package belief

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry/internal/clock"
)

// near is a server that is a millisecond away, all of whose connections have been made.
func near() *State {
	s := &State{}
	s.WarmedUp()
	for i := range 3 {
		at := milliseconds(100 * (i + 1))
		s.Sample(at, at.Add(time.Millisecond))
	}
	return s
}

// How far a reply is believed depends on how long it took, and what it is about.
func TestState_Judge(t *testing.T) {
	const ms, sent = time.Millisecond, clock.Instant(time.Minute)
	for name, c := range map[string]struct {
		took      time.Duration
		exchange  Exchange
		uncertain bool // of the round trip
		cold      bool // connections may have to be made
		answer    Answer
		suspect   bool
	}{
		"in time":                      {took: 501 * ms},
		"late":                         {took: 502 * ms, answer: Doubtful, suspect: true},
		"late, and it stood still":     {took: 502 * ms, exchange: Exchange{Excused: true}, answer: Late},
		"late, connections to make":    {took: 502 * ms, cold: true, answer: Late},
		"silent, connections to make":  {took: 506 * ms, cold: true, answer: Doubtful, suspect: true},
		"late for a lease":             {took: 300 * ms, exchange: Exchange{Lease: 900 * ms}, answer: Late},
		"in time for a lease":          {took: 299 * ms, exchange: Exchange{Lease: 900 * ms}},
		"it may block for so long":     {took: 601 * ms, exchange: Exchange{Holds: 100 * ms}},
		"and no longer":                {took: 602 * ms, exchange: Exchange{Holds: 100 * ms}, answer: Doubtful, suspect: true},
		"a way that is not known":      {took: 2499 * ms, uncertain: true},
		"of which too much is hoped":   {took: Pause, uncertain: true, answer: Doubtful, suspect: true},
		"a lock, on an unknown way":    {took: Silence, exchange: Exchange{Obtains: true}, uncertain: true, answer: Late},
		"left":                         {took: ms, exchange: Exchange{Left: true}, answer: Late},
		"left, and broken":             {took: ms, exchange: Exchange{Left: true, Outcome: Broken}},
		"broken late":                  {took: time.Second, exchange: Exchange{Outcome: Broken}, answer: Doubtful, suspect: true},
		"not sent":                     {took: time.Minute, exchange: Exchange{Outcome: Unsent}},
		"no answer":                    {took: time.Minute, exchange: Exchange{Outcome: Unanswered}},
		"no answer to a probe":         {took: time.Minute, exchange: Exchange{Outcome: Unanswered, Probes: true}},
		"a trusted way, and late":      {took: time.Second, exchange: Exchange{Trusted: true}, answer: Doubtful, suspect: true},
		"the longest lease is silence": {took: 501 * ms, exchange: Exchange{Lease: time.Hour}},
	} {
		t.Run(name, func(t *testing.T) {
			s := near()
			if c.uncertain {
				s = &State{}
				s.WarmedUp()
			}
			if c.cold {
				s.Broke(sent - 1)
			}
			x := c.exchange
			x.Sent, x.Came, x.Trip = sent, sent.Add(c.took), s.RoundTrip()
			answer, do := s.Judge(x)
			require.Equal(t, c.answer, answer)
			require.Equal(t, c.suspect, s.IsSuspect(x.Came))
			require.Equal(t, x.Outcome == Unanswered && !x.Probes, do.Has(Probe))
			require.Equal(t, c.suspect, do.Has(Undedicate|Reroute|Redial|Measure))
		})
	}
}

// If the Sentinels vouch for the server, that ends a doubt that is older than the question. If they do not answer, that raises
// a doubt, unless their first word is not due yet.
func TestState_Told(t *testing.T) {
	const began, asked, now = 1000, 2000, 2100
	for name, c := range map[string]struct {
		word     Word
		doubted  int // when a doubt was raised; 0: none was
		spoke    int // when they said their first word; 0: not yet
		doubt    bool
		passes   bool // they are suspect for a time
		believed bool
		silent   bool // replies to what was sent before are late
	}{
		"they vouch":                           {word: Vouching, spoke: 1500, believed: true},
		"they vouch, for the second time":      {word: Vouching, spoke: 1500, doubted: 1900, passes: true, believed: true},
		"they vouched before the doubt":        {word: Vouching, spoke: 1500, doubted: 2050, doubt: true, believed: true},
		"they do not":                          {word: Against, spoke: 1500, doubt: true, silent: true},
		"they do not, and it was suspect":      {word: Against, spoke: 1500, doubted: 1900, doubt: true},
		"nobody answers":                       {word: Unheard, spoke: 1500, doubt: true, silent: true},
		"nobody answers before the first word": {word: Unheard, spoke: 2050},
		"nobody has answered yet":              {word: Unheard, doubt: true},
	} {
		t.Run(name, func(t *testing.T) {
			s := near()
			s.Watched(milliseconds(began))
			if c.spoke > 0 {
				s.FirstWord(Vouching, "here", true, false, milliseconds(began), milliseconds(c.spoke))
				require.False(t, s.IsSuspect(milliseconds(c.spoke)))
			}
			if c.doubted > 0 {
				s.Doubt(milliseconds(c.doubted))
			}
			do := s.Told(c.word, "there", milliseconds(asked), milliseconds(now))
			require.Equal(t, c.doubt, s.InDoubt())
			require.Equal(t, c.doubt || c.passes, s.IsSuspect(milliseconds(now)))
			require.Equal(t, c.doubt, s.IsSuspect(milliseconds(now).Add(Old)), "time does not end a doubt")
			require.Equal(t, c.silent, s.SilentAt() == milliseconds(now))
			require.Equal(t, c.silent, do != 0)
			if c.believed {
				require.Equal(t, "there", *s.Believed())
			}
		})
	}
}

// The Sentinels' first word ends the doubt with which the watch begins.
func TestState_FirstWord(t *testing.T) {
	for name, c := range map[string]struct {
		word                  Word
		used, young, believed bool
	}{
		"they vouch":                            {Vouching, true, false, true},
		"they vouch for one that was left":      {Vouching, false, false, false},
		"they do not":                           {Against, true, true, false},
		"nobody answers":                        {Unheard, true, false, false},
		"nobody answers, new connections":       {Unheard, true, true, true},
		"nobody answers, of one that was left":  {Unheard, false, true, false},
		"they vouch, and connections are young": {Vouching, true, true, true},
	} {
		s := near()
		s.Watched(milliseconds(1000))
		require.True(t, s.InDoubt())
		s.FirstWord(c.word, "here", c.used, c.young, milliseconds(1000), milliseconds(1100))
		require.Equal(t, c.believed, !s.InDoubt(), name)
		require.Equal(t, c.believed, s.Believed() != nil, name)
	}
}

// A way is used once the Sentinels vouch for the server to which it leads, until they doubt the server.
func TestWay(t *testing.T) {
	s, w := near(), Way{Address: "here", Greeted: milliseconds(1000)}
	s.Watched(milliseconds(900))
	require.False(t, w.Trusted)
	require.LessOrEqual(t, w.Again, milliseconds(1000))
	w.Told(Against, milliseconds(1000), milliseconds(1001))
	require.False(t, w.Trusted)
	require.Equal(t, milliseconds(1001).Add(askAgain), w.Again)
	w.Told(Vouching, milliseconds(1100), milliseconds(1101))
	require.True(t, w.Trusted)
	require.Equal(t, 100*time.Millisecond, w.Waited(milliseconds(1100)))
	require.False(t, s.Doubts(&w))
	s.Doubt(w.Asked)
	require.False(t, s.Doubts(&w), "they have vouched since")
	s.Doubt(w.Asked + 1)
	require.True(t, s.Doubts(&w))

	before := Way{Trusted: true}
	require.True(t, s.Doubts(&before), "nobody was asked")
}

// A node that takes over slots of one that is suspect is suspect for as long.
func TestState_Succeeds(t *testing.T) {
	former, s := near(), near()
	s.Succeeds(former)
	require.False(t, s.IsSuspect(1))
	former.FoundSilent(milliseconds(1000), milliseconds(2000))
	s.Succeeds(former)
	until := former.view().suspectUntil
	require.True(t, s.IsSuspect(until-1))
	require.False(t, s.IsSuspect(until))
	require.Zero(t, s.SilentAt(), "nothing was late there")
}

func TestState_IsSilent(t *testing.T) {
	s := near()
	now := milliseconds(5000)
	require.False(t, s.IsSilent(0, now))
	s.FoundSilent(milliseconds(4000), now)
	require.True(t, s.IsSilent(milliseconds(4898), now))
	require.False(t, s.IsSilent(milliseconds(4899), now), "it was just asked")
	require.True(t, s.SilentSince(milliseconds(4000), now))
	require.False(t, s.SilentSince(now, now), "that was before")
	now = now.Add(time.Millisecond)
	s.Judge(Exchange{Sent: now - 1, Came: now, Trip: s.RoundTrip(), Trusted: true})
	require.False(t, s.IsSilent(milliseconds(4000), now))
	require.False(t, s.SilentSince(milliseconds(4000), now))
	s.Broke(now)
	require.Equal(t, now, s.LastBreak())
}

// Until all connections have surely been made, a command may have to wait for one.
func TestState_Warm(t *testing.T) {
	s := near()
	require.Equal(t, int32(3), s.Lessons())
	require.Equal(t, Silence+2*time.Millisecond, s.Patience())
	require.Equal(t, Tick+2*time.Millisecond, s.Plus(Tick))
	s.Broke(1)
	require.Equal(t, Silence+6*time.Millisecond, s.Patience())
	require.Equal(t, Tick+6*time.Millisecond, s.Plus(Tick))
	for n := range int32(manyReplies) {
		require.Equal(t, max(3, manyReplies-n), s.Lessons())
		require.False(t, s.Warm())
		now := milliseconds(2000)
		s.Judge(Exchange{Sent: now, Came: now, Trip: s.RoundTrip(), Trusted: true}) // says nothing about the others
		s.Judge(Exchange{Sent: now, Came: now, Trip: s.RoundTrip()})
	}
	require.True(t, s.Warm())
}

// A command may be under way when the last registry is closed. A master that was deposed meanwhile may answer it.
func TestState_CloseForgetsNoDoubt(t *testing.T) {
	s := near()
	s.Watched(1)
	s.Doubted(milliseconds(2000))
	require.False(t, s.Barred())
	s.Close(milliseconds(2000))
	require.True(t, s.Barred())
	require.False(t, s.IsSuspect(milliseconds(2000)))
	require.True(t, s.DoubtedSince(milliseconds(1999)), "the way by which the reply comes was chosen before")
	answer, _ := s.Judge(Exchange{Sent: milliseconds(1999), Came: milliseconds(2001), Trip: s.RoundTrip(), Obtains: true})
	require.Equal(t, Doubtful, answer, "its own connections prove nothing")
}

// A server that is healthy when it is closed is not barred, whatever comes later.
func TestState_ClosedWhileHealthy(t *testing.T) {
	s := near()
	s.Close(milliseconds(2000))
	s.FoundSilent(milliseconds(2000), milliseconds(3000))
	require.False(t, s.Barred())
	s.GotMessage(milliseconds(4000))
	require.True(t, s.IsHealthy(milliseconds(4000)))
}
