package page_test

import (
	"fmt"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry/inspect"
	"github.com/lockregistry/lockregistry/observe"
)

// The processes of a semaphore are counted, not their holds: by label, else by the name of the hold. Holds that are not listed
// count one by one, and what is kept after its release is apart.
func TestProcessesWithPermits(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		source := newFake()
		lock := someLock("partner", 0)
		lock.Kind, lock.HolderCount, lock.Holders = observe.KindSemaphore, 9, nil
		one := observe.Label{Registry: "r1", Host: "web-1", PID: 1}
		again, other := observe.Label{Registry: "r2", Host: "web-1", PID: 1}, observe.Label{Registry: "r3", Host: "web-2", PID: 1}
		for i, of := range []observe.Label{one, one, again, other, {}, {}} {
			lock.Holders = append(lock.Holders, inspect.Holder{Holder: fmt.Sprint("r9:", i), Label: of, Permits: 1})
		}
		lock.Holders = append(lock.Holders, inspect.Holder{Holder: "r1:17:atleast", Label: one, Permits: 1, Kept: true})
		source.set(lock)
		b := look(t, newPage(t, source))
		synctest.Wait()
		require.Contains(t, b.read(), `"holders":6,`, "two by their labels, one by the name of its holds, one kept, two not listed")

		lock.Kind = observe.KindReadWrite
		source.set(lock)
		b = look(t, newPage(t, source))
		synctest.Wait()
		require.Contains(t, b.read(), `"holders":9,`, "readers are one each")
	})
}
