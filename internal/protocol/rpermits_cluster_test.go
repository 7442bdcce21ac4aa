package protocol

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// In a cluster Redisson listens to sharded channels alone, or, before 3.29, to the others alone: each release is published on
// both. Before version 7 a server has the others only.
func TestRedissonPermits_SleepersInACluster(t *testing.T) {
	s := redissonsOf(t)
	s.Cluster = true
	told := map[string]func() []string{"PUBLISH": s.tells()}
	if s.count("COMMAND", "INFO", "SPUBLISH") != "(nil)" {
		told["SPUBLISH"] = s.tellsBy("SPUBLISH", s.client.B().Ssubscribe().Channel(sleepers).Build())
	}
	hear := func(want ...string) {
		t.Helper()
		for by, told := range told {
			require.Equal(t, want, told(), by)
		}
	}
	one, two := s.value("a"), s.value("a")
	require.Equal(t, StateGranted, s.is(one, 1, time.Minute, ModeTry))
	require.Equal(t, StateGranted, s.is(two, 2, time.Minute, ModeTry))
	hear()
	require.EqualValues(t, 1, s.releases(one))
	hear("1")
	require.EqualValues(t, 1, s.releases(two))
	hear("3")
	require.EqualValues(t, 3, s.sends(s.of(s.Config, 1, 3).SetPermits(formatKey, 5)))
	hear("5")
}
