package lockregistry

import (
	"context"
	"errors"
	"time"
)

// acquisition is one call's way to the hold in Redis, for who has the local half. It listens first, then tries, then
// sleeps until it is woken, the holder's lease ends, or the poll interval is over. All its tries ask for the same hold, so
// one whose answer is lost is made good by the next one.
type acquisition struct {
	lock     *Lock
	ctx      context.Context
	hold     *hold
	bid      bid
	patient  bool
	deadline instant // the last moment to begin a try, but for the first
	ear      *listener
	timer    *time.Timer
	debt     int32
	failure  error // of the last try, if it failed otherwise than because the lock is taken

	commands context.Context // for what is sent: ctx, with an end when the deadline is over
	cancel   context.CancelFunc
}

// errLate: the server granted the lock, but the answer took as long as the lease.
var errLate = errors.New("the answer of Redis came after the lease was over")

// errSilent: the server did not answer within the wait of the call.
var errSilent = errors.New("no answer of Redis within the time given by Wait")

// turnaround is long enough for a waiter in another process to wake up and take a released lock, even on a busy machine.
const turnaround = 10 * time.Millisecond

// answerGrace is how much longer than its wait a call may take when the server does not answer.
const answerGrace = 100 * time.Millisecond

// mostDebt bounds for how many others a process stands back.
const mostDebt = 16

// obtain gets the hold in Redis. When it fails nothing stays behind there: if a grant may have happened, or may happen
// yet, the scheduler removes it.
func (l *Lock) obtain(ctx context.Context, o owner, q request, deadline instant) error {
	a := acquisition{
		lock:     l,
		ctx:      ctx,
		hold:     l.newHold(q),
		patient:  q.wait != notAtAll,
		deadline: deadline,
	}
	if a.patient {
		a.debt = l.anchor().debt.Swap(0)
	}
	a.commands = cancellable(ctx)
	if deadline != never { // a server that does not answer must not make the call longer than its wait
		var limited context.Context
		limited, a.cancel = context.WithTimeout(ctx, l.reg.clock.now().until(deadline.add(answerGrace)))
		a.commands = cancellable(limited)
	}
	a.bid = bid{key: l.key, value: a.hold.value, lease: q.lease}
	if l.pair != nil && l != &l.pair.writer {
		if h := l.pair.writer.heldBy(o); h != nil {
			a.bid.under = h.value
		}
	}
	err := a.run()
	a.ear.close()
	if a.timer != nil {
		a.timer.Stop()
	}
	if a.cancel != nil {
		a.cancel()
	}
	if err != nil && a.hold.late {
		l.reg.sweep(a.hold.abandoned())
	}
	return err
}

func (a *acquisition) run() error {
	if err := a.standBack(); err != nil {
		return err
	}
	granted, _, err := a.try(true)
	if granted || err != nil {
		return err
	}
	if a.patient {
		a.ear = a.lock.reg.waker.listener(a.lock.key, a.lock.kind.layout.channel(a.lock.key))
		a.arm()
	}
	for {
		granted, left, err := a.try(false)
		if granted {
			return nil
		}
		if a.failure = err; err != nil && (!a.patient || !transient(err)) {
			return err
		}
		if err == nil && a.patient && a.arm() {
			continue // the key may have changed before
		}
		woken, err := a.sleep(left)
		if woken { // somebody has released the lock, and others may be waiting for longer
			err = a.standBack()
		}
		if err != nil {
			return err
		}
	}
}

// arm listens; see listener.arm.
func (a *acquisition) arm() bool {
	return a.ear.arm(a.ctx, min(a.lock.reg.poll, a.lock.reg.clock.now().until(a.deadline)))
}

// try asks Redis once. When somebody else holds the lock, left is what remains of their lease, if known.
func (a *acquisition) try(first bool) (granted bool, left time.Duration, err error) {
	l := a.lock
	if a.ctx.Err() != nil {
		return false, 0, ended(a.ctx)
	}
	sent := l.reg.clock.now()
	granted, left, err = l.kind.layout.obtain(a.commands, a.bid, first)
	if granted {
		if a.hold.grant(sent) {
			l.hold.Store(a.hold)
			l.anchor().lockedAt.Store(int64(sent))
			l.half().granted()
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
	case a.cancel != nil && errors.Is(err, context.DeadlineExceeded):
		err = errSilent
	case wrongType(err):
		err = errors.Join(ErrWrongType, err)
	}
	return false, left, err
}

// sleep waits until it is time for the next try, and tells whether a wake-up was the reason. It fails when there is to be
// none.
func (a *acquisition) sleep(left time.Duration) (woken bool, err error) {
	rest := a.lock.reg.clock.now().until(a.deadline)
	if !a.patient || rest <= 0 {
		if a.failure != nil { // nobody knows whether the lock is taken
			return false, a.failure
		}
		return false, errBusy
	}
	pause := min(a.lock.reg.poll, rest)
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

// debtOf is for how many others this process stands back after it released a lock because of the handoff limit. The reply
// of the release tells how many received the message, which is who waits and listens, here and elsewhere. Who polls
// cannot be seen, so it is one at least.
func (l *Lock) debtOf(reply int64) int32 {
	others := int32(max(0, min(reply, mostDebt+2))) - 1
	if l.reg.waker.subscribed(l.kind.layout.channel(l.key)) {
		others--
	}
	return min(max(others, 1), mostDebt)
}
