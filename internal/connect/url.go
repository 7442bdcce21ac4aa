// Package connect connects to the Redis that a URL names, and says in plain words why it cannot. None of its errors contains a
// password.
//
// What comes in: a URL ([Parse]), and the options of a client that its user may have changed ([OpenMaster]). What goes out: a
// client that has reached a master, as [Opened], or an error that says what to do.
package connect

import (
	"errors"
	"net"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/rueidis"
)

// Example is a URL for error messages.
const Example = "redis://user:password@host:6379/0" //nolint:gosec // an example

// The errors of [Parse] contain no part of the URL: in a malformed URL any part may be the password.
var (
	errEmpty  = errors.New("the address of Redis is empty: write it as in " + Example)
	errScheme = errors.New("the address of Redis has an unknown scheme, or none: write it as in " + Example +
		"; the schemes are redis, rediss, valkey, valkeys and unix")
	errUnreadable = errors.New("the address of Redis cannot be read: write it as in " + Example +
		", with every special character of the password as %XX")
	errPort = errors.New("the address of Redis has a port that is not a number up to 65535, or an addr without a port: " +
		"write it as in " + Example + "?addr=host2:6379")
)

// limit is the default timeout for connecting, and for a connection's writes and its own PINGs.
const limit = 5 * time.Second

var schemes = []string{"redis", "rediss", "valkey", "valkeys", "unix"}

// Parse is [rueidis.ParseURL] without a client-side cache, and with timeouts of some seconds. The limits, and TLS, also apply to
// connections to Sentinels. With Sentinels each server's certificate is for its own address.
func Parse(address string) (rueidis.ClientOption, error) {
	if address == "" {
		return rueidis.ClientOption{}, errEmpty
	}
	scheme, rest, found := strings.Cut(address, "://")
	if !found || !slices.Contains(schemes, scheme) {
		return rueidis.ClientOption{}, errScheme
	}
	if scheme != "unix" {
		rest = withoutEmptyPath(rest)
		address = scheme + "://" + rest
	}
	option, err := rueidis.ParseURL(address)
	if wrong := wrongParameter(address); err != nil && wrong != nil && !ambiguous(scheme, rest) {
		return rueidis.ClientOption{}, wrong
	}
	if err != nil || ambiguous(scheme, rest) || scheme != "unix" && strings.Contains(strings.Join(option.InitAddress, ""), "@") {
		return rueidis.ClientOption{}, errUnreadable
	}
	u, _ := url.Parse(address)
	query, err := url.ParseQuery(u.RawQuery) // rueidis leaves out what it cannot read in the query
	switch {
	case err != nil:
		return rueidis.ClientOption{}, errUnreadable
	case scheme != "unix" && !ported(option.InitAddress, query["addr"]):
		return rueidis.ClientOption{}, errPort
	}
	option.DisableCache = true
	if option.Dialer.Timeout == 0 {
		option.Dialer.Timeout = limit
	}
	if option.ConnWriteTimeout == 0 {
		option.ConnWriteTimeout = limit
	}
	if option.Sentinel.MasterSet != "" {
		if option.TLSConfig != nil {
			option.TLSConfig.ServerName = ""
			option.Sentinel.TLSConfig = option.TLSConfig.Clone()
		}
		option.Sentinel.Dialer = option.Dialer
	}
	return option, nil
}

// withoutEmptyPath removes the slash of redis://host/, as other libraries do: rueidis would look for a database after it.
func withoutEmptyPath(rest string) string {
	end := strings.IndexAny(rest, "/?#")
	if end >= 0 && rest[end] == '/' && (end+1 == len(rest) || rest[end+1] == '?') {
		return rest[:end] + rest[end+1:]
	}
	return rest
}

// wrongParameter returns an error that names a parameter that cannot be read, if there is one; not its value, see above.
func wrongParameter(address string) error {
	u, err := url.Parse(address)
	if err != nil {
		return nil //nolint:nilerr // it is not a parameter that is wrong
	}
	for _, p := range []struct {
		name, example string
		reads         func(value string) error
	}{
		{"db", "0", func(value string) error { _, err := strconv.Atoi(value); return err }},
		{"dial_timeout", "3s", func(value string) error { _, err := time.ParseDuration(value); return err }},
		{"write_timeout", "3s", func(value string) error { _, err := time.ParseDuration(value); return err }},
		{"skip_verify", "true", func(value string) error { _, err := strconv.ParseBool(value); return err }},
	} {
		if values, given := u.Query()[p.name]; given && p.reads(values[0]) != nil && (p.name != "skip_verify" || values[0] != "") {
			return errors.New("the address of Redis has a " + p.name + " that cannot be read: write it as in " + Example + "?" +
				p.name + "=" + p.example)
		}
	}
	return nil
}

// ported reports whether each address has a port that is a number. Otherwise the port may be a password without the host after
// it. For an addr without a port, rueidis would take the first host.
func ported(all, others []string) bool {
	for _, a := range all {
		_, port, err := net.SplitHostPort(a)
		if n, wrong := strconv.ParseUint(port, 10, 16); err != nil || wrong != nil || n == 0 {
			return false
		}
	}
	return !slices.ContainsFunc(others, func(a string) bool {
		_, port, err := net.SplitHostPort(a)
		return err != nil || port == ""
	})
}

// ambiguous reports whether a part of the password may have been taken for the host and its port, which messages name. That is
// so if the password has a special character: then an @ follows after what looks like the host, or the URL has a fragment. A
// port without a host, and a host in the URL of a socket, are ambiguous for the same reason. Rest is what follows the scheme.
func ambiguous(scheme, rest string) bool {
	end := strings.IndexAny(rest, "/?#")
	if end < 0 {
		end = len(rest)
	}
	host := rest[strings.LastIndex(rest[:end], "@")+1 : end]
	return strings.Contains(rest, "#") || strings.Contains(rest[end:], "@") || strings.HasPrefix(host, ":") ||
		scheme == "unix" && host != ""
}

// Show returns the address of a Redis server for people: scheme, hosts and database. It leaves out the user and the password,
// and anything that cannot be parsed.
func Show(address string) string {
	return show(address, func(host string, _ *url.URL) string { return host })
}

// showUnreached is Show for hosts that were not found. The URL may lack the host, so that a user or a password stands in its
// place, as in redis://token and redis://user:1234. So no port is shown, and without an @ no host. IP addresses are shown.
func showUnreached(address string) string {
	return show(address, func(host string, of *url.URL) string {
		name := (&url.URL{Host: host}).Hostname()
		switch {
		case name == "" || name == "localhost" || net.ParseIP(name) != nil:
			return host
		case of.User == nil:
			return "***"
		default:
			return name
		}
	})
}

func show(address string, host func(host string, of *url.URL) string) string {
	u, err := url.Parse(address)
	if err != nil || u.Scheme == "" || u.Opaque != "" {
		return "(an address that cannot be read)"
	}
	path := ""
	if _, err := strconv.Atoi(strings.TrimPrefix(u.Path, "/")); err == nil || u.Scheme == "unix" {
		path = u.Path
	}
	hosts := []string{host(u.Host, u) + path}
	for _, other := range u.Query()["addr"] {
		hosts = append(hosts, host(other, u))
	}
	return u.Scheme + "://" + strings.Join(hosts, ",")
}
