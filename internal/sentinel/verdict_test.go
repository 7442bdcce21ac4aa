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

// stands is the answer of a Sentinel that stands by a server: by the former one since some failover, by the heir since the
// next. It knows the Sentinels a, b and c.
func stands(who, by string, flags ...string) Answer {
	return Answer{
		Who: who, At: who + ":26379", Names: by, Watches: by, Flags: append([]string{"master"}, flags...), Epoch: epochs[by],
		Others: 2, Fellows: fellows(who, "a", "b", "c"),
	}
}

func fellows(who string, all ...string) (others []peer) {
	for _, id := range all {
		if id != who {
			others = append(others, peer{id + ":26379", id})
		}
	}
	return others
}

// another is the answer of x, y or z, the Sentinels of another deployment.
func another(who string, epoch int64, flags ...string) Answer {
	const by = "10.9.9.9:6379"
	return Answer{
		Who: who, At: who + ":26379", Names: by, Watches: by, Flags: append([]string{"master"}, flags...), Epoch: epoch,
		Others: 2, Fellows: fellows(who, "x", "y", "z"),
	}
}

var epochs = map[string]int64{former: 5, heir: 6}

// A master freezes, is deposed, and resumes. A process that asks must believe it until it may be replaced, and its successor as
// soon as that is promoted. Sentinel a leads the failover.
func TestJudge_ADeposedMaster(t *testing.T) {
	promoted := Answer{
		Who: "a", Names: heir, Watches: former, Flags: []string{"master", "s_down", "o_down", replacing}, Epoch: 6,
		Others: 2, Fellows: fellows("a", "b", "c"),
	}
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
		{"b knows", []Answer{promoted, stands("b", heir), stands("c", former)}, Replaced, Disputed},
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
		"nobody":                           {nil, Unknown},
		"one of three":                     {[]Answer{stands("a", former)}, Unknown},
		"the same one at two addresses":    {[]Answer{stands("a", former), stands("a", former)}, Unknown},
		"two of three":                     {[]Answer{stands("a", former), stands("b", former)}, Vouched},
		"two of three, one finds it down":  {[]Answer{stands("a", former), stands("b", former, foundDown)}, Down},
		"one of three, that replaces it":   {[]Answer{stands("a", former, replacing)}, Replaced},
		"one of three, that names another": {[]Answer{stands("a", heir)}, Replaced},
		"two of five":                      {[]Answer{five("a"), five("b")}, Unknown},
		"three of five":                    {[]Answer{five("a"), five("b"), five("c")}, Vouched},
		"three of five, one of which lags": {[]Answer{stands("a", former), five("b"), five("c")}, Vouched},
		"three, as more than are known": {
			[]Answer{{Who: "a", Names: former, Watches: former}, {Who: "b", Names: former, Watches: former}}, Vouched,
		},
		"all, two of five find it down":         {append(most, five("d", foundDown), five("e", foundDown)), Vouched},
		"all, two of five agree":                {append(most, five("d", foundDown, agreedDown), five("e", foundDown)), Down},
		"the only one":                          {[]Answer{{Who: "a", Names: former, Watches: former}}, Vouched},
		"a link that is being made is no doubt": {[]Answer{stands("a", former, "disconnected"), stands("b", former)}, Vouched},
	} {
		require.Equal(t, c.want, Judge(former, c.answers), name)
	}
}

// A Sentinel that names another server than most is outvoted in time, unless it replaces the master.
func TestJudge_AnotherName(t *testing.T) {
	const other = "10.0.0.9:6379"
	names := func(epoch int64, flags ...string) Answer {
		return Answer{
			Who: "c", Names: other, Watches: other, Flags: append([]string{"master"}, flags...), Epoch: epoch,
			Others: 2, Fellows: fellows("c", "a", "b"),
		}
	}
	leads := names(6, replacing)
	leads.Watches = former
	a, b := stands("a", former), stands("b", former)
	for name, c := range map[string]struct {
		answers []Answer
		want    Verdict
	}{
		"it was told another name of the master": {[]Answer{a, b, names(5)}, Disputed},
		"it lags":                                {[]Answer{a, b, names(4)}, Disputed},
		"it has lost its state":                  {[]Answer{a, b, names(0)}, Disputed},
		"its own master is down":                 {[]Answer{a, b, names(5, foundDown, agreedDown)}, Disputed},
		"its failover is not known to most":      {[]Answer{a, b, names(6)}, Replaced},
		"it leads a failover":                    {[]Answer{a, b, leads}, Replaced},
		"it replaces its own master":             {[]Answer{a, b, names(5, replacing)}, Replaced},
		"one of two that answer":                 {[]Answer{a, names(5)}, Replaced},
		"most name another":                      {[]Answer{a, stands("b", other), names(0)}, Replaced},
		"one finds the server down, too":         {[]Answer{a, stands("b", former, foundDown), names(5)}, Down},
		"one has agreed that it is down":         {[]Answer{a, stands("b", former, foundDown, agreedDown), names(5)}, Down},
		"that, and a later failover":             {[]Answer{a, stands("b", former, foundDown), names(6)}, Replaced},
		"it is asked at two addresses":           {[]Answer{a, b, names(5), names(5)}, Disputed},
	} {
		require.Equal(t, c.want, Judge(former, c.answers), name)
	}
	c := names(5)
	c.At = "c:26379"
	require.Equal(t, []string{"c:26379"}, against(former, []Answer{a, c, b, c}))
	require.Empty(t, against(former, []Answer{a, b}))
}

// Sentinels of another deployment, with a master set of the same name, do not count for a majority, and are outlasted. A
// Sentinel that is linked with those that stand by the server does not belong to another deployment.
func TestJudge_Strangers(t *testing.T) {
	a, b, c := stands("a", former), stands("b", former), stands("c", former)
	x, y, z := another("x", 9), another("y", 9), another("z", 9)
	moved := another("m", 9) // it is not listed, and knows one of those
	moved.Fellows = fellows("m", "a")
	third := another("m", 9) // it knows one that another knows, too
	third.Fellows = fellows("m", "c")
	nameless := another("of the process", 9) // it is listed with its address
	nameless.At, nameless.Fellows = "c:26379", nil
	only := Answer{Who: "a", At: "a:26379", Names: former, Watches: former, Epoch: 5}
	for name, one := range map[string]struct {
		answers []Answer
		want    Verdict
	}{
		"one":                              {[]Answer{a, b, c, x}, Contested},
		"as many":                          {[]Answer{a, b, c, x, y, z}, Contested},
		"more":                             {[]Answer{x, y, z, a, b}, Contested},
		"one, with an older epoch":         {[]Answer{a, b, c, another("x", 1)}, Disputed},
		"it replaces its own master":       {[]Answer{a, b, c, another("x", 1, replacing)}, Contested},
		"it knows many":                    {[]Answer{a, b, func() Answer { x := x; x.Others = 20; return x }()}, Contested},
		"the only one has no fellows":      {[]Answer{only, x, y, z}, Contested},
		"no majority stands by the server": {[]Answer{a, x}, Replaced},
		"one of ours replaces it":          {[]Answer{a, b, stands("c", former, replacing), x}, Replaced},
		"one of ours has replaced it":      {[]Answer{a, b, stands("c", heir), x}, Replaced},
		"it knows one of ours":             {[]Answer{a, b, moved}, Replaced},
		"it knows one that ours know":      {[]Answer{a, b, third}, Replaced},
		"ours know its address":            {[]Answer{a, b, nameless}, Replaced},
		"nobody stands by the server":      {[]Answer{x, y}, Replaced},
	} {
		require.Equal(t, one.want, Judge(former, one.answers), name)
	}
	require.Equal(t, Replaced, Judge(former, []Answer{stands("a", heir), stands("b", heir), stands("c", heir), x}))
	require.Equal(t, Contested, Judge(heir, []Answer{stands("a", heir), stands("b", heir), stands("c", heir), x}))
}

// A server for which the Sentinels do not vouch is believed in the end, unless it is replaced.
func TestVerdict_Suffices(t *testing.T) {
	for verdict, after := range map[Verdict]time.Duration{
		Vouched: 0, Unknown: LongestDoubt, Down: LongestDoubt, Disputed: LongestDoubt, Contested: LongestContest, Elected: leadsFor,
	} {
		require.True(t, verdict.Suffices(after), verdict)
		require.False(t, after > 0 && verdict.Suffices(after-1), verdict)
	}
	require.False(t, Replaced.Suffices(time.Hour))
}
