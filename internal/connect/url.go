// Package connect connects to the Redis that a URL names, and says in plain words why it cannot. None of its errors has a
// password in it.
package connect

import (
	"errors"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/rueidis"
)

// Example is a URL.
const Example = "redis://user:password@host:6379/0" //nolint:gosec // an example

// The errors of [Parse] have no part of the URL in them: which part the password is cannot be told of one that is malformed.
var (
	errEmpty  = errors.New("the address of Redis is empty: write it as in " + Example)
	errScheme = errors.New("the address of Redis has an unknown scheme, or none: write it as in " + Example +
		"; the schemes are redis, rediss, valkey, valkeys and unix")
	errUnreadable = errors.New("the address of Redis cannot be read: write it as in " + Example +
		", with every special character of the password as %XX")
)

// limit bounds connecting, and what a connection does by itself.
const limit = 5 * time.Second

var schemes = []string{"redis", "rediss", "valkey", "valkeys", "unix"}

// Parse is [rueidis.ParseURL] without a client-side cache, and with limits of some seconds.
func Parse(address string) (rueidis.ClientOption, error) {
	if address == "" {
		return rueidis.ClientOption{}, errEmpty
	}
	scheme, rest, found := strings.Cut(address, "://")
	if !found || !slices.Contains(schemes, scheme) {
		return rueidis.ClientOption{}, errScheme
	}
	option, err := rueidis.ParseURL(address)
	if err != nil || ambiguous(scheme, rest) || scheme != "unix" && strings.Contains(strings.Join(option.InitAddress, ""), "@") {
		return rueidis.ClientOption{}, errUnreadable
	}
	option.DisableCache = true
	if option.Dialer.Timeout == 0 {
		option.Dialer.Timeout = limit
	}
	if option.ConnWriteTimeout == 0 {
		option.ConnWriteTimeout = limit
	}
	return option, nil
}

// ambiguous tells whether what follows the scheme has an @ after the host, or a fragment: then the password has a special
// character, and what comes before that was taken for the host and its port, which messages name. So it is with the host of a
// socket, which has none.
func ambiguous(scheme, rest string) bool {
	end := strings.IndexAny(rest, "/?#")
	if end < 0 {
		end = len(rest)
	}
	host := rest[strings.LastIndex(rest[:end], "@")+1 : end]
	return strings.Contains(rest, "#") || strings.Contains(rest[end:], "@") || scheme == "unix" && host != ""
}

// Show is the address of a Redis server without its password, for people: scheme, user, addresses and database. A user without
// a password is left out, since it often is the password. So is what cannot be read.
func Show(address string) string {
	u, err := url.Parse(address)
	if err != nil || u.Scheme == "" || u.Opaque != "" {
		return "(an address that cannot be read)"
	}
	shown := u.Scheme + "://"
	if password, _ := u.User.Password(); password != "" && u.User.Username() != "" {
		shown += u.User.Username() + ":***@"
	}
	host := u.Host
	if _, err := strconv.Atoi(strings.TrimPrefix(u.Path, "/")); err == nil || u.Scheme == "unix" {
		host += u.Path
	}
	return shown + strings.Join(append([]string{host}, u.Query()["addr"]...), ",")
}
