// Package connect connects to the Redis that a URL names, and says in plain words why it cannot.
package connect

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/redis/rueidis"

	"github.com/lockregistry/lockregistry/cmd/lockreg/internal/printable"
)

// ErrURL is for a URL that is missing or cannot be understood: a mistake of the caller. All other errors of this package mean
// that Redis cannot be used.
var ErrURL = errors.New("no usable address of Redis")

// urlError is an ErrURL that speaks for itself.
type urlError string

func (e urlError) Error() string        { return string(e) }
func (e urlError) Is(target error) bool { return target == ErrURL }

const example = "redis://user:password@host:6379/0" //nolint:gosec // an example

// limit bounds connecting, and what a connection does by itself.
const limit = 5 * time.Second

var schemes = []string{"redis", "rediss", "valkey", "valkeys", "unix"}

// Parse is [rueidis.ParseURL] for this program: without a client-side cache, with its name, and with limits of some seconds. Its
// errors have no part of the URL in them, which may be of the password.
func Parse(url string) (rueidis.ClientOption, error) {
	if url == "" {
		return rueidis.ClientOption{}, urlError("no address of Redis: give --url, or set REDIS_URL, as in " + example)
	}
	scheme, _, found := strings.Cut(url, "://")
	if !found {
		return rueidis.ClientOption{}, urlError("the address of Redis has no scheme: write it as in " + example)
	}
	if !slices.Contains(schemes, scheme) {
		return rueidis.ClientOption{}, urlError(fmt.Sprintf("the address of Redis has the unknown scheme %q: it is one of %s",
			printable.Text(scheme), strings.Join(schemes, ", ")))
	}
	option, err := rueidis.ParseURL(url)
	if err != nil || stray(url) {
		return option, urlError("the address of Redis cannot be read: write it as in " + example +
			", with every special character of the password as %XX")
	}
	option.DisableCache = true
	if option.ClientName == "" {
		option.ClientName = "lockreg"
	}
	if option.Dialer.Timeout == 0 {
		option.Dialer.Timeout = limit
	}
	if option.ConnWriteTimeout == 0 {
		option.ConnWriteTimeout = limit
	}
	return option, nil
}

// stray tells whether a URL has an @ after its host, or a fragment: then the password has a special character, and what comes
// before that was taken for the host and its port, which messages name.
func stray(url string) bool {
	_, rest, _ := strings.Cut(url, "://")
	end := strings.IndexAny(rest, "/?#")
	return strings.Contains(rest, "#") || end >= 0 && strings.Contains(rest[end:], "@") && !strings.HasPrefix(url, "unix:")
}

// Open returns a client that has reached Redis. The caller closes it. It gives up when ctx ends; a connection that is being made
// then is closed as soon as that is known.
func Open(ctx context.Context, url string) (rueidis.Client, error) {
	option, err := Parse(url)
	if err != nil {
		return nil, err
	}
	type opened struct {
		client rueidis.Client
		err    error
	}
	done := make(chan opened, 1)
	go func() {
		client, err := rueidis.NewClient(option)
		done <- opened{client, err}
	}()
	select {
	case o := <-done:
		if o.err != nil {
			return nil, fmt.Errorf("cannot connect to %s: %w", printable.URL(url), explain(o.err, option.TLSConfig != nil))
		}
		return o.client, nil
	case <-ctx.Done():
		go func() {
			if o := <-done; o.client != nil {
				o.client.Close()
			}
		}()
		return nil, fmt.Errorf("cannot connect to %s: %w", printable.URL(url), context.Cause(ctx))
	}
}

// explained is an error in words of this package.
type explained struct {
	text string
	err  error
}

func (e explained) Error() string { return e.text }
func (e explained) Unwrap() error { return e.err }

// explain says what an error of connecting means, and what to do.
func explain(err error, encrypted bool) error {
	var (
		text      string
		dns       *net.DNSError
		authority x509.UnknownAuthorityError
		name      x509.HostnameError
		record    tls.RecordHeaderError
		timeout   net.Error
	)
	var reply *rueidis.RedisError
	replied := errors.As(err, &reply)
	switch {
	case replied && strings.HasPrefix(reply.Error(), "WRONGPASS"):
		text = "the user or the password is wrong"
	case replied && strings.HasPrefix(reply.Error(), "NOAUTH"):
		text = "it asks for a password, and the address has none"
	case replied && strings.HasPrefix(reply.Error(), "NOPERM"):
		text = "the user lacks a permission: " + printable.Text(reply.Error())
	case replied:
		text = printable.Text(reply.Error())
	case strings.Contains(err.Error(), "unknown message type"):
		text = "what answers there is not Redis"
	case errors.As(err, &dns):
		text = "the name of the host is not known"
	case errors.Is(err, syscall.ECONNREFUSED):
		text = "nothing listens there"
	case errors.As(err, &authority), errors.As(err, &name):
		text = "its certificate is not trusted: " + printable.Text(err.Error())
	case errors.As(err, &record):
		text = "it does not speak TLS: write redis:// instead of rediss://"
	case errors.Is(err, context.DeadlineExceeded), errors.As(err, &timeout) && timeout.Timeout():
		if text = "no answer in time"; encrypted {
			text += "; perhaps it does not speak TLS"
		}
	default:
		text = printable.Text(err.Error())
	}
	return explained{text, err}
}
