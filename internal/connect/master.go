package connect

import (
	"context"
	"fmt"
	"time"

	"github.com/redis/rueidis"

	"github.com/lockregistry/lockregistry/internal/fault"
)

// errReplica: it refuses every write. With its master it may be behind one address, or be promoted soon.
var errReplica = fault.Whole("it leads to a replica, and locks are on its master")

// The first and the longest pause before an address that leads to a replica is tried again.
const (
	leastPause = 50 * time.Millisecond
	mostPause  = time.Second
)

// OpenMaster is [Open] for a client that writes. While the address leads to a replica it connects anew, until ctx ends, and no
// longer than a connection may take to make: the address may lead to a master soon. Clients of clusters and of Sentinels find
// their masters themselves.
func OpenMaster(ctx context.Context, address string, option rueidis.ClientOption) (Opened, error) {
	var met error
	limit := time.After(option.Dialer.Timeout)
	for pause := leastPause; ; pause = min(2*pause, mostPause) {
		o, err := Open(ctx, address, option)
		if err != nil && met != nil && ctx.Err() != nil {
			return Opened{}, fault.WithEnd(ctx, met)
		}
		if err != nil || o.Client.Mode() != rueidis.ClientModeStandalone {
			return o, err
		}
		if role := roleOf(ctx, o.Client, &option); role != "replica" {
			o.Master = role == "master"
			return o, nil
		}
		o.Client.Close()
		met = fault.AsUnavailable(fmt.Errorf("cannot connect to %s: %w", Show(address), errReplica))
		select {
		case <-time.After(pause):
		case <-limit:
			return Opened{}, met
		case <-ctx.Done():
			return Opened{}, fault.WithEnd(ctx, met)
		}
	}
}

// roleOf asks a server for its role; empty: it does not say, as before Redis 6.2 and behind some proxies.
func roleOf(ctx context.Context, client rueidis.Client, o *rueidis.ClientOption) string {
	ctx, end := context.WithTimeout(ctx, o.ConnWriteTimeout)
	defer end()
	about, _ := client.Do(ctx, client.B().Arbitrary("HELLO").Build()).AsMap()
	said := about["role"]
	role, _ := said.ToString()
	return role
}
