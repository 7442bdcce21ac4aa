package queue

import (
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry/internal/hold"
	"github.com/lockregistry/lockregistry/internal/protocol"
)

// However many permits were released in the last seconds, after a broken connection only the newest are removed once more.
func TestRemoved_PermitsFreedAtOnce(t *testing.T) {
	p := &newLock(t).path
	permits := hold.Kind{Format: protocol.NewPermits(protocol.Config{}, 1, 4), Env: p.Env}
	p.Init(p.all.Permits(permits, 1), p.Key, p.Above, p.lock, p)
	known, now := &p.all.freed, p.Clock.Now()
	for i := range 3 * mostFreed {
		p.Removed(p.all.Values+strconv.Itoa(i), now)
		require.LessOrEqual(t, len(known.all), mostFreed)
	}
	all := known.recent(now.Add(recallFor - time.Millisecond))
	require.Len(t, all, 1000)
	require.Equal(t, strconv.Itoa(3*mostFreed-1), all[999].number)
	require.Empty(t, known.recent(now.Add(recallFor)))
	p.Removed(p.all.Values+"later", now.Add(recallFor))
	require.Len(t, known.all, 1, "older ones are forgotten")
}

// The newest removal of each side of a read-write lock is known however many others are newer.
func TestRemoved_ManyReadWriteLocks(t *testing.T) {
	all := newLock(t).path.all
	kind := hold.Kind{Format: protocol.NewRead(protocol.Config{}), Env: newLock(t).path.Env}
	readers, now := make([]Path, mostFreed+1), all.Transport.Clock.Now()
	for i := range readers {
		readers[i].Init(all.Kind(kind, Reads), strconv.Itoa(i), nil, nil, &readers[i])
		readers[i].Removed(all.Values+strconv.Itoa(i+1), now)
	}
	require.Len(t, all.freed.recent(now), mostFreed)
	require.EqualValues(t, 1, readers[0].last.Load())
}

// A removal goes on until the hold has surely ended in Redis.
func TestRemoval_LastsUntilTheHoldHasEnded(t *testing.T) {
	p := &newLock(t).path
	permits := hold.Kind{Format: protocol.NewPermits(protocol.Config{Prefix: "orders"}, 1, 4), Env: p.Env}
	p.Init(p.all.Permits(permits, 1), p.Key, p.Above, p.lock, p)
	before := p.Clock.Now()
	r := p.removalOf(hold.Remains{Value: "me:1", Longest: time.Minute, Term: time.Minute})
	left := before.Until(r.Expired)
	require.GreaterOrEqual(t, left, time.Minute)
	require.Less(t, left, time.Minute+5*time.Second)
}
