package connect

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/redis/rueidis"

	"github.com/lockregistry/lockregistry/internal/fault"
)

// NoRESP3 says what a user must know about a client that has fallen back to RESP2.
const NoRESP3 = "the server, or a proxy, refuses RESP3: the client speaks RESP2, " +
	"so waiting calls do not hear of a lock that expires"

// Opened is a client that has reached Redis.
type Opened struct {
	Client   rueidis.Client
	Note     string        // what its user must know: [NoRESP3]; empty: nothing
	Master   bool          // the server has said that it is a master; see [OpenMaster]
	Greeting time.Duration // from the last connection that was made until the client was ready: a round trip, or a few
}

// Open returns a client that has reached Redis. The caller closes it. Open gives up when ctx ends, and then closes the
// connections that were made. Option is what [Parse] has made of address; errors name the address as [Show] does. Where RESP3
// is refused, the client speaks RESP2.
func Open(ctx context.Context, address string, option rueidis.ClientOption) (o Opened, err error) {
	o, err = open(ctx, address, option)
	if !option.AlwaysRESP2 && refusesRESP3(err, &option) {
		option.AlwaysRESP2, option.DisableCache = true, true
		o, err = open(ctx, address, option)
		o.Note = NoRESP3
	}
	if err != nil {
		return Opened{}, err
	}
	return o, nil
}

// refusesRESP3 reports whether a server or a proxy refuses RESP3. Envoy does not read the password that HELLO has: where it wants
// one, it asks for it.
func refusesRESP3(err error, o *rueidis.ClientOption) bool {
	reply := (*rueidis.RedisError)(nil)
	authenticates := o.Sentinel.MasterSet == "" && (o.Password != "" || o.AuthCredentialsFn != nil)
	return fault.IsNoRESP3(err) || authenticates && errors.As(err, &reply) && strings.HasPrefix(reply.Error(), "NOAUTH")
}

func open(ctx context.Context, address string, option rueidis.ClientOption) (Opened, error) {
	type opened struct {
		client rueidis.Client
		err    error
	}
	secrets, done, dial := newSecrets(&option), make(chan opened, 1), dialingOf(&option)
	opens := watch(&option)
	go func() {
		client, err := rueidis.NewClient(option)
		if err != nil && client != nil { // as with ForceSingleClient
			client.Close()
		}
		done <- opened{client, err}
	}()
	select {
	case o := <-done:
		if o.err == nil {
			return Opened{Client: o.client, Greeting: opens.succeed()}, nil
		}
		opens.close() // a cluster's client leaves connections that are being made
		shown := Show(address)
		failed := undialed{}
		if errors.As(o.err, &failed) {
			o.err = failed.error
		}
		at := opens.newest()
		named := named(cmp.Or(failed.address, at.address), &option)
		if unknown := (*net.DNSError)(nil); errors.As(o.err, &unknown) {
			nameless := *unknown
			nameless.Name = ""
			if o.err = &nameless; named == "" {
				shown = showUnreached(address)
			}
		}
		why := explain(o.err, secrets, &option)
		if wasClosed(o.err) {
			why = explainClosed(why, ask(ctx, dial, at, &option), secrets, &option)
		}
		return Opened{}, fmt.Errorf("cannot connect to %s%s: %w", shown, named, why)
	case <-ctx.Done():
		reached := opens.close()
		go func() {
			if o := <-done; o.err == nil {
				o.client.Close()
			}
		}()
		shown := Show(address)
		if !reached {
			shown = showUnreached(address)
		}
		return Opened{}, fmt.Errorf("cannot connect to %s%s: %w", shown, named(opens.newest().address, &option), fault.Ended(ctx))
	}
}

// named says that Sentinels have named the server at an address, unless the user has given the address. The server may be
// reachable only from where the Sentinels are, as in a network of containers.
func named(server string, o *rueidis.ClientOption) string {
	if server == "" || o.Sentinel.MasterSet == "" || slices.Contains(o.InitAddress, server) {
		return ""
	}
	return ", where a Sentinel names " + server
}

// explained is an error with a text of this package.
type explained struct {
	text string
	err  error // the error that it explains; nil: that may have a secret in it
}

func (e explained) Error() string { return e.text }
func (e explained) Unwrap() error { return e.err }

// explain says what an error of connecting means, and what to do. The texts of the server and of the user's functions may
// have a secret in them.
func explain(err error, s *secrets, o *rueidis.ClientOption) error {
	words, quotes := reason(err, o)
	if hint := hint(err, o); hint != "" {
		words = hint
	}
	text, repeats := fault.Unrepeated(err.Error())
	reply, replied := rueidis.IsRedisErr(err)
	shows := !s.in(text)
	switch {
	case !quotes:
	case words != "" && shows:
		words += ": " + text
	case shows:
		words = text
	case words == "":
		words = "it was refused, with a text that has the password in it, and so is not shown"
	}
	refused := replied && fault.Refusal(reply)
	if repeats || !shows && (quotes || replied) {
		err = nil
	}
	if refused {
		err = fault.Join(err, fault.Lasting)
	}
	return explained{words, err}
}

// hint is what an error means for a client of several servers; empty: it means the same as for one server.
func hint(err error, o *rueidis.ClientOption) string {
	reply, replied := rueidis.IsRedisErr(err)
	switch {
	case !replied:
		return ""
	case o.Sentinel.MasterSet != "" && strings.HasPrefix(reply.Error(), "NOAUTH"):
		return "a server or a Sentinel asks for a password: that of the address is for servers, " +
			"that for Sentinels is Sentinel.Password in the options of the client, for lockreg LOCKREG_SENTINEL_PASSWORD"
	case o.Sentinel.MasterSet == "" && len(o.InitAddress) > 1 && noCluster(reply.Error()):
		return "several addresses are those of a cluster, or, with master_set=NAME, of Sentinels"
	default:
		return ""
	}
}

// noCluster reports whether the text of an error says that a server is not a node of a cluster.
func noCluster(text string) bool {
	return strings.Contains(text, "cluster support disabled") ||
		strings.Contains(strings.ToLower(text), "unknown command") && strings.Contains(text, "CLUSTER")
}

// reason is what an error means in words. Quotes reports whether its own text is to be read, too.
func reason(err error, o *rueidis.ClientOption) (words string, quotes bool) {
	var (
		dns       *net.DNSError
		untrusted *tls.CertificateVerificationError
		record    tls.RecordHeaderError
		timeout   net.Error
		reply     *rueidis.RedisError
	)
	replied, encrypted := errors.As(err, &reply), o.TLSConfig != nil
	switch {
	case replied && strings.HasPrefix(reply.Error(), "WRONGPASS"):
		return "the user or the password is wrong", false
	case replied && strings.HasPrefix(reply.Error(), "NOAUTH"):
		return "it asks for a password, but the address has none", false
	case replied && strings.HasPrefix(reply.Error(), "NOPERM"):
		return "the user lacks a permission", true
	case replied:
		return "", true
	case strings.Contains(err.Error(), "unknown message type"), strings.Contains(err.Error(), "unexpected number byte"):
		return "what answers there is not Redis", false
	case alertOf(err) != nil:
		return refusedTLS(alertOf(err), o), true
	case wasClosed(err) && encrypted:
		return "it closes the connection: perhaps it is not Redis", false
	case wasClosed(err):
		return "it closes the connection: perhaps it is not Redis, or needs TLS: write rediss://", false
	case errors.As(err, &dns):
		return "the name of the host is not known", false
	case errors.Is(err, syscall.ECONNREFUSED):
		return "nothing listens there", false
	case errors.As(err, &untrusted):
		return "its certificate is not trusted", true
	case errors.As(err, &record):
		return "it does not speak TLS: write redis:// instead of rediss://", false
	case errors.Is(err, context.DeadlineExceeded), errors.As(err, &timeout) && timeout.Timeout():
		if encrypted {
			return "no answer in time; perhaps it does not speak TLS", false
		}
		return "no answer in time", false
	default:
		return "", true
	}
}

// alertOf returns what a server says when it ends a TLS connection; nil: nothing.
func alertOf(err error) error {
	said := (*net.OpError)(nil)
	if !errors.As(err, &said) || said.Op != "remote error" {
		return nil
	}
	return said
}

// refusedTLS says in words what an alert means; empty: the alert says enough. By default Redis asks each client for a
// certificate. In TLS 1.2 the alert does not say that.
func refusedTLS(alert error, o *rueidis.ClientOption) string {
	const (
		asks = "asks for a certificate of the client: set TLSConfig.Certificates"
		by   = " in the options of the client, as with WithClientOption"
	)
	set := asks
	if o.Sentinel.MasterSet != "" {
		set += ", for Sentinels those of Sentinel.TLSConfig,"
	}
	switch said := alert.Error(); {
	case strings.Contains(said, "certificate required"):
		return "it " + set + by
	case strings.Contains(said, "handshake failure"):
		return "it refuses the connection; perhaps it " + set + by
	case strings.Contains(said, "certificate"):
		return "it does not trust the certificate of the client"
	default:
		return ""
	}
}

const (
	sentinelBuffer = 4 << 10 // bytes, of a connection to a Sentinel, each way
	sentinelRing   = 5       // places for commands under way, as a power of two
)

// Sentinels returns the options for a connection to one of the Sentinels of a client whose options are of. The connection is made
// as rueidis itself does it, but there is only one. DialCtxFn is set. InitAddress has the addresses of all Sentinels.
func Sentinels(of *rueidis.ClientOption) rueidis.ClientOption {
	return rueidis.ClientOption{
		InitAddress: of.InitAddress, ForceSingleClient: true,
		Username: of.Sentinel.Username, Password: of.Sentinel.Password, ClientName: of.Sentinel.ClientName,
		AuthCredentialsFn: of.AuthCredentialsFn, ClientSetInfo: of.ClientSetInfo,
		Dialer: of.Sentinel.Dialer, TLSConfig: of.Sentinel.TLSConfig, DialCtxFn: dialingOf(of),
		ConnWriteTimeout: of.ConnWriteTimeout, DisableTCPNoDelay: of.DisableTCPNoDelay, AlwaysRESP2: of.AlwaysRESP2,
		DisableCache: true, DisableRetry: true, PipelineMultiplex: -1,
		ReadBufferEachConn: sentinelBuffer, WriteBufferEachConn: sentinelBuffer, RingScaleEachConn: sentinelRing,
	}
}
