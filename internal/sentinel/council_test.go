package sentinel

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry/internal/clock"
)

// done returns what is to be done, without how long a Sentinel rests, which is random.
func done(acts []act) []act {
	for i := range acts {
		acts[i].after = 0
	}
	return acts
}

// at is the answer of a Sentinel at an address, which knows the Sentinels at other addresses.
func at(address string, a Answer, others ...string) *Answer {
	a.At, a.Fellows = address, nil
	for _, other := range others {
		a.Fellows = append(a.Fellows, peer{other, "id of " + other})
	}
	return &a
}

func TestCouncil(t *testing.T) {
	c := newCouncil("main")
	require.Equal(t, []act{{do: dial, address: "a"}, {do: dial, address: "b"}}, c.learn([]string{"a", "b", "a"}))
	require.Equal(t, []string{"a", "b"}, c.absent())

	require.Equal(t, []act{{do: ask, address: "a"}}, c.subscribed("a"), "what was missed is asked for after the subscription")
	sound, lags := stands("1", former), stands("1", heir)
	require.Equal(t, []act{{do: dial, address: "c"}}, c.answered(at("a", sound, "b", "c"), former), "others are learned of")
	require.Empty(t, c.answered(at("a", sound, "b", "c"), former))
	require.Empty(t, c.answered(at("a", lags), ""), "nothing is in use")
	require.Equal(t, []string{"b", "c"}, c.absent())

	require.Equal(t, []act{{do: rest, address: "a"}}, done(c.broke("a")))
	require.Equal(t, []string{"a", "b", "c"}, c.absent())
	require.Equal(t, []act{{do: dial, address: "a"}}, c.rested("a"))
	require.Equal(t, []act{{do: ask, address: "a"}}, c.subscribed("a"))
	require.Equal(t, []act{{do: doubt}}, c.answered(at("a", lags, "b"), former), "a failover was missed")
}

// A Sentinel that is heard at the given address is not dialed at the one that it announces, which may lead nowhere from here.
// While it is not heard at the given address, the other one is dialed.
func TestCouncil_ASentinelThatAnnouncesAnotherAddress(t *testing.T) {
	c := newCouncil("main")
	c.begin([]string{"name of a", "name of b"})
	hears := func(at, who string) []act {
		c.subscribed(at)
		a := stands(who, former)
		a.At, a.Fellows = at, fellows(who, "a", "b")
		return c.answered(&a, former)
	}
	require.Equal(t, []act{{do: dial, address: "b:26379"}}, hears("name of a", "a"), "b is not heard yet")
	require.Empty(t, hears("name of b", "b"))
	require.Empty(t, hears("name of a", "a"))
	c.broke("b:26379")
	require.Empty(t, c.rested("b:26379"), "it is heard by now")
	require.Empty(t, hears("name of a", "a"))
	require.Empty(t, c.absent())
	require.True(t, c.announced("b:26379"))
	c.broke("name of b")
	require.Equal(t, []act{{do: dial, address: "b:26379"}}, hears("name of a", "a"))
	c.broke("b:26379")
	require.Equal(t, []act{{do: dial, address: "b:26379"}}, c.rested("b:26379"), "it is not heard")
}

// A Sentinel may be at another address before its former connection is known to be broken. Then it is dialed there.
func TestCouncil_ASentinelThatHasMovedUnnoticed(t *testing.T) {
	for name, given := range map[string][]string{"given": {"a:26379", "b:26379"}, "learned": {"a:26379"}} {
		t.Run(name, func(t *testing.T) {
			c, now := newCouncil("main"), time.Now()
			c.begin(given)
			hears := func(at, who string, other peer) []act {
				c.subscribed(at)
				a := stands(who, former)
				a.At, a.Fellows = at, []peer{other}
				return c.answered(&a, former)
			}
			was, is := peer{"b:26379", "b"}, peer{"b2:26379", "b"}
			hears("a:26379", "a", was)
			hears("b:26379", "b", peer{"a:26379", "a"})
			acts := c.published("a:26379", moved, "master main 10.0.0.1 6379 ip b2 port 26379 for b", now)
			require.Equal(t, []act{{do: list, address: "a:26379"}}, acts)
			require.Empty(t, hears("a:26379", "a", is), "it is heard, as far as is known")
			require.Equal(t, []act{{do: rest, address: "b:26379"}, {do: list, address: "a:26379"}}, done(c.broke("b:26379")))
			require.Equal(t, []act{{do: dial, address: "b2:26379"}}, hears("a:26379", "a", is))
			c.rested("b:26379")
			if len(given) > 1 {
				require.Equal(t, []act{{do: rest, address: "b:26379"}}, done(c.broke("b:26379")), "asking once is enough")
			}
		})
	}
}

// Nothing is learned from Sentinels of another deployment, and their events raise no doubt, as long as a Sentinel is known that
// stands by the server.
func TestCouncil_Strangers(t *testing.T) {
	c, now := newCouncil("main"), time.Now()
	c.learn([]string{"a", "x"})
	ours, stranger := stands("1", former), another("8", 9)
	require.Equal(t, []act{{do: dial, address: "b"}}, c.answered(at("a", ours, "b"), former))
	require.Empty(t, c.answered(at("x", stranger, "y", "z"), former))
	require.Equal(t, []string{"a", "b", "x"}, c.absent())
	for _, e := range [][2]string{{"+sdown", "master main 10.9.9.9 6379"}, {vote, "8 10"}, {switched, "main 10.9.9.9 1 1.2.3.4 1"}} {
		require.Empty(t, c.published("x", e[0], e[1], now))
		require.Equal(t, []act{{do: doubt}}, c.published("a", e[0], e[1], now))
		require.Equal(t, []act{{do: doubt}}, c.published("b", e[0], e[1], now), "it has not answered")
	}
	joined := at("x", stranger, "a")
	require.Equal(t, []act{{do: doubt}}, c.answered(joined, former), "it knows one of ours")
	require.Equal(t, []act{{do: doubt}}, c.published("x", "+sdown", "master main 10.9.9.9 6379", now))
	require.Equal(t, []act{{do: dial, address: "y"}}, c.learnFrom(at("a", ours, "b", "y"), former), "any answer tells of others")
}

// If an operator makes a Sentinel watch another server, that raises a doubt, as a failover does. It raises none if the Sentinel
// watches another master set, or this set no longer.
func TestCouncil_WatchesAnotherServer(t *testing.T) {
	c, now := newCouncil("main"), time.Now()
	c.learn([]string{"a"})
	require.Contains(t, events, "+monitor")
	require.Equal(t, []act{{do: doubt}}, c.published("a", "+monitor", "master main 10.0.0.2 6379 quorum 2", now))
	require.Empty(t, c.published("a", "+monitor", "master other 10.0.0.2 6379 quorum 2", now))
	require.NotContains(t, events, "-monitor")
}

// A Sentinel that finds another one, or a new address of one, is asked where it is.
func TestCouncil_FindsAnotherSentinel(t *testing.T) {
	c, now := newCouncil("main"), time.Now()
	c.learn([]string{"a"})
	for channel, of := range map[string]string{
		found: "sentinel 0f3c 10.0.0.9 26379 @ %s 10.0.0.1 6379",
		moved: "master %s 10.0.0.1 6379 ip 10.0.0.9 port 26379 for 0f3c",
	} {
		require.Contains(t, events, channel)
		require.Equal(t, []act{{do: list, address: "a"}}, c.published("a", channel, fmt.Sprintf(of, "main"), now))
		require.Empty(t, c.published("a", channel, fmt.Sprintf(of, "other"), now))
		require.Empty(t, c.published("a", channel, "sentinel", now))
	}
}

// A Sentinel that is down is dialed less and less often, at least once a second; one that was heard, at once.
func TestCouncil_Rests(t *testing.T) {
	c := newCouncil("main")
	c.learn([]string{"a"})
	pause := func() time.Duration {
		acts := c.broke("a")
		require.Equal(t, rest, acts[0].do)
		c.rested("a")
		return acts[0].after
	}
	first := pause()
	require.LessOrEqual(t, first, 50*time.Millisecond)
	for range 20 {
		require.LessOrEqual(t, pause(), clock.MostPause)
	}
	require.Greater(t, pause(), clock.MostPause/2)
	c.subscribed("a")
	require.LessOrEqual(t, pause(), 50*time.Millisecond)
}

// Events about the master raise a doubt. Events about other servers do not.
func TestCouncil_Told(t *testing.T) {
	for _, e := range []struct {
		channel, message string
		doubts           bool
	}{
		{"+sdown", "master main 10.0.0.1 6379", true},
		{"+odown", "master main 10.0.0.1 6379 #quorum 2/2", true},
		{"+try-failover", "master main 10.0.0.1 6379", true},
		{"+vote-for-leader", "66d1d0acb3f8a1f7c9c4e5e5b5f3d8f5f1b6d0a1 4", true},
		{"+switch-master", "main 10.0.0.1 6379 10.0.0.2 6379", true},
		{"+sdown", "slave 10.0.0.2:6379 10.0.0.2 6379 @ main 10.0.0.1 6379", false},
		{"+sdown", "sentinel 66d1d0 10.0.0.9 26379 @ main 10.0.0.1 6379", false},
		{"+sdown", "master other 10.0.0.1 6379", false},
		{"+sdown", "master main-2 10.0.0.1 6379", false},
		{"+sdown", "main 10.0.0.1 6379", false},
		{"+sdown", "", false},
		{"+switch-master", "other 10.0.0.1 6379 10.0.0.2 6379", false},
		{"+switch-master", "", false},
	} {
		c := newCouncil("main")
		acts := c.published("a", e.channel, e.message, time.Now())
		require.Equal(t, e.doubts, len(acts) == 1 && acts[0].do == doubt, e)
		require.Contains(t, events, e.channel)
	}
}

// Only the leader of a failover knows of it until it has succeeded. So for a while, a majority of the others proves nothing if
// the leader does not answer.
func TestCouncil_ALeaderThatDoesNotAnswer(t *testing.T) {
	now := time.Now()
	heard := func(id string) council {
		c := newCouncil("main")
		for _, who := range []string{"a", "b", "c"} {
			answer := stands(who, former)
			answer.Fellows = append(answer.Fellows, peer{"d:26379", "d"})
			c.learn([]string{answer.At})
			c.answered(&answer, former)
		}
		require.Len(t, c.published("a:26379", vote, id+" 6", now), 1)
		return c
	}
	a, b, down := stands("a", former), stands("b", former), stands("b", former, foundDown)
	nameless := a
	nameless.Nameless = true
	disputes := stands("b", heir)
	disputes.Epoch = 0
	lists := b // an answer that is asked for after the vote
	lists.Fellows = append(fellows("b", "a", "c"), peer{"new:26379", "new"})
	x := another("x", 0)
	x.Fellows = append(x.Fellows, peer{"new:26379", "new"})
	const away, to = "main 10.0.0.1 6379 10.0.0.2 6379", "main 10.0.0.3 6379 10.0.0.1 6379"
	for name, c := range map[string]struct {
		leader  string
		then    string
		after   time.Duration
		answers []Answer
		want    Verdict
	}{
		"it does not":                       {leader: "c", answers: []Answer{a, b}, want: Elected},
		"it does":                           {leader: "a", answers: []Answer{a, b}, want: Vouched},
		"it does not, a moment before":      {leader: "c", after: leadsFor - 1, answers: []Answer{a, b}, want: Elected},
		"nor later":                         {leader: "c", after: leadsFor, answers: []Answer{a, b}, want: Vouched},
		"it is known from others":           {leader: "d", answers: []Answer{a, b}, want: Elected},
		"it is known from now on":           {leader: "new", after: 1, answers: []Answer{a, lists}, want: Elected},
		"it is not known from strangers":    {leader: "new", after: 1, answers: []Answer{a, b, x}, want: Disputed},
		"they voted after they were asked":  {leader: "new", after: -1, answers: []Answer{a, b}, want: Elected},
		"it leads that of another set":      {leader: "of another", answers: []Answer{a, b}, want: Vouched},
		"another set has changed":           {leader: "c", then: "other 10.0.0.1 1 10.0.0.2 1", answers: []Answer{a, b}, want: Elected},
		"they do not say how they vote":     {leader: "c", answers: []Answer{nameless, b}, want: Vouched},
		"the others find the server down":   {leader: "c", answers: []Answer{a, down}, want: Elected},
		"one disputes it":                   {leader: "d", answers: []Answer{a, disputes, stands("c", former)}, want: Elected},
		"another has replaced it":           {leader: "c", answers: []Answer{a, stands("b", former, replacing)}, want: Replaced},
		"nobody answers":                    {leader: "c", want: Elected},
		"one that is not known votes, too":  {leader: "", answers: []Answer{a, b}, want: Vouched},
		"the change was heard":              {leader: "a", then: away, answers: []Answer{a, b}, want: Replaced},
		"the change was heard of another":   {leader: "a", then: to, answers: []Answer{a, b}, want: Vouched},
		"it was heard long ago":             {leader: "a", then: away, after: leadsFor, answers: []Answer{a, b}, want: Vouched},
		"it does not, although others know": {leader: "c", then: to, answers: []Answer{a, b}, want: Elected},
		"the change is not understood":      {leader: "a", then: "main", answers: []Answer{a, b}, want: Vouched},
	} {
		council, at := heard(c.leader), now.Add(c.after)
		if c.then != "" {
			council.published("a:26379", switched, c.then, now)
		}
		council.learn([]string{"x:26379"})
		for _, answer := range c.answers {
			council.learnFrom(&answer, former)
		}
		require.Equal(t, c.want, council.judge(former, c.answers, at, at), name)
	}
}

// A server that was replaced, and later replaces its successor, is believed again.
func TestCouncil_ThereAndBack(t *testing.T) {
	c, now, answers := newCouncil("main"), time.Now(), []Answer{stands("a", former), stands("b", former)}
	c.published("a", switched, "main 10.0.0.1 6379 10.0.0.2 6379", now)
	require.Equal(t, Replaced, c.judge(former, answers, now, now))
	c.published("a", switched, "main 10.0.0.2 6379 10.0.0.1 6379", now)
	require.Equal(t, Vouched, c.judge(former, answers, now, now))
}

// A Sentinel that cannot be reached any more, and that no other lists, is forgotten, unless the user has given it.
func TestCouncil_Forgets(t *testing.T) {
	c := newCouncil("main")
	c.begin([]string{"a", "given"})
	c.subscribed("a")
	c.broke("given")
	c.answered(at("a", stands("1", former), "moves"), former)
	c.broke("moves")
	require.Equal(t, []act{{do: dial, address: "moves"}}, c.rested("moves"), "it is listed")
	c.broke("moves")
	c.learnFrom(at("a", stands("1", former), "moved"), former)
	require.Empty(t, c.rested("moves"))
	require.Equal(t, []string{"given", "moved"}, c.absent())
	require.Equal(t, []act{{do: dial, address: "given"}}, c.rested("given"))
	c.broke("a")
	c.broke("moved")
	require.Equal(t, []act{{do: dial, address: "moved"}}, c.rested("moved"), "nobody is heard")
	c.subscribed("a")
	require.Equal(t, []act{{do: dial, address: "moves"}}, c.learnFrom(at("a", stands("1", former), "moves"), former), "it is back")
}
