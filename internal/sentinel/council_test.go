package sentinel

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry/internal/clock"
)

// done leaves out how long somebody rests, which is random.
func done(acts []act) []act {
	for i := range acts {
		acts[i].after = 0
	}
	return acts
}

func TestCouncil(t *testing.T) {
	c := newCouncil("main")
	require.Equal(t, []act{{do: dial, address: "a"}, {do: dial, address: "b"}}, c.learn([]string{"a", "b", "a"}))
	require.Equal(t, []string{"a", "b"}, c.absent())

	require.Equal(t, []act{{do: ask, address: "a"}}, c.subscribed("a"), "what was missed is asked for after the subscription")
	sound, lags := stands("1", former), stands("1", heir)
	require.Equal(t, []act{{do: dial, address: "c"}}, c.answered(&sound, []string{"b", "c"}, former), "others are learned of")
	require.Empty(t, c.answered(&sound, []string{"b", "c"}, former))
	require.Empty(t, c.answered(&lags, nil, ""), "nothing is in use")
	require.Equal(t, []string{"b", "c"}, c.absent())

	require.Equal(t, []act{{do: rest, address: "a"}}, done(c.broke("a")))
	require.Equal(t, []string{"a", "b", "c"}, c.absent())
	require.Equal(t, []act{{do: dial, address: "a"}}, c.rested("a"))
	require.Equal(t, []act{{do: ask, address: "a"}}, c.subscribed("a"))
	require.Equal(t, []act{{do: doubt}}, c.answered(&lags, []string{"b"}, former), "a failover was missed")
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

// What Sentinels publish of the master raises a doubt, and nothing that they publish of others.
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
		acts := c.told(e.channel, e.message)
		require.Equal(t, e.doubts, len(acts) == 1 && acts[0].do == doubt, e)
		require.Contains(t, events, e.channel)
	}
}
