package lockregistry

import (
	"context"
	"errors"
	"time"
)

// acquisition is one call's way to the hold in Redis, for who has the local half, once it is not to be had at the first
// try. It listens first, then tries, then sleeps until it is woken, the holder's lease ends, or the poll interval is over.
// All its tries ask for the same hold, so one whose answer is lost is made good by the next one.
type acquisition struct {
	attempt
	patient  bool
	deadline instant // the last moment to begin a try, but for the first
	ear      *listener
	timer    *time.Timer
	debt     int32
	failure  error // of the last try, if it failed otherwise than because the lock is taken
	waits    bool  // the local half knows that this call waits
}

// attempt is what all tries of a call have in common.
type attempt struct {
	lock     *Lock
	hold     *hold
	under    string          // to read: the value of the hold with which the same owner writes already
	ctx      context.Context // the caller's
	commands context.Context // for what is sent: ctx, or with an end when the deadline is over
	limited  bool            // it has such an end
}

// errLate: the server granted the lock, but the answer took as long as the lease.
var errLate = errors.New("the answer of Redis came after the lease was over")

// errSilent: the server did not answer within the wait of the call.
var errSilent = errors.New("no answer of Redis within the time given by Wait")

// turnaround is long enough for a waiter in another process to wake up and take a released lock, even on a busy machine.
const turnaround = 10 * time.Millisecond

// answerGrace is how much longer than its wait a call may take when the server does not answer.
const answerGrace = time.Second

// mostDebt bounds for how many others a process stands back.
const mostDebt = 16

// obtain gets the hold in Redis. When it fails nothing stays behind there: if a grant may have happened, or may happen
// yet, the scheduler removes it.
func (l *Lock) obtain(ctx context.Context, q request, deadline instant) (err error) {
	first := attempt{lock: l, hold: l.newHold(q), ctx: ctx, commands: cancellable(ctx)}
	switch {
	case l.pair == nil:
	case l == &l.pair.writer:
		l.pair.wrote = first.hold.value
	default:
		first.under = l.pair.under()
	}
	granted, tried := false, deadline == never && l.anchor().owed.Load() == 0
	if tried { // most locks are free
		granted, _, err = first.try(true)
	}
	if !granted && err == nil {
		err = l.pursue(first, tried, q.wait != notAtAll, deadline)
	}
	if err != nil && first.hold.late {
		l.reg.sweep(first.hold.abandoned())
	}
	return err
}

// pursue goes on until the hold is granted, or not to be had.
func (l *Lock) pursue(first attempt, tried, patient bool, deadline instant) error {
	a := acquisition{attempt: first, patient: patient, deadline: deadline}
	defer a.end()
	if deadline != never { // a server that does not answer must not make the call longer than its wait
		limited, cancel := context.WithTimeout(a.ctx, l.reg.clock.now().until(deadline.add(answerGrace)))
		defer cancel()
		a.commands, a.limited = cancellable(limited), true
	}
	if !tried {
		if patient {
			a.debt = l.debt(a.commands)
		}
		if err := a.standBack(); err != nil {
			return err
		}
		if granted, _, err := a.try(true); granted || err != nil {
			return err
		}
	}
	if patient {
		a.ear = l.reg.waker.listener(l.key, l.kind.layout.channel(l.key))
		a.arm()
	}
	var looked instant // when the last thorough try began
	for quick := false; ; {
		if !quick {
			looked = l.reg.clock.now()
		}
		granted, left, err := a.try(quick)
		if granted {
			return nil
		}
		if a.failure = err; err != nil && (!a.patient || !transient(err)) {
			return err
		}
		if err == nil && a.patient {
			seen := a.arm()
			certain := seen.armed && seen.taken && a.exclusive()
			if seen.armed != certain || quick && !certain {
				// The key may have changed before, or may not be in the way, or is not known to be there.
				if err := a.over(); err != nil {
					return err
				}
				quick = quick && seen.armed
				continue
			}
			if certain {
				left = seen.left
			}
		}
		woken, err := a.sleep(left)
		if woken { // somebody has released the lock, and others may be waiting for longer
			err = a.standBack()
		}
		if err != nil {
			return err
		}
		// The key is free, most likely, or another waiter was quicker; then arming shows what is left of their lease. But
		// what only a thorough try finds out must not wait for longer than a poll interval.
		quick = woken && a.exclusive() && a.ear.looks() && l.reg.clock.now() < looked.add(l.reg.poll)
	}
}

// exclusive tells whether a key that is there is surely in the way. Readers share it with each other; and after a try whose
// answer is lost it may be this very hold's.
func (a *acquisition) exclusive() bool {
	return !a.hold.late && (a.lock.pair == nil || a.lock == &a.lock.pair.writer)
}

// over is why there is to be no other try, if so.
func (a *acquisition) over() error {
	if err := a.lock.stopped(a.ctx); err != nil {
		return err
	}
	if a.patient && a.lock.reg.clock.now() < a.deadline {
		return nil
	}
	if a.failure != nil { // nobody knows whether the lock is taken
		return a.failure
	}
	return errBusy
}

func (a *acquisition) end() {
	a.ear.close()
	if a.timer != nil {
		a.timer.Stop()
	}
}

// arm listens; see listener.arm.
func (a *acquisition) arm() sight {
	return a.ear.arm(a.ctx, min(a.lock.reg.poll, a.lock.reg.clock.now().until(a.deadline)))
}

// try asks Redis once, quickly when the key is most likely free; see layout.obtain. When somebody else holds the lock, left
// is what remains of their lease, if known.
func (a *attempt) try(quick bool) (granted bool, left time.Duration, err error) {
	l := a.lock
	if a.ctx.Err() != nil {
		return false, 0, ended(a.ctx)
	}
	sent := l.reg.clock.now()
	granted, left, err = l.kind.layout.obtain(a.commands, bid{l.key, a.hold.value, a.hold.lease, a.under}, quick)
	if granted {
		if a.hold.grant(sent) {
			l.hold.Store(a.hold)
			l.anchor().lockedAt.Store(int64(sent))
			if l.half().granted() {
				l.attend(true)
			}
			return true, 0, nil
		}
		err = errLate
		a.hold.late = true
		return false, 0, err
	}
	a.hold.late = a.hold.late || unknown(err)
	switch {
	case err != nil && a.ctx.Err() != nil:
		err = ended(a.ctx)
	case a.limited && errors.Is(err, context.DeadlineExceeded):
		err = errSilent
	case wrongType(err):
		err = errors.Join(ErrWrongType, err)
	}
	return false, left, err
}

// sleep waits until it is time for the next try, and tells whether a wake-up was the reason. It fails when there is to be
// none.
func (a *acquisition) sleep(left time.Duration) (woken bool, err error) {
	if err := a.over(); err != nil {
		return false, err
	}
	pause := min(a.lock.reg.poll, a.lock.reg.clock.now().until(a.deadline))
	if left > 0 { // Redis counts whole milliseconds, and removes a key after its last one
		pause = min(pause, left+time.Millisecond)
	}
	return a.pause(pause, a.ear.wakeup())
}

// standBack gives others their chance. This process has had the lock for as long as its goroutines may hand it to each
// other and has released it for that reason, so now, and each time that another one releases it, until all who were
// waiting had their turn, it leaves them the time to get there first.
func (a *acquisition) standBack() error {
	if a.debt == 0 {
		return nil
	}
	a.debt--
	_, err := a.pause(min(a.lock.reg.standBack, max(0, a.lock.reg.clock.now().until(a.deadline))), nil)
	return err
}

// pause waits for a while, or until it is woken. It fails when the context or the registry ends first.
func (a *acquisition) pause(d time.Duration, wake <-chan struct{}) (woken bool, err error) {
	if !a.waits {
		a.waits = true
		a.lock.half().waits()
	}
	if a.timer == nil {
		a.timer = time.NewTimer(d)
	} else {
		a.timer.Reset(d)
	}
	select {
	case <-a.timer.C:
		return false, nil
	case <-wake:
		return true, nil
	case <-a.ctx.Done():
		return false, ended(a.ctx)
	case <-a.lock.reg.closed:
		return false, ErrClosed
	}
}

// owe notes for how many others this process is to stand back, having released a lock because of the handoff limit. The
// reply of the release tells how many received the message.
func (l *Lock) owe(reply int64) {
	others := max(0, reply-1)
	if others > 0 && l.reg.waker.subscribed(l.kind.layout.channel(l.key)) {
		others--
	}
	l.anchor().owed.Store(int32(min(others, mostDebt)) + 1)
}

// debt is for how many others this process stands back, if it is to: those who received the message, and those who wait
// without receiving any, here and elsewhere. Who polls cannot be seen, so it is one at least.
func (l *Lock) debt(ctx context.Context) int32 {
	owed := l.anchor().owed.Swap(0)
	if owed == 0 {
		return 0
	}
	others := int64(owed-1) + l.reg.waker.attendants(ctx, l.kind.layout.channel(l.key))
	return int32(min(max(others, 1), mostDebt))
}
