package lockregistry

import (
	"regexp"
	"strings"
	"testing"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry/internal/dispatch"
	"github.com/lockregistry/lockregistry/internal/transport"
)

func TestUnlink_IsKnownByVersion(t *testing.T) {
	// What servers say around the line that counts, including things that look like it.
	around := func(line string) string {
		return "# Server\nredis_git_sha1:00000000\nredis_build_id:99redis_version:9\nserver_mode:standalone\n" + line +
			"\nredis_mode:standalone\nos:Linux 6.1.0 x86_64\ngcc_version:12.2.0\nio_threads_active:0\n"
	}
	for line, want := range map[string]bool{
		"redis_version:2.8.24":       false,
		"redis_version:3.2.12":       false,
		"redis_version:3.9.104":      false, // a release candidate of version 4
		"redis_version:4.0.0":        true,
		"redis_version:4.0.14":       true,
		"redis_version:7.0.15":       true,
		"redis_version:8.2.1":        true,
		"redis_version:10.0.0":       true,
		"redis_version:255.255.255":  true,
		"redis_version:4":            true,
		"redis_version: 7.0.15":      true,
		"redis_version:":             false,
		"redis_version":              false,
		"redis_version:.7.0":         false,
		"redis_version:-7.0.15":      false,
		"redis_version:unstable":     false,
		"redis_version:v7.0.15":      false,
		"redis_version:7x.0":         false,
		"redis_version=7.0.15":       false,
		"Redis_version:7.0.15":       false,
		"old_redis_version:7.0.15":   false,
		"redis_version_next:7.0.15":  false,
		"redis_version:0x7.0":        false,
		"redis_version:７.0":          false,
		"redis_version:999999999999": false, // no version: DEL is right in any case
		"valkey_version:8.1.1":       true,
		"valkey_version:":            false,
		"redis_version:7.2.4\nserver_name:valkey\nvalkey_version:8.1.1": true,
		"redis_version:3.2.12\nvalkey_version:8.1.1":                    true,
		"redis_version:garbled\nvalkey_version:8.1.1":                   true,
		"": false,
	} {
		lf := around(line)
		crlf := strings.ReplaceAll(lf, "\n", "\r\n")
		for name, info := range map[string]string{
			"LF": lf, "CRLF": crlf, "alone": line, "cut off": strings.TrimSuffix(around(line), "\n"),
		} {
			require.Equal(t, want, hasUnlink(info), "%s, %s", line, name)
		}
	}
	require.False(t, hasUnlink("$4\r\n\x00\xff\xfe:\n:\n::\n\r\r\n"))
}

// newEnough matches the line that says that a server has UNLINK.
var newEnough = regexp.MustCompile(strings.ReplaceAll(
	`^ (redis|valkey)_version: 0*([4-9]|[1-9][0-9]+) (\.|$)`,
	" ", `[\s\v\x{85}\p{Z}]*`, // any white space
))

func FuzzHasUnlink(f *testing.F) {
	for _, info := range []string{
		"", "\n", ":", "redis_version", "redis_version:", "redis_version:4", "redis_version:3.2.12\r\n",
		"# Server\r\nredis_version:7.0.15\r\nredis_mode:standalone\r\n",
		"redis_version:7.2.4\nserver_name:valkey\nvalkey_version:8.1.1\n",
		"redis_version:255.255.255", "valkey_version:8.0.0", "redis_version:007.0", "redis_version:99999999999999999999.0",
		"\xff\xferedis_version:7", "redis_version:\x007", "redis_version:3.2.12\rredis_version:7.0.15\r",
		"redis_version:+4", "redis_version:4_0.0",
	} {
		f.Add(info)
	}
	f.Fuzz(func(t *testing.T, info string) {
		says := false
		for line := range strings.SplitSeq(info, "\n") {
			says = says || newEnough.MatchString(line)
		}
		if hasUnlink(info) && !says {
			t.Fatalf("no line of %q names a version of at least 4", info)
		}
		if !hasUnlink(info+"\nredis_version:4.0.0\r\n") || !hasUnlink("valkey_version:8.1.1\n"+info) {
			t.Fatalf("what stands around the line in %q hides it", info)
		}
		if !says && hasUnlink(info+"\nredis_version:3.2.12\r\n") {
			t.Fatalf("an old server with %q before its version counts as a new one", info)
		}
	})
}

// A call that comes while another one asks the server does not wait for the answer.
func TestUnlink_RemovalWhileAnotherCallAsks(t *testing.T) {
	var r remover
	r.asking.Store(true)
	log := &dispatch.Queue{}
	require.Equal(t, "DEL", r.removal(nil, log), "it does not ask: there is no client")
	unlink := "UNLINK"
	r.command.Store(&unlink)
	require.Equal(t, "UNLINK", r.removal(nil, log))
}

// The transport of a client is remembered for as long as a registry is open on it, and no longer.
func TestUnlink_TransportsAreForgotten(t *testing.T) {
	m := miniredis.RunT(t)
	dial := func() rueidis.Client {
		client, err := rueidis.NewClient(rueidis.ClientOption{
			InitAddress: []string{m.Addr()}, ForceSingleClient: true, DisableCache: true,
		})
		require.NoError(t, err)
		t.Cleanup(client.Close)
		return client
	}
	join := func(client rueidis.Client) *onClient {
		s, leave := clients.Join(client, func() *onClient { return &onClient{Client: transport.New(client)} })
		leave()
		return s
	}
	known := func(client rueidis.Client) *onClient {
		if s := join(client); s == join(client) {
			return s
		}
		return nil
	}
	open := func(client rueidis.Client) *Registry {
		r, err := New(client, "orders")
		require.NoError(t, err)
		return r
	}
	client, other := dial(), dial()
	require.Nil(t, known(client))
	_, err := New(client, "orders", WithPollInterval(0))
	require.Error(t, err)
	require.Nil(t, known(client), "there is no registry")
	first, second, third := open(client), open(client), open(other)
	one := known(client)
	require.NotNil(t, one)
	require.NotSame(t, one, known(other))
	for range 3 { // only the first Close counts
		require.NoError(t, first.Close())
		require.Same(t, one, known(client))
	}
	require.NoError(t, second.Close())
	require.Nil(t, known(client))
	require.NotNil(t, known(other))
	require.NoError(t, third.Close())
	require.Nil(t, known(other))
}
