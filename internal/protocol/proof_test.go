package protocol

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry/internal/fault"
	"github.com/lockregistry/lockregistry/internal/redistest"
)

// A server before version 7.0 does not say what it permits: commands are executed, on a key that is not there.
func TestProof_OldServers(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	f := NewSpring(Config{Prefix: "orders", Remove: func() string { return "" }})
	for name, user := range map[string]struct{ rule, lacks string }{
		"all":     {"+@all", ""},
		"del":     {"-unlink", ""},
		"unlink":  {"-del", ""},
		"neither": {"-unlink -del", "it lacks +unlink or +del"},
		"get":     {"-get", "it lacks +get"},
		"keys":    {"resetkeys ~other:*", "it lacks a key pattern for orders:42"},

		"evalsha": {"-evalsha", "evalsha"},
		"exists":  {"-exists -unlink -del", ""}, // it cannot be asked
	} {
		t.Run(name, func(t *testing.T) {
			server.Command(t, "FLUSHALL")
			rules := append([]string{"ACL", "SETUSER", name, "reset", "on", "nopass", "~*", "&*", "+@all"}, strings.Fields(user.rule)...)
			server.Command(t, rules...)
			client := connectAs(t, server, name)
			asked := func() (held, old bool, err error) {
				c := f.Proof(formatKey, false)
				c.Script = NewScript(strings.ReplaceAll(c.Script.Source, "redis.acl_check_cmd", "nil"))
				return Proven(c.Send(t.Context(), client), formatKey)
			}
			held, old, err := asked()
			if user.lacks != "" {
				require.ErrorContains(t, err, user.lacks)
				require.ErrorIs(t, err, fault.Lasting)
				return
			}
			require.NoError(t, err)
			require.False(t, held)
			require.True(t, old)
			require.Equal(t, "0", server.Command(t, "DBSIZE"))

			server.Command(t, "SET", formatKey, "somebody")
			held, _, err = asked()
			require.NoError(t, err)
			require.Equal(t, name != "exists", held)
			require.Equal(t, "somebody", server.Command(t, "GET", formatKey))
		})
	}
}

// Since Valkey 9.1 a user may lack a database.
func TestProof_OfAUserWithoutTheDatabase(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	client := connectAs(t, server, "default")
	refused := "return redis.error_reply('NOPERM No permissions to access database')"
	_, _, err := Proven(client.Do(t.Context(), client.B().Eval().Script(refused).Numkeys(0).Build()), formatKey)
	require.ErrorContains(t, err, "NOPERM, No permissions to access database")
	require.ErrorIs(t, err, fault.Lasting)
	require.NotContains(t, err.Error(), "key pattern")
}

// Whether the user may set a lease shows, too: where there is no key, that changes nothing.
func TestProof_LeasesOnOldServers(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	client := lacking(t, server, "pexpire")
	c := Config{Prefix: "orders"}
	for _, f := range []*Format{NewRedisson(c), NewRead(c), NewWrite(c), NewPermits(c, 1, 3)} {
		asks := f.Proof(formatKey, false)
		asks.Script = NewScript(strings.ReplaceAll(asks.Script.Source, "redis.acl_check_cmd", "nil"))
		_, _, err := Proven(asks.Send(t.Context(), client), formatKey)
		require.ErrorContains(t, err, "it lacks +pexpire", f.format.name())
		require.ErrorIs(t, err, fault.Lasting)
		require.Equal(t, "0", server.Command(t, "DBSIZE"))
	}
}
