// Package lockgoredis makes a lock registry for a service that already has a go-redis client. The registry has connections of
// its own, made with the client's settings: address, user and password, TLS, dialer, database. So a service configures Redis
// once.
//
//	rdb := redis.NewClient(&redis.Options{Addr: "localhost:6379", Password: secret})
//	locks, err := lockgoredis.Open(ctx, rdb, "orders")
//	if err != nil {
//		return err
//	}
//	defer locks.Close()
//
// The registry only reads the settings of the go-redis client: it sends nothing over the client, and does not close it. The page
// on operations in the library's documentation lists what becomes of each setting.
package lockgoredis

import (
	"context"
	"fmt"
	"slices"

	"github.com/redis/go-redis/v9"
	"github.com/redis/rueidis"

	"github.com/lockregistry/lockregistry"
)

// Open makes a registry whose locks are the keys "prefix:path" in the Redis that rdb is for. It works like [lockregistry.Open],
// which describes ctx, prefix, opts and the errors, but takes the settings from rdb instead of a URL. A
// [lockregistry.WithClientOption] among opts sees the settings, and may change them. But rdb's own dialer makes the connections,
// with rdb's address, TLS and timeout: Open fails if an option changes InitAddress, TLSConfig or Dialer.Timeout and leaves
// DialCtxFn as it is. Set DialCtxFn to nil to connect with the changed settings. With a cluster's client such changes count,
// except that a Dialer of its own ignores TLSConfig and Dialer.Timeout: then Open fails, too. Close the registry before rdb.
//
// Rdb may be a *redis.Client or a *redis.ClusterClient:
//
//   - From redis.NewClient: the registry connects to the same address.
//   - From redis.NewFailoverClient: each new connection goes to the master that rdb finds at that moment. The registry does not
//     know the Sentinels. So after a failover it may lock on the former master until that master is demoted or gone, for about
//     ten seconds if the master was only frozen. In that time two processes may hold the same lock. [OpenFailover] asks the
//     Sentinels; use it where a lock protects something that matters.
//   - From redis.NewClusterClient: the registry connects to the masters of the same cluster.
//
// # Errors
//
// Open returns the errors of lockregistry.Open, and an error if rdb cannot be used: if it is nil, a *redis.Ring (its keys move
// silently when a shard is added or fails), a client that reads from replicas, or a cluster client with a ClusterSlots function
// of your own.
func Open(
	ctx context.Context, rdb redis.UniversalClient, prefix string, opts ...lockregistry.Option,
) (*lockregistry.Registry, error) {
	s, err := settingsOf(rdb)
	return open(ctx, s, err, prefix, opts)
}

// OpenFailover makes a registry on the master that Sentinels name, with the options that [redis.NewFailoverClient] takes.
//
// Unlike a registry that [Open] makes of such a client, this one asks the Sentinels about a master that was silent, and is told
// when they begin to replace a master. So it does not trust a master that was frozen and answers again after it was replaced.
//
// Changes by a [lockregistry.WithClientOption] count. But if o has a Dialer, it makes the connections: OpenFailover fails if an
// option changes TLSConfig or a dialer's timeout and leaves DialCtxFn as it is.
//
// # Errors
//
// It returns the errors of [lockregistry.Open], and an error for options that name no Sentinel or no master, or that read from
// replicas.
func OpenFailover(
	ctx context.Context, o *redis.FailoverOptions, prefix string, opts ...lockregistry.Option,
) (*lockregistry.Registry, error) {
	s, err := ofFailover(o)
	return open(ctx, s, err, prefix, opts)
}

func open(
	ctx context.Context, s settings, err error, prefix string, opts []lockregistry.Option,
) (*lockregistry.Registry, error) {
	if err != nil {
		return nil, fmt.Errorf("lockgoredis: open: %w", err)
	}
	first := func(c *rueidis.ClientOption) {
		s.change(c)
		if s.access != nil {
			c.AuthCredentialsFn = s.access.credentials
		}
	}
	last := func(c *rueidis.ClientOption) {
		if s.access != nil {
			s.access.finish(c)
		}
	}
	all := slices.Concat(
		[]lockregistry.Option{lockregistry.WithClientOption(first)}, opts, []lockregistry.Option{lockregistry.WithClientOption(last)},
	)
	return lockregistry.Open(ctx, s.url, prefix, all...)
}
