package connect

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/redis/rueidis"

	"github.com/lockregistry/lockregistry/internal/clock"
	"github.com/lockregistry/lockregistry/internal/fault"
)

// errReplica: a replica refuses every write. It may be behind one address with its master, or be promoted soon.
var errReplica = fault.Whole("it leads to a replica, but locks are on its master: name the master")

// errSentinel: a Sentinel knows none of the commands that locks need.
var errSentinel = explained{
	"it is a Sentinel: name the master that it watches, as in redis://host:26379?master_set=NAME", fault.Lasting,
}

// dialsFor is how long an address that leads to a replica is tried if dialing has no limit: as long as rueidis dials by default.
const dialsFor = 5 * time.Second

// OpenMaster is [Open] for a client that writes. While the address leads to a replica it connects anew, since the address may
// lead to a master soon. It gives up when ctx ends, or after the time that making a connection may take. Clients of clusters
// and of Sentinels find their masters themselves.
func OpenMaster(ctx context.Context, address string, option rueidis.ClientOption) (Opened, error) {
	limit, end := context.WithTimeout(ctx, cmp.Or(option.Dialer.Timeout, dialsFor))
	defer end()
	o, err := openMaster(ctx, address, option)
	met := err // the first attempt's error says more than that a later attempt took too long
	for tries := 1; errors.Is(err, errReplica); tries++ {
		if !clock.Rest(limit, clock.Pause(tries, clock.MostPause)) {
			return Opened{}, fault.WithEnd(ctx, met)
		}
		if o, err = openMaster(limit, address, option); err != nil && limit.Err() != nil {
			return Opened{}, fault.WithEnd(ctx, met)
		}
	}
	return o, err
}

// openMaster tries once. It fails with errReplica where the address leads to a replica, and with errSentinel at a Sentinel.
func openMaster(ctx context.Context, address string, option rueidis.ClientOption) (Opened, error) {
	o, err := Open(ctx, address, option)
	if err != nil || o.Client.Mode() != rueidis.ClientModeStandalone {
		return o, err
	}
	switch role := roleOf(ctx, o.Client, &option); {
	case role == "replica":
		o.Client.Close()
		return Opened{}, fault.AsUnavailable(fmt.Errorf("cannot connect to %s: %w", Show(address), errReplica))
	case role == "sentinel":
		o.Client.Close()
		return Opened{}, fmt.Errorf("cannot connect to %s: %w", Show(address), errSentinel)
	case role == "" && ctx.Err() != nil: // there was no time for its answer
		o.Client.Close()
		return Opened{}, fmt.Errorf("cannot connect to %s: %w", Show(address), fault.Ended(ctx))
	default:
		o.Master = role == "master"
		return o, nil
	}
}

// roleOf asks a server for its role. It is empty if the server does not say it, as before Redis 6.2 and behind some proxies. For
// a Sentinel it is the mode, since Sentinels have no role.
func roleOf(ctx context.Context, client rueidis.Client, o *rueidis.ClientOption) string {
	limit := o.ConnWriteTimeout
	if limit <= 0 { // rueidis has a default, and takes a negative one for no limit
		limit = dialsFor
	}
	ctx, end := context.WithTimeout(ctx, limit)
	defer end()
	about, _ := client.Do(ctx, client.B().Arbitrary("HELLO").Build()).AsMap()
	for _, of := range []string{"role", "mode"} {
		said := about[of]
		if role, _ := said.ToString(); role != "" {
			return role
		}
	}
	return ""
}
