package main_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry/internal/redistest"
)

// Sentinels may ask for a password of their own, and the command that lockreg runs does not see it.
func TestSentinelsWithAPassword(t *testing.T) {
	d := redistest.StartSentinels(t, 0, 1)
	d.Sentinels[0].Command(t, "ACL", "SETUSER", "viewer", "on", ">s3cret", "+@all", "&*")
	d.Sentinels[0].Command(t, "ACL", "SETUSER", "default", "off")
	url := "redis://" + d.Sentinels[0].Addr() + "?master_set=" + redistest.MasterSet

	code, _, said := lockreg(t, url, "ls", "shop")
	require.Equal(t, 69, code)
	require.Contains(t, said, "LOCKREG_SENTINEL_PASSWORD")

	t.Setenv("LOCKREG_SENTINEL_USER", "viewer")
	t.Setenv("LOCKREG_SENTINEL_PASSWORD", "s3cret")
	code, out, said := lockreg(t, url, "run", "shop", "a", "--", "env")
	require.Equal(t, 0, code, said)
	require.NotContains(t, out, "LOCKREG_SENTINEL_")
	_, out, _ = lockreg(t, url, "run", "--pass-redis-url", "shop", "a", "--", "env")
	require.Contains(t, out, "LOCKREG_SENTINEL_PASSWORD=s3cret")

	t.Setenv("LOCKREG_SENTINEL_PASSWORD", "wr0ng")
	code, out, said = lockreg(t, url, "ls", "shop")
	require.Equal(t, 69, code)
	require.NotContains(t, out+said, "wr0ng")
}
