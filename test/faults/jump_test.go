package faults_test

import (
	"context"
	"fmt"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/lockregistry/lockregistry"
	"github.com/lockregistry/lockregistry/test/internal/kit"
)

// When the round trip suddenly becomes long, no call takes more than half a second plus two round trips, even beside calls
// whose contexts end before the reply: the server is not taken for silent.
func TestSlowLink_AJumpBesideShortContexts(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ trip, short, phase time.Duration }{
		{200 * time.Millisecond, 150 * time.Millisecond, 0},
		{300 * time.Millisecond, 250 * time.Millisecond, 3700 * time.Microsecond},
		{450 * time.Millisecond, 400 * time.Millisecond, 0},
		{450 * time.Millisecond, 20 * time.Millisecond, 3700 * time.Microsecond},
	} {
		t.Run(fmt.Sprintf("%v, contexts of %v, %v later", c.trip, c.short, c.phase), func(t *testing.T) {
			kit.FakeWorld(t, func(w *kit.World) {
				dial, d := w.Far(300 * time.Microsecond)
				r := w.RegistryOn(w.ClientWith(dial, kit.OneConnection), lockregistry.WithLease(30*time.Second))
				w.KnownWell(r)
				var all sync.WaitGroup
				end := time.Now().Add(3700 * time.Millisecond)
				for i := range 3 {
					all.Go(func() {
						untilThen(w, r.Obtain("short"+strconv.Itoa(i)), c.short, time.Duration(3+7*i)*time.Millisecond, end)
					})
					all.Go(func() {
						within(w, r.Obtain("long"+strconv.Itoa(i)), c.trip, time.Duration(1+11*i)*time.Millisecond, end)
					})
				}
				w.Pass(200*time.Millisecond + c.phase)
				d.Set(c.trip)
				all.Wait()
			})
		})
	}
}

// untilThen locks and unlocks until end, with contexts that end soon.
func untilThen(w *kit.World, l *lockregistry.Lock, short, pause time.Duration, end time.Time) {
	for time.Now().Before(end) {
		ctx, cancel := context.WithTimeout(lockregistry.ContextWithOwner(w.Context()), short)
		if l.Lock(ctx) == nil {
			_ = l.Unlock(ctx)
		}
		cancel()
		<-time.After(pause)
	}
}

// within locks and unlocks until end, and checks how long each takes.
func within(w *kit.World, l *lockregistry.Lock, trip, pause time.Duration, end time.Time) {
	for time.Now().Before(end) {
		ctx := lockregistry.ContextWithOwner(w.Context())
		for _, call := range []func() error{func() error { return l.Lock(ctx) }, func() error { return l.Unlock(ctx) }} {
			begun := time.Now()
			if err := call(); err != nil {
				w.Error(err)
			}
			if took := time.Since(begun); took > 500*time.Millisecond+2*trip {
				w.Errorf("it took %v", took)
			}
		}
		<-time.After(pause)
	}
}
