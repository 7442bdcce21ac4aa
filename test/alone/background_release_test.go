package alone_test

import (
	"slices"
	"testing"
	"time"

	"github.com/lockregistry/lockregistry"
	"github.com/lockregistry/lockregistry/test/internal/kit"
)

// So it is with a real server.
func TestBackgroundRelease_HalvesASectionInRealTime(t *testing.T) {
	kit.RealWorldsAlone(t, func(w *kit.World) {
		const trip = 4 * time.Millisecond
		for _, rotate := range []bool{false, true} {
			dial, _ := w.Far(trip)
			normal := w.RegistryOn(w.ClientWith(dial))
			background := w.RegistryOn(w.ClientWith(dial), lockregistry.WithBackgroundRelease())
			w.Known(normal)
			w.Known(background)
			w.Await("half of the time", func() bool { // other processes use the machine, too
				before, after := w.Sections(normal, rotate), w.Sections(background, rotate)
				return float64(median(after))/float64(median(before)) <= 0.55
			})
		}
	})
}

func median(all []time.Duration) time.Duration {
	slices.Sort(all)
	return all[len(all)/2]
}
