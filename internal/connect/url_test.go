package connect_test

import (
	"crypto/tls"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry/internal/connect"
)

func TestParse(t *testing.T) {
	t.Parallel()
	option, err := connect.Parse("rediss://app:secret@host/2?dial_timeout=1s&client_name=me&client_cache=1")
	require.NoError(t, err)
	require.Equal(t, []string{"host:6379"}, option.InitAddress)
	require.Equal(t, "app", option.Username)
	require.Equal(t, "secret", option.Password)
	require.Equal(t, 2, option.SelectDB)
	require.Equal(t, "host", option.TLSConfig.ServerName)
	require.Equal(t, "me", option.ClientName)
	require.Equal(t, time.Second, option.Dialer.Timeout)
	require.True(t, option.DisableCache, "whatever the address says")
	option, err = connect.Parse("redis://host")
	require.NoError(t, err)
	require.Nil(t, option.TLSConfig)
	require.Equal(t, 5*time.Second, option.Dialer.Timeout)
	require.Equal(t, 5*time.Second, option.ConnWriteTimeout)
	option, err = connect.Parse("valkey://a:1?addr=b:2&addr=c:3")
	require.NoError(t, err)
	require.Equal(t, []string{"a:1", "b:2", "c:3"}, option.InitAddress)
	option, err = connect.Parse("redis://a:26379?addr=b:26379&master_set=mymaster")
	require.NoError(t, err)
	require.Equal(t, "mymaster", option.Sentinel.MasterSet)
	require.Equal(t, option.Dialer, option.Sentinel.Dialer, "the same limits")
	require.Nil(t, option.Sentinel.TLSConfig)
	option, err = connect.Parse("rediss://a:26379?addr=b:26379&master_set=mymaster&skip_verify=1")
	require.NoError(t, err)
	for _, encryption := range []*tls.Config{option.TLSConfig, option.Sentinel.TLSConfig} {
		require.True(t, encryption.InsecureSkipVerify)
		require.Empty(t, encryption.ServerName, "that of the connection")
	}
	option, err = connect.Parse("rediss://a:1?addr=b:2")
	require.NoError(t, err)
	require.Equal(t, "a", option.TLSConfig.ServerName, "for all nodes of a cluster: some are named by an IP address")
	for address, database := range map[string]int{"redis://u:p@a:1/": 0, "redis://a:1/?addr=b:2": 0, "rediss://a:1/?db=3": 3} {
		option, err = connect.Parse(address)
		require.NoError(t, err, "as other libraries write it")
		require.Equal(t, "a:1", option.InitAddress[0])
		require.Equal(t, database, option.SelectDB)
	}
	option, err = connect.Parse("unix:///run/redis.sock?db=1")
	require.NoError(t, err)
	require.Equal(t, []string{"/run/redis.sock"}, option.InitAddress)
}

// malformed are addresses that cannot be read, each with a password that ends in cret.
var malformed = []string{
	"localhost:6379?p=secret",
	"http://u:secret@host",
	"REDIS ://u:secret@host",
	"redis:secret@host",
	"redis:/u:secret@host",
	"u:secret@host",
	"u:secret://host",
	"secret://host",
	"secret",
	"redis://:se/cret@host",
	"redis://:12/cret@host",
	"redis://:12?cret@host",
	"redis://:12/3?cret@host",
	"redis://:12#cret@host",
	"redis://host:12#secret",
	"redis://u:se%cret@host",
	"redis://u:se%zzcret@host",
	"redis://u:se cret@host",
	"redis://u:se\tcret@host",
	"redis://u:se\ncret@host",
	"redis://u:se\x00cret@host",
	"redis://u:se[cret@host",
	"redis://u:se\"cret@host",
	"redis://u:se\\cret@host",
	"redis://u:secret",
	"redis://u:secret/0",
	"redis://u:secret/",
	"redis://:12/?cret@host",
	"unix://secret/",
	"redis://u:secret@host:port",
	"redis://u:secret@[::1",
	"redis://u:secret@ho st",
	"redis://u:secret@host%zz",
	"redis://host/secret",
	"redis://host/0/secret",
	"redis://u:p@host/secret/0",
	"redis://host?db=secret",
	"redis://host?db=",
	"redis://host?dial_timeout=secret",
	"redis://host?write_timeout=secret",
	"rediss://host?skip_verify=secret",
	"redis://host?addr=u:secret@other",
	"redis:///u:secret@host",
	"redis://?u:secret@host",
	"unix://:se/cret@/run/redis.sock",
	"unix://:12/cret@/run/redis.sock",
	"unix://secret/run/redis.sock",
	"unix:///run/u:secret@redis.sock",
	"redis://u:s\u00e9%cret@host",
}

func TestParse_MalformedWithoutThePassword(t *testing.T) {
	t.Parallel()
	for _, address := range malformed {
		_, err := connect.Parse(address)
		require.ErrorContains(t, err, "the address of Redis", "%q", address)
		require.NotContains(t, err.Error(), "cret", "%q", address)
	}
	_, err := connect.Parse("")
	require.ErrorContains(t, err, "is empty")
}

func TestShow(t *testing.T) {
	t.Parallel()
	const unreadable = "(an address that cannot be read)"
	for given, want := range map[string]string{
		"redis://localhost:6379":                       "redis://localhost:6379",
		"redis://:secret@redis.internal:6379/3":        "redis://redis.internal:6379/3",
		"rediss://app:secret@host:1?addr=b:2&addr=c:3": "rediss://host:1,b:2,c:3",
		"redis://secret@host":                          "redis://host",
		"redis://secret:@host":                         "redis://host",
		"redis://host/secret":                          "redis://host",
		"redis://host?password=secret#secret":          "redis://host",
		"unix:///run/redis.sock?db=1":                  "unix:///run/redis.sock",
		"unix://:secret@/run/redis.sock":               "unix:///run/redis.sock",
		"redis://:sec/ret@host":                        unreadable,
		"redis:secret":                                 unreadable,
		"secret":                                       unreadable,
		"redis://:sec%ret@host":                        unreadable,
		"redis://us:se@cret@host":                      "redis://host",
	} {
		got := connect.Show(given)
		require.Equal(t, want, got)
		require.NotContains(t, got, "secret")
	}
}

// Whatever stands around a password: if the address can be read, the password is what comes before the last @, and neither it
// nor the user is shown. If not, the error shows no part of either.
func FuzzParse(f *testing.F) {
	for _, address := range malformed {
		before, after, _ := strings.Cut(address, "cret")
		f.Add(before, after)
	}
	f.Add("redis://u:", "@host:6379/1?addr=b:2")
	f.Add("unix://u:", "@/run/redis.sock")
	f.Add("redis://", "@host")
	f.Add("redis://", ":@host")
	const secret = "5ecretXyzzy"
	f.Fuzz(func(t *testing.T, before, after string) {
		if strings.Contains(before, secret) || strings.Contains(after, secret) {
			return
		}
		address := before + secret + after
		option, err := connect.Parse(address)
		if err != nil {
			if strings.Contains(err.Error(), secret) {
				t.Errorf("%q: %v", address, err)
			}
			return
		}
		if !option.DisableCache {
			t.Errorf("%q: with a cache", address)
		}
		isIts := strings.Contains(option.Username, secret) || strings.Contains(option.Password, secret)
		if isIts && strings.Contains(connect.Show(address), secret) {
			t.Errorf("%q is shown as %q", address, connect.Show(address))
		}
	})
}
