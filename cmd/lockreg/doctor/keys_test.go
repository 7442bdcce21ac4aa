package doctor_test

import (
	"net"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry/cmd/lockreg/doctor"
)

// A look at the keys that does not come to its end finds nothing out, and says so: not that all is well, nor that what was not
// seen is left over.
func TestKeys_TheConnectionBreaks(t *testing.T) {
	t.Parallel()
	s := healthy(t)
	s.Command(t, "SET", "orders:free", "a:1", "PX", "600000")
	s.Command(t, "SET", "orders:idle", "7")
	s.Command(t, "ZADD", "orders:permits", "1", "permits", "99999999999999", "a:1")
	hasNot(t, examine(t, option(s.Addr())), "key-lease")
	for what, at := range map[string]string{
		"SCAN": "redis.call('SCAN'", "TYPE": "orders:free", "ZSCORE": "orders:permits\r\n$7\r\npermits",
		"GET": "$3\r\nGET\r\n$11\r\norders:idle",
	} {
		r := examine(t, through(option(s.Addr()), func(c net.Conn) net.Conn { return breaking{c, at} }))
		f := has(t, r, "keys-unseen", doctor.Info)
		require.Contains(t, f.Seen, "not all keys of the database were scanned: ", what)
		for _, f := range r.Findings {
			require.NotContains(t, []string{"key-lease", "key-type", "unseen"}, f.ID, what)
		}
	}
}

// Only a permission that is missing is asked for.
func TestKeys_TheServerHasNoScripts(t *testing.T) {
	t.Parallel()
	s := healthy(t, "--rename-command", "EVAL", "")
	r := examine(t, option(s.Addr()))
	require.Contains(t, has(t, r, "keys-unseen", doctor.Info).Seen, "unknown command")
	require.Empty(t, findings(r, "unseen"))
}
