package sentinel

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

const (
	former = "10.0.0.1:6379"
	heir   = "10.0.0.2:6379"
)

// stands is what a Sentinel says that stands by a server.
func stands(who, by string, flags ...string) Answer {
	return Answer{Who: who, Names: by, Watches: by, Flags: append([]string{"master"}, flags...), Others: 2}
}

// A master is frozen and deposed, and goes on. Whoever asks is to believe it until it may be replaced, and its successor as soon
// as it is promoted. Sentinel a leads the failover.
func TestJudge_ADeposedMaster(t *testing.T) {
	promoted := Answer{Who: "a", Names: heir, Watches: former, Flags: []string{"master", "s_down", "o_down", replacing}, Others: 2}
	for _, at := range []struct {
		moment       string
		answers      []Answer
		former, heir Verdict
	}{
		{"before", []Answer{stands("a", former), stands("b", former), stands("c", former)}, Vouched, Replaced},
		{"one finds it down", []Answer{stands("a", former, foundDown), stands("b", former), stands("c", former)}, Vouched, Replaced},
		{"two do", []Answer{stands("a", former, foundDown), stands("b", former, foundDown), stands("c", former)}, Down, Replaced},
		{"they agree", []Answer{
			stands("a", former, foundDown, agreedDown), stands("b", former, foundDown), stands("c", former),
		}, Down, Replaced},
		{"a leads", []Answer{
			stands("a", former, foundDown, agreedDown, replacing), stands("b", former, foundDown), stands("c", former, foundDown),
		}, Replaced, Replaced},
		{"it goes on, and all but a find it up", []Answer{
			stands("a", former, replacing), stands("b", former), stands("c", former),
		}, Replaced, Replaced},
		{"a has promoted", []Answer{promoted, stands("b", former), stands("c", former)}, Replaced, Replaced},
		{"b knows", []Answer{promoted, stands("b", heir), stands("c", former)}, Replaced, Replaced},
		{"all know, and a waits for replicas", []Answer{promoted, stands("b", heir), stands("c", heir)}, Replaced, Vouched},
		{"after", []Answer{stands("a", heir), stands("b", heir), stands("c", heir)}, Replaced, Vouched},
	} {
		require.Equal(t, at.former, Judge(former, at.answers), at.moment)
		require.Equal(t, at.heir, Judge(heir, at.answers), at.moment)
	}
}

func TestJudge_WhoAnswers(t *testing.T) {
	five := func(who string, flags ...string) Answer {
		a := stands(who, former, flags...)
		a.Others = 4
		return a
	}
	most := []Answer{five("a"), five("b"), five("c")}
	for name, c := range map[string]struct {
		answers []Answer
		want    Verdict
	}{
		"nobody":                                {nil, Unknown},
		"one of three":                          {[]Answer{stands("a", former)}, Unknown},
		"the same one at two addresses":         {[]Answer{stands("a", former), stands("a", former)}, Unknown},
		"two of three":                          {[]Answer{stands("a", former), stands("b", former)}, Vouched},
		"two of three, one finds it down":       {[]Answer{stands("a", former), stands("b", former, foundDown)}, Down},
		"one of three, that replaces it":        {[]Answer{stands("a", former, replacing)}, Replaced},
		"one of three, that names another":      {[]Answer{stands("a", heir)}, Replaced},
		"two of five":                           {[]Answer{five("a"), five("b")}, Unknown},
		"three of five":                         {[]Answer{five("a"), five("b"), five("c")}, Vouched},
		"three of five, one of which lags":      {[]Answer{stands("a", former), five("b"), five("c")}, Vouched},
		"three, as more than are known":         {[]Answer{{"a", former, former, nil, 0}, {"b", former, former, nil, 0}}, Vouched},
		"all, two of five find it down":         {append(most, five("d", foundDown), five("e", foundDown)), Vouched},
		"all, two of five agree":                {append(most, five("d", foundDown, agreedDown), five("e", foundDown)), Down},
		"the only one":                          {[]Answer{{"a", former, former, []string{"master"}, 0}}, Vouched},
		"a link that is being made is no doubt": {[]Answer{stands("a", former, "disconnected"), stands("b", former)}, Vouched},
	} {
		require.Equal(t, c.want, Judge(former, c.answers), name)
	}
}

// Who does not vouch is waited for, but not for ever, unless the server is replaced.
func TestVerdict_Suffices(t *testing.T) {
	for verdict, after := range map[Verdict]time.Duration{Vouched: 0, Unknown: LongestDoubt, Down: LongestDoubt} {
		require.True(t, verdict.Suffices(after), verdict)
		require.False(t, after > 0 && verdict.Suffices(after-1), verdict)
	}
	require.False(t, Replaced.Suffices(time.Hour))
}
