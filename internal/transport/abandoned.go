package transport

import (
	"sync"
	"time"
)

// abandonedCalls counts the commands that obtain, have a goroutine, and have been given up. Such a goroutine may only be about
// to send its command when the removal of what that may get is sent: so the last removal, when a registry is closed, waits for
// them. Else what it gets stays taken for a whole lease.
type abandonedCalls struct {
	mu   sync.Mutex
	n    int
	none chan struct{} // closed when there are none; nil: nobody waits for that
}

func (o *abandonedCalls) add() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.n++
}

func (o *abandonedCalls) remove() {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.n--; o.n == 0 && o.none != nil {
		close(o.none)
		o.none = nil
	}
}

// AwaitAbandoned waits until there are none, for a while.
func (t *Client) AwaitAbandoned(limit time.Duration) { t.abandoned.await(limit) }

func (o *abandonedCalls) await(limit time.Duration) {
	o.mu.Lock()
	if o.n == 0 {
		o.mu.Unlock()
		return
	}
	if o.none == nil {
		o.none = make(chan struct{})
	}
	none := o.none
	o.mu.Unlock()
	end := time.NewTimer(limit)
	defer end.Stop()
	select {
	case <-none:
	case <-end.C:
	}
}
