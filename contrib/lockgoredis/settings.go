package lockgoredis

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/rueidis"
)

// settings is what the registry's own client needs.
type settings struct {
	url    string // of the address alone: errors name it
	change func(*rueidis.ClientOption)
	access *access // nil: user and password do not change
}

var (
	errNil      = errors.New("the client is nil")
	errReplicas = errors.New("the client reads from replicas, but locks are on masters: turn that off")
	errSlots    = errors.New("the client has a ClusterSlots of its own, or is a NewFailoverClusterClient: " +
		"which server has a lock is for the cluster to say")
	errRing = errors.New("a *redis.Ring sends a key to another server when a shard is added or fails, so two could hold one lock: " +
		"use a client for one of its servers")
)

// settingsOf reads the options of a client.
func settingsOf(rdb redis.UniversalClient) (settings, error) {
	switch c := rdb.(type) {
	case *redis.Client:
		if c != nil {
			return ofClient(c.Options()), nil
		}
	case *redis.ClusterClient:
		if c != nil {
			return ofCluster(c.Options())
		}
	case *redis.Ring:
		return settings{}, errRing
	case nil:
	default:
		return settings{}, fmt.Errorf("%T: it is neither a *redis.Client nor a *redis.ClusterClient", rdb)
	}
	return settings{}, errNil
}

// ofClient reads the options of a client for one server, or of a failover client.
func ofClient(o *redis.Options) settings {
	at := &url.URL{Scheme: "redis", Host: o.Addr}
	switch _, _, err := net.SplitHostPort(o.Addr); {
	case o.Network == "unix":
		at = socket(o.Addr)
	case err != nil: // a failover client has a name there
		at.Host = net.JoinHostPort(o.Addr, "6379")
	}
	return settings{at.String(), func(c *rueidis.ClientOption) {
		common(c, o)
		c.SelectDB = o.DB
		// Else a node of a cluster would name the others, and the dialer of a failover client knows only its master.
		c.ForceSingleClient = true
		c.DialCtxFn = dialing(ignoring(c, c.InitAddress[0], func(ctx context.Context, _ string) (net.Conn, error) {
			return o.Dialer(ctx, o.Network, o.Addr)
		}))
	}, accessOf(o)}
}

// socket is the URL of a Unix socket, for errors: the dialer has the path as it was given. A URL has no relative path, and an @
// in it would end a user and a password.
func socket(path string) *url.URL {
	if full, err := filepath.Abs(path); err == nil {
		path = full
	}
	u := &url.URL{Scheme: "unix", Path: "/" + strings.TrimPrefix(filepath.ToSlash(path), "/")}
	u.RawPath = strings.ReplaceAll(u.EscapedPath(), "@", "%40")
	return u
}

// ofCluster reads the options of a cluster's client.
func ofCluster(o *redis.ClusterOptions) (settings, error) {
	switch {
	case o.ClusterSlots != nil:
		return settings{}, errSlots
	case o.ReadOnly || o.RouteByLatency || o.RouteRandomly:
		return settings{}, errReplicas
	case len(o.Addrs) == 0:
		return settings{}, errors.New("the client has no address")
	}
	nodes := slices.Clone(o.Addrs)
	each := &redis.Options{
		ClientName: o.ClientName, Protocol: o.Protocol, DisableIdentity: o.DisableIdentity,
		DisableIndentity: o.DisableIndentity, //nolint:staticcheck // an old setting counts, too
		Username:         o.Username, Password: o.Password, CredentialsProvider: o.CredentialsProvider,
		CredentialsProviderContext: o.CredentialsProviderContext, StreamingCredentialsProvider: o.StreamingCredentialsProvider,
		Dialer: o.Dialer, DialTimeout: dialLimit(o.DialTimeout), ReadTimeout: o.ReadTimeout, TLSConfig: o.TLSConfig,
	}
	at := url.URL{Scheme: "redis", Host: nodes[0]}
	return settings{at.String(), func(c *rueidis.ClientOption) {
		common(c, each)
		c.InitAddress, c.ShuffleInit = nodes, true
		c.DialCtxFn = dialing(tcp(c, each))
	}, accessOf(each)}, nil
}

// ofFailover reads the options of a failover client.
func ofFailover(o *redis.FailoverOptions) (settings, error) {
	switch {
	case o == nil:
		return settings{}, errors.New("the options are nil")
	case o.ReplicaOnly || o.RouteByLatency || o.RouteRandomly:
		return settings{}, errReplicas
	case len(o.SentinelAddrs) == 0:
		return settings{}, errors.New("the options have no SentinelAddrs")
	case o.MasterName == "":
		return settings{}, errors.New("the options have no MasterName")
	}
	sentinels := slices.Clone(o.SentinelAddrs) // go-redis shuffles its own
	each := &redis.Options{
		ClientName: o.ClientName, Protocol: o.Protocol, DisableIdentity: o.DisableIdentity,
		DisableIndentity: o.DisableIndentity, //nolint:staticcheck // an old setting counts, too
		Username:         o.Username, Password: o.Password, CredentialsProvider: o.CredentialsProvider,
		CredentialsProviderContext: o.CredentialsProviderContext, StreamingCredentialsProvider: o.StreamingCredentialsProvider,
		Dialer: o.Dialer, DialTimeout: dialLimit(o.DialTimeout), ReadTimeout: o.ReadTimeout, TLSConfig: o.TLSConfig,
	}
	at := url.URL{Scheme: "redis", Host: sentinels[0], RawQuery: url.Values{"master_set": {o.MasterName}}.Encode()}
	return settings{at.String(), func(c *rueidis.ClientOption) {
		common(c, each)
		c.InitAddress, c.SelectDB = sentinels, o.DB
		c.Sentinel = rueidis.SentinelOption{
			MasterSet: o.MasterName, Username: userOf(o.SentinelUsername, o.SentinelPassword), Password: o.SentinelPassword,
			ClientName: o.ClientName, TLSConfig: o.TLSConfig.Clone(), Dialer: c.Dialer,
		}
		c.DialCtxFn = dialing(tcp(c, each))
	}, accessOf(each)}, nil
}

// leastSilence is the shortest ReadTimeout that is taken over. A shorter one would close connections at each hiccup of the
// server; the registry itself notices a silent server after half a second, without closing anything.
const leastSilence = time.Second

// common sets what does not depend on the kind of deployment.
func common(c *rueidis.ClientOption, o *redis.Options) {
	c.Username, c.Password = userOf(o.Username, o.Password), o.Password
	c.ClientName, c.AlwaysRESP2 = o.ClientName, o.Protocol == 2
	// A caller may change it, and the service's client has the other one.
	c.TLSConfig = o.TLSConfig.Clone()
	if o.DisableIdentity || o.DisableIndentity { //nolint:staticcheck // an old setting counts, too
		c.ClientSetInfo = rueidis.DisableClientSetInfo
	}
	c.Dialer.Timeout = dialLimit(o.DialTimeout)
	if o.ReadTimeout > 0 {
		c.ConnWriteTimeout = max(o.ReadTimeout, leastSilence)
	}
}
