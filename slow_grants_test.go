package lockregistry_test

import (
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/lockregistry/lockregistry"
)

// A hand-over takes what the round trips need, whatever the waiting call does when the lock is released: half of one to the
// server, half of one for the message, one for what the call asks at that moment, and one to make the lease long.
func TestSlowLink_GrantsFromFarAwayAreTaken(t *testing.T) {
	t.Parallel()
	eachTrip(t, func(w *world, trip time.Duration, registry func(...lockregistry.Option) *lockregistry.Registry) {
		w.withQueues()
		a, b := registry(lockregistry.WithRenewal()), registry(lockregistry.WithRenewal())
		w.known(a)
		var all sync.WaitGroup
		for i := range 16 {
			all.Go(func() {
				first, second := lockregistry.NewOwner(w.Context()), lockregistry.NewOwner(w.Context())
				path := "path " + strconv.Itoa(i)
				mine, other := a.Obtain(path), b.Obtain(path)
				if err := mine.Lock(first); err != nil {
					w.Error(err)
					return
				}
				waits := make(chan error, 1)
				var entered time.Time
				go func() {
					err := other.Lock(second)
					entered = time.Now()
					waits <- err
				}()
				<-time.After(8*trip + time.Duration(i)*trip/8)
				released := time.Now()
				if err := mine.Unlock(first); err != nil {
					w.Error(err)
				}
				if err := <-waits; err != nil || entered.Sub(released) > 3*trip+20*time.Millisecond {
					w.Errorf("path %d: %v after %v", i, err, entered.Sub(released))
				}
				<-time.After(9 * time.Second)
				if err := other.Unlock(second); err != nil {
					w.Errorf("path %d: %v", i, err)
				}
			})
		}
		all.Wait()
		w.pass(2 * trip)
		w.leftNothing()
	})
}
