package connect_test

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/url"
	"strings"
	"testing"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry/internal/connect"
	"github.com/lockregistry/lockregistry/internal/fault"
)

// said is all text that an error can show, in each format, and that the errors within it can show.
func said(err error) string {
	texts := []string{fmt.Sprintf("%v\n%+v\n%#v\n%q\n", err, err, err, err)}
	switch e := err.(type) { //nolint:errorlint // each one within is looked at
	case interface{ Unwrap() error }:
		if within := e.Unwrap(); within != nil {
			texts = append(texts, said(within))
		}
	case interface{ Unwrap() []error }:
		for _, within := range e.Unwrap() {
			texts = append(texts, said(within))
		}
	}
	return strings.Join(texts, "")
}

// random returns a secret that occurs nowhere else, with characters that have to be escaped.
func random() string {
	const letters = "abcdefghijklmnopqrstuvwxyz0123456789\"\\%/: é"
	all := []rune(letters)
	text := make([]rune, 12+rand.IntN(150))
	for i := range text {
		text[i] = all[rand.IntN(len(all))]
	}
	return "xq" + string(text) + "qx" // otherwise it might be found in any text
}

// A server may repeat the credentials that it was given: in whole, cut off, quoted, or as the arguments of a command.
func TestOpen_ErrorWithoutTheSecret(t *testing.T) {
	t.Parallel()
	for name, reply := range map[string]func(secret string) string{
		"an unknown command": func(s string) string {
			return "ERR unknown command 'AUTH', with args beginning with: 'app' '" + s[:min(len(s), 5)] + "' "
		},
		"an older server":  func(s string) string { return "ERR unknown command `AUTH`, with args beginning with: `" + s + "`, " },
		"a wrong password": func(s string) string { return "WRONGPASS of " + s },
		"no permission":    func(s string) string { return "NOPERM AUTH app " + s },
		"in passing":       func(s string) string { return "LOADING after AUTH app " + s },
		"quoted":           func(s string) string { return fmt.Sprintf("ERR syntax error near %q", s) },
		"cut":              func(s string) string { return "ERR proxy: AUTH app " + s[:12] + "..." },
	} {
		for kind, more := range map[string]string{"single": "", "cluster": "?addr=127.0.0.1:1", "sentinel": "?master_set=m"} {
			for _, how := range []string{"password", "user alone", "a function", "of Sentinels"} {
				if how == "of Sentinels" && kind != "sentinel" {
					continue
				}
				t.Run(strings.Join([]string{name, kind, how}, ", "), func(t *testing.T) {
					t.Parallel()
					secret := random()
					address := "redis://"
					switch how {
					case "password":
						address += "app:" + url.User(secret).String() + "@"
					case "user alone":
						address += url.User(secret).String() + "@"
					}
					address += repeating(t, "-"+reply(secret)+"\r\n") + more
					option, err := connect.Parse(address)
					require.NoError(t, err)
					option.AlwaysRESP2 = true
					switch how {
					case "a function":
						option.AuthCredentialsFn = func(rueidis.AuthCredentialsContext) (rueidis.AuthCredentials, error) {
							return rueidis.AuthCredentials{Password: secret}, nil
						}
					case "of Sentinels":
						option.Sentinel.Password = secret
					}
					_, err = connect.Open(context.Background(), address, option)
					require.Error(t, err)
					require.NotContains(t, said(err), secret[:5])
					require.NotContains(t, said(err), url.PathEscape(secret)[:5])
				})
			}
		}
	}
}

// A character of several bytes may stand where the beginning of a secret ends. If it is cut, its half is quoted in another way.
func TestOpen_ErrorWithAQuotedSecret(t *testing.T) {
	t.Parallel()
	for _, secret := range []string{`xqorja"éogm7`, `xqor\ja€ogm`, "xq\"4567\xff\xffmore"} {
		address := "redis://" + url.UserPassword("app", secret).String() + "@" +
			repeating(t, fmt.Sprintf("-ERR syntax error near %q\r\n", secret))
		option, err := connect.Parse(address)
		require.NoError(t, err)
		option.AlwaysRESP2 = true
		_, err = connect.Open(context.Background(), address, option)
		require.Error(t, err)
		require.NotContains(t, said(err), secret[:2])
	}
}

// A function of the user may repeat in its own error what it was given.
func TestOpen_ErrorOfAFunction(t *testing.T) {
	t.Parallel()
	option, err := connect.Parse("redis://" + silent(t))
	require.NoError(t, err)
	secret, failed := random(), errors.New("no credentials")
	option.AuthCredentialsFn = func(rueidis.AuthCredentialsContext) (rueidis.AuthCredentials, error) {
		return rueidis.AuthCredentials{Password: secret}, fmt.Errorf("%s: %w", secret, failed)
	}
	_, err = connect.Open(context.Background(), "redis://host", option)
	require.NotContains(t, said(err), secret)
	option.AuthCredentialsFn = func(rueidis.AuthCredentialsContext) (rueidis.AuthCredentials, error) {
		return rueidis.AuthCredentials{}, failed
	}
	_, err = connect.Open(context.Background(), "redis://host", option)
	require.ErrorIs(t, err, failed)
}

// Wherever a secret stands in an address, the error shows no part of it. Nor does it wrap an error of package url, which would
// quote the address.
func TestParse_ErrorWithoutTheSecret(t *testing.T) {
	t.Parallel()
	for _, form := range []string{
		"%s", "%s://host", "redis:%s", "redis:/%s@host", "redis://:%s", "redis://u:%s", "redis://u:%s/0", "redis://u:p%%zz%s@host",
		"redis://:p%%zz%s@host", "redis://u:%%%s@host", "redis://host:%s", "redis://host:%s/0", "redis://host/%s", "redis://host/0/%s",
		"redis://host#%s", "redis://host?db=%s", "redis://host?dial_timeout=%s", "redis://host?write_timeout=%s",
		"rediss://host?skip_verify=%s", "redis://host?addr=u:%s", "redis://host?addr=%s", "redis://host?addr=u:%s@b:1",
		"redis://host:0%s", "unix://%s/redis.sock", "unix://u:/%s@/redis.sock", "redis://[%s", "redis://[::1]:%s", "redis://u:%s@",
		"redis://u:%s@:1",
	} {
		for _, secret := range []string{random(), url.PathEscape(random()), "xq7xq7xq7"} {
			address := fmt.Sprintf(form, secret)
			_, err := connect.Parse(address)
			if form == "redis://u:%s@" && err == nil { // the host is localhost
				require.NotContains(t, connect.Show(address), secret)
				continue
			}
			require.Error(t, err, address)
			require.NotContains(t, said(err), secret[:5], address)
			var quotes *url.Error
			require.NotErrorAs(t, err, &quotes, address)
		}
	}
}

// A password in the place of the port is not shown if it cannot be a port.
func TestParse_APasswordThatLooksLikeAPort(t *testing.T) {
	t.Parallel()
	for _, address := range []string{"redis://user:123456", "redis://:12345", "redis://host:6379?addr=user:123456"} {
		_, err := connect.Parse(address)
		require.ErrorContains(t, err, "the address of Redis", address)
		require.NotContains(t, said(err), "12345", address)
	}
}

// What looks like a host and a port may be a user and a password. It is shown only if the host is found, or is certainly a host.
func TestOpen_AddressThatIsNotFound(t *testing.T) {
	t.Parallel()
	for address, shown := range map[string]string{
		"redis://token":                           "redis://***",
		"redis://user:12345":                      "redis://***",
		"redis://user.token:12345/1":              "redis://***/1",
		"rediss://user:12345?addr=user:12345":     "rediss://***,***",
		"redis://token@host":                      "redis://host",
		"redis://user:token@host:12345/1":         "redis://host/1",
		"redis://user:token@host?addr=b:12345":    "redis://host,b",
		"redis://user:token@host?master_set=main": "redis://host",
		"redis://127.0.0.1:6379":                  "redis://127.0.0.1:6379",
		"redis://[::1]:6379?addr=user:12345":      "redis://[::1]:6379,***",
		"redis://localhost:6379":                  "redis://localhost:6379",
		"redis://":                                "redis://",
	} {
		t.Run(address, func(t *testing.T) {
			t.Parallel()
			hides := func(err error) {
				for _, secret := range []string{"token", "user", "12345"} {
					require.NotContains(t, said(err), secret)
				}
			}
			option, err := connect.Parse(address)
			require.NoError(t, err)
			option.DialCtxFn = func(_ context.Context, to string, _ *net.Dialer, _ *tls.Config) (net.Conn, error) {
				host, _, _ := net.SplitHostPort(to)
				return nil, &net.OpError{Op: "dial", Net: "tcp", Err: &net.DNSError{Err: "no such host", Name: host, IsNotFound: true}}
			}
			_, err = connect.Open(context.Background(), address, option)
			require.EqualError(t, err, "cannot connect to "+shown+": the name of the host is not known")
			require.ErrorIs(t, fault.Classify(err), fault.Unavailable)
			hides(err)

			option.DialCtxFn = func(ctx context.Context, _ string, _ *net.Dialer, _ *tls.Config) (net.Conn, error) {
				<-ctx.Done()
				return nil, ctx.Err()
			}
			ended, cancel := context.WithCancel(context.Background())
			cancel()
			_, err = connect.Open(ended, address, option)
			require.EqualError(t, err, "cannot connect to "+shown+": context canceled")
			hides(err)
		})
	}
	require.Equal(t, "redis://user:12345", connect.Show("redis://user:12345"), "which is where it is, if it answers")
}
