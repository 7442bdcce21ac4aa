package torture

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/lockregistry/lockregistry"
)

// share locks one path to read, or to write, or first one and then the other, and stays for a while.
func (w *worker) share(both readWrite) {
	path := w.random.IntN(w.Paths)
	if w.chance(60) {
		v := w.to(both.reader(), path)
		v.Reads = true
		if !w.enter(v, w.lease()) {
			return
		}
		w.again(v)
		w.inside(v)
		w.ask(both, v)
		w.leave(v)
		w.rest()
		return
	}
	v := w.to(both, path)
	if !w.enter(v, w.lease()) {
		return
	}
	w.again(v)
	w.inside(v)
	if w.chance(35 + w.Slow) {
		w.readUnder(both, v)
	} else {
		w.leave(v)
	}
	w.rest()
}

// readUnder has a writer read as well, and then give up writing, or reading.
func (w *worker) readUnder(both readWrite, writing *visit) {
	reading := w.to(both.reader(), writing.Path)
	reading.owner, reading.Under, reading.Reads = writing.owner, writing.Hold, true
	if !w.enter(reading, w.lease()) {
		writing.Refused = writing.believes() && reading.Refused
		w.leave(writing)
		return
	}
	writing.believes() // so that there is no gap in what it believes
	if w.chance(25) {
		w.inside(reading)
		w.leave(reading)
		writing.believes()
		w.leave(writing)
		return
	}
	if w.chance(20) {
		w.linger(writing, reading)
	}
	w.leave(writing)
	w.ask(both, reading)
	w.again(reading)
	if w.chance(2 * w.Slow) {
		w.linger(reading)
	}
	w.inside(reading)
	w.leave(reading)
}

// linger keeps both holds, perhaps for longer than the lease of one of them.
func (w *worker) linger(all ...*visit) {
	for end := time.Now().Add(w.some(2 * w.Of.Lease)); time.Now().Before(end); {
		w.pause(2 * time.Millisecond)
		for _, v := range all {
			v.believes()
		}
	}
}

// lease is one of several lengths, or 0 for the default.
func (w *worker) lease() time.Duration {
	if w.chance(50) {
		return 0
	}
	return []time.Duration{200 * time.Millisecond, 300 * time.Millisecond, 600 * time.Millisecond, time.Second}[w.random.IntN(4)]
}

// again sometimes sets the lease anew, or locks once more and undoes that.
func (w *worker) again(v *visit) {
	if !w.ours {
		return
	}
	ctx, cancel := context.WithTimeout(v.owner, w.Of.Lease)
	defer cancel()
	switch n := w.random.IntN(100); {
	case n < 6:
		to := max(w.lease(), 200*time.Millisecond)
		v.lease = min(v.lease, to)
		if err := v.by.renew(ctx, v.path, to); errors.Is(err, lockregistry.ErrNotOwner) {
			v.Wrong = fmt.Sprint("renewing failed: ", err)
		}
	case n < 12:
		ok, err := v.by.lock(ctx, v.path, 0, 0)
		if ok {
			err = v.by.unlock(v.owner, v.path)
		} else if err == nil {
			v.Wrong = "refused what it holds already"
		}
		if errors.Is(err, lockregistry.ErrNotOwner) {
			v.Wrong = fmt.Sprint("locking again failed: ", err)
		}
	}
}

// ask sometimes asks to write while reading, which must be refused at once.
func (w *worker) ask(both readWrite, v *visit) {
	if !w.ours || !w.chance(5) {
		return
	}
	if err := both.upgrade(v.owner, v.path); err != nil {
		v.Wrong = err.Error()
	}
}
