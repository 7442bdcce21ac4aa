package interop

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry/test/interop/monitor"
)

// electing are this library beside each version of Spring's LockRegistryLeaderInitiator, which uses a role as a path.
func electing() (pairs []pair) {
	for _, java := range springs {
		pairs = append(pairs, beside(java, "auto"))
	}
	return pairs
}

func (s *side) leads(t *testing.T, role string) bool {
	t.Helper()
	return ended(t, s.send("leads", with(role))).Fields["value"] == "true"
}

func (s *side) awaitLead(t *testing.T, role string) {
	t.Helper()
	require.Eventually(t, func() bool { return s.leads(t, role) }, callLimit, time.Millisecond, "it never led")
}

func (s *side) awaitEnd(t *testing.T, role string) {
	t.Helper()
	require.Eventually(t, func() bool { return !s.leads(t, role) }, callLimit, time.Millisecond, "it led on")
}

// campaign starts to campaign for a role.
func (s *side) campaign(t *testing.T, role string) {
	t.Helper()
	ended(t, s.send("campaign", with(role)))
}

// campaignInVain campaigns for a role that somebody else has, and returns once the candidate has seen that.
func (s *side) campaignInVain(t *testing.T, watch *monitor.Monitor, role string) {
	t.Helper()
	mark := watch.Mark()
	s.campaign(t, role)
	_, err := watch.Await(t.Context(), mark, s.tries, func(c monitor.Command) bool {
		return strings.HasPrefix(c.Words[0], "EVAL") && c.Mentions(s.key(role))
	})
	require.NoError(t, err, "the candidate never asked Redis")
	require.False(t, s.leads(t, role), "two lead")
}

func TestOneLeaderAtATime(t *testing.T) {
	t.Parallel()
	for _, r := range bothWays(electing(), always) {
		t.Run(r.String(), func(t *testing.T) {
			t.Parallel()
			prefix := uniquePrefix()
			// Neither may lose the role during the test, nor keep it longer than intended.
			one := open(t, r.holder, opening{prefix: prefix, lease: 20 * time.Second})
			other := open(t, r.waiter, opening{prefix: prefix, lease: 20 * time.Second})
			golang := one
			if r.holder.module != "" {
				golang = other
			}
			watch := monitor.Start(t, server.Addr())
			who := func() string {
				t.Helper()
				said := ended(t, golang.send("leader", with("role"))).Fields["value"]
				require.Equal(t, strings.TrimSuffix(server.Command(t, "GET", golang.key("role")), "+"), said)
				return said
			}

			one.campaign(t, "role")
			one.awaitLead(t, "role")
			first := who()
			require.NotEmpty(t, first)
			other.campaignInVain(t, watch, "role")
			require.Equal(t, first, who())

			// The leader steps down, but campaigns again: on a busy machine it may be elected again.
			require.Eventually(t, func() bool {
				if one.leads(t, "role") {
					ended(t, one.send("giveup", with("role")))
				}
				return other.leads(t, "role")
			}, callLimit, 200*time.Millisecond, "the other one never led")
			one.awaitEnd(t, "role")
			second := who()
			require.NotEqual(t, first, second)

			ended(t, other.send("stop", with("role")))
			one.awaitLead(t, "role")
			other.awaitEnd(t, "role")
			require.NotEqual(t, second, who())
			ended(t, one.send("stop", with("role")))
			require.Eventually(t, func() bool { return server.Command(t, "EXISTS", one.key("role")) == "0" },
				callLimit, time.Millisecond, "the role is not free")
		})
	}
}

// A leader is renewed, and a dead one is replaced when its lease is over.
func TestLeaderDies(t *testing.T) {
	t.Parallel()
	for _, r := range bothWays(electing(), holderIsNew) {
		t.Run(r.String(), func(t *testing.T) {
			t.Parallel()
			const lease = 6 * time.Second
			prefix := uniquePrefix()
			doomed := start(t, "doomed "+r.holder.name, r.holder)
			one := openOn(t, doomed, r.holder, opening{prefix: prefix, lease: lease})
			other := open(t, r.waiter, opening{prefix: prefix, lease: lease})
			watch := monitor.Start(t, server.Addr())

			one.campaign(t, "role")
			one.awaitLead(t, "role")
			other.campaignInVain(t, watch, "role")
			require.Never(t, func() bool { return other.leads(t, "role") }, lease+lease/2, 50*time.Millisecond, "two lead")
			require.True(t, one.leads(t, "role"), "its lock was not renewed")
			require.NoError(t, doomed.Kill())
			died := time.Now()
			other.awaitLead(t, "role")
			require.Less(t, time.Since(died), 2*lease)
			ended(t, other.send("stop", with("role")))
		})
	}
}
