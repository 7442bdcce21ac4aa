package lockregistry_test

import (
	"testing"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry"
	"github.com/lockregistry/lockregistry/internal/redistest"
)

// A lock and unlock that nobody else wants allocate twice: the hold and its value. More would be paid by each caller.
func TestLock_Allocations(t *testing.T) { //nolint:paralleltest // what others allocate would count
	server := redistest.Start(t)
	client, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{server.Addr()}, ForceSingleClient: true})
	require.NoError(t, err)
	t.Cleanup(client.Close)
	r, err := lockregistry.New(client, "orders")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, r.Close()) })
	l := r.Obtain("42")
	once := func() {
		if err := l.Lock(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := l.Unlock(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	for range 200 { // the dedicated connection comes into use
		once()
	}
	// Timers and questions in the background allocate a little now and then, which the best of three runs leaves out.
	least := testing.AllocsPerRun(1000, once)
	for range 2 {
		least = min(least, testing.AllocsPerRun(1000, once))
	}
	most := 2.0
	if raceDetector { // under which a sync.Pool forgets things on purpose
		most++
	}
	require.LessOrEqual(t, least, most)
}
