package browser

import (
	"testing"
	"time"
)

// How many wait is one number in the list, in the dialog and in the sum: calls in the queue of Redis, and within processes.
func TestWaitingIsOneNumber(t *testing.T) {
	source := &fake{}
	lock := made("a", 3)
	lock.Holders[0].Behind, lock.Waiters[1].Behind = 1, 2
	source.set(lock)
	b := open(t, serve(t, source), 1200, 900)
	b.await(`document.querySelector("#rows .row:not([hidden]) .queued")?.textContent === "6"`)
	b.text("#waiters-chart", "6")
	b.click("#rows .row")
	b.text("#queue-title", "Queue: 6 waiting, of them 3 within processes")
	lock.Holders[0].Behind, lock.Waiters, lock.WaiterCount = 4, nil, 0
	lock.Holders[0].BehindSince = time.Now()
	source.set(lock)
	b.text("#queue-title", "Queue: 4 waiting, of them 4 within processes")
	b.quiet()
}
