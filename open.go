package lockregistry

import (
	"context"
	"errors"
	"fmt"
	"log/slog"

	"github.com/lockregistry/lockregistry/internal/connect"
	"github.com/lockregistry/lockregistry/internal/fault"
	"github.com/lockregistry/lockregistry/internal/sentinel"
	"github.com/lockregistry/lockregistry/internal/shares"
	"github.com/lockregistry/lockregistry/internal/transport"
)

const ownBuffer = 32 << 10 // bytes, of a connection of Open, each way

// onClient is what all registries on one client share.
type onClient struct {
	*transport.Client
	remover
}

var clients shares.Of[*onClient]

// Open connects to the Redis that url names, and makes a registry whose locks are the keys "prefix:path" there:
//
//	redis://user:password@host:6379/0                 one server, database 0
//	rediss://host:6379                                with TLS
//	redis://host:6379?addr=host2:6379&addr=host3:6379  a cluster, by some of its nodes
//	redis://host:26379?addr=host2:26379&master_set=m  the master m that Sentinels name
//	unix:///run/redis.sock?db=0                       a socket
//
// The registry has its own client. [Registry.Close] and [Registry.Shutdown] close it, but not before the locks that are still
// held are unlocked, or their leases are over. To use your own client, see [New]. Ctx limits only Open itself.
//
// # URLs
//
// The default port is 6379; each addr needs a port. Write special characters in user or password as %XX. [rueidis.ParseURL] lists
// further parameters. Of these, two are Go durations, 5 s by default:
//
//   - dial_timeout=2s limits how long making a connection may take
//   - write_timeout=2s limits how long a connection may be silent while a command waits
//
// With TLS, the certificate of each node of a cluster must be for the first host of the URL. With Sentinels, the certificate of
// each server and Sentinel must be for its own address, as the Sentinels name it.
//
// For settings that a URL cannot express, see [WithClientOption]. If the server, or a proxy, refuses RESP3, the client speaks
// RESP2, and the log says so.
//
// # Sentinel
//
// The URL's user and password are not used for Sentinels, but TLS (rediss) is. With master_set, the registry also keeps a
// connection to each Sentinel. It asks the Sentinels about a master that was silent, and is told when they begin to replace a
// master. So the registry does not trust a master that was frozen and answers again after it was replaced. A master that was
// silent is trusted once most Sentinels vouch for it. If most Sentinels do not answer, or they disagree, the master is trusted 10
// s after it answers again, in some cases after 20 s or 3 minutes. Open waits for the first answers of the Sentinels, but no
// longer than 3 s.
//
// # Errors
//
//   - [ErrUnavailable], when no server answers, or none can serve now; joined with the error of ctx, when that ends first.
//     Without a deadline, Open takes dial_timeout for each server that does not answer. A single server that is a replica counts
//     as one that cannot serve: Open asks it again, for at most dial_timeout, since the address may soon lead to a master.
//   - an error that says that the server refuses the user or a command, that it is a Sentinel, or that a proxy does not know
//     HELLO
//   - bad input, before anything is sent: url cannot be read, prefix is empty, ctx is nil, or an option's value is out of bounds.
//     The error lists everything that is wrong.
//
// When Open fails, it leaves no connection behind, and no goroutine except one that is in a function of yours. No error contains
// the password, or the user, unless the server's reply names the user. If url has no user and no password, an error does not name
// a host that was not found, since that text may be one of the two.
func Open(ctx context.Context, url, prefix string, opts ...Option) (*Registry, error) {
	r, err := open(ctx, url, prefix, opts)
	if err != nil {
		return nil, fmt.Errorf("lockregistry: open: %w", err)
	}
	return r, nil
}

func open(ctx context.Context, url, prefix string, opts []Option) (*Registry, error) {
	s, err := settingsOf(opts)
	if ctx == nil {
		err = fault.Join(err, fault.NilContext)
	}
	option, unreadable := connect.Parse(url)
	if err = fault.Join(err, unreadable, s.check(prefix)); err != nil {
		return nil, err
	}
	// One connection is enough for all commands, since they are short.
	option.PipelineMultiplex, option.ReadBufferEachConn, option.WriteBufferEachConn = -1, ownBuffer, ownBuffer
	for _, change := range s.changes {
		change(&option)
	}
	if s.sentinels != nil {
		return nil, errors.New("WithSentinels: it is for New only; Open knows the Sentinels")
	}
	if err := checkClient("WithClientOption", &option); err != nil {
		return nil, err
	}
	option.DisableCache = true
	var watch *sentinel.Watch
	if option.Sentinel.MasterSet != "" {
		each := connect.Sentinels(&option)
		watch = sentinel.New(each, option.Sentinel.MasterSet)
		option.DialCtxFn = watch.Tracked(each.DialCtxFn)
	}
	opened, err := connect.OpenMaster(ctx, url, option)
	switch {
	case err == nil:
		r := newRegistry(opened.Client, prefix, &s)
		r.owns = true
		r.transport.Sole(option.SelectDB)
		r.transport.Greeted(opened.Greeting, option.PipelineMultiplex < 0 && !option.DisableAutoPipelining)
		if opened.Master {
			r.transport.LedToMaster()
		}
		if opened.Note != "" {
			r.reports.dispatch.Log(slog.LevelWarn, opened.Note)
		}
		if watch != nil {
			r.transport.LedBySentinel()
			select {
			case <-r.transport.Watch(watch, r.reports.dispatch.Log): // otherwise its first calls would wait
			case <-ctx.Done():
			}
		}
		return r, nil
	case ctx.Err() != nil:
		return nil, fault.AsUnavailable(err)
	default:
		return nil, fault.Classify(err)
	}
}
