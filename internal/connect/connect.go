package connect

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"strings"
	"syscall"

	"github.com/redis/rueidis"

	"github.com/lockregistry/lockregistry/internal/fault"
)

// Open returns a client that has reached Redis, which the caller closes. It gives up when ctx ends; a connection that is being
// made then is closed as soon as that is known. Errors name the server by shown, see [Show].
func Open(ctx context.Context, shown string, option rueidis.ClientOption) (rueidis.Client, error) {
	type opened struct {
		client rueidis.Client
		err    error
	}
	done := make(chan opened, 1)
	go func() {
		client, err := rueidis.NewClient(option)
		if err != nil && client != nil { // as with ForceSingleClient
			client.Close()
		}
		done <- opened{client, err}
	}()
	select {
	case o := <-done:
		if o.err != nil {
			return nil, fmt.Errorf("cannot connect to %s: %w", shown, explain(o.err, &option))
		}
		return o.client, nil
	case <-ctx.Done():
		go func() {
			if o := <-done; o.err == nil {
				o.client.Close()
			}
		}()
		return nil, fmt.Errorf("cannot connect to %s: %w", shown, fault.Ended(ctx))
	}
}

// echo is in the text with which Redis repeats a command that it does not know: cut at 128 bytes, so that a long password is not
// recognized in it.
const echo = "with args beginning with"

// explained is an error in words of this package.
type explained struct {
	text string
	err  error
}

func (e explained) Error() string { return e.text }
func (e explained) Unwrap() error { return e.err }

// explain says what an error of connecting means, and what to do. A server that does not know a command may repeat it, with the
// password in it.
func explain(err error, o *rueidis.ClientOption) error {
	secrets := []string{o.Password, o.Sentinel.Password}
	if o.Password == "" {
		secrets[0] = o.Username // it often is the password
	}
	for _, secret := range append(secrets, echo) {
		if secret != "" && strings.Contains(err.Error(), secret) {
			return explained{"it was refused, with a text that has the password in it, and so is not shown", fault.Lasting}
		}
	}
	text := reason(err, o.TLSConfig != nil)
	if reply := (*rueidis.RedisError)(nil); errors.As(err, &reply) && fault.Refusal(reply) {
		err = fault.Join(err, fault.Lasting)
	}
	return explained{text, err}
}

func reason(err error, encrypted bool) string {
	var (
		dns       *net.DNSError
		authority x509.UnknownAuthorityError
		name      x509.HostnameError
		record    tls.RecordHeaderError
		timeout   net.Error
		reply     *rueidis.RedisError
	)
	replied := errors.As(err, &reply)
	switch {
	case replied && strings.HasPrefix(reply.Error(), "WRONGPASS"):
		return "the user or the password is wrong"
	case replied && strings.HasPrefix(reply.Error(), "NOAUTH"):
		return "it asks for a password, and the address has none"
	case replied && strings.HasPrefix(reply.Error(), "NOPERM"):
		return "the user lacks a permission: " + reply.Error()
	case replied:
		return reply.Error()
	case strings.Contains(err.Error(), "unknown message type"):
		return "what answers there is not Redis"
	case errors.As(err, &dns):
		return "the name of the host is not known"
	case errors.Is(err, syscall.ECONNREFUSED):
		return "nothing listens there"
	case errors.As(err, &authority), errors.As(err, &name):
		return "its certificate is not trusted: " + err.Error()
	case errors.As(err, &record):
		return "it does not speak TLS: write redis:// instead of rediss://"
	case errors.Is(err, context.DeadlineExceeded), errors.As(err, &timeout) && timeout.Timeout():
		if encrypted {
			return "no answer in time; perhaps it does not speak TLS"
		}
		return "no answer in time"
	default:
		return err.Error()
	}
}
