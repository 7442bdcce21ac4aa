package lockregistry

import (
	"context"

	"github.com/lockregistry/lockregistry/internal/clock"
	"github.com/lockregistry/lockregistry/internal/dispatch"
	"github.com/lockregistry/lockregistry/internal/fault"
	"github.com/lockregistry/lockregistry/internal/hold"
	"github.com/lockregistry/lockregistry/observe"
)

// losses maps why a hold was lost to what an observer gets.
var losses = map[fault.Loss]observe.Loss{
	fault.LeaseOver:      observe.LossLeaseOver,
	fault.KeyGone:        observe.LossKeyGone,
	fault.KeyTaken:       observe.LossKeyTaken,
	fault.RenewedTooLate: observe.LossRenewedTooLate,
	fault.Forced:         observe.LossForced,
	fault.GrantedTwice:   observe.LossGrantedTwice,
}

// WithObserver makes the registry call the functions of o when it acquires, releases or loses a lock, for instance. At least one
// function must be set. Module lockotel has an observer that reports to OpenTelemetry. Default: none, which costs nothing.
func WithObserver(o observe.Observer) Option { return func(s *settings) { s.observer = &o } }

func observes(o *observe.Observer) error {
	return invalid(o != nil && o.Acquired == nil && o.Released == nil && o.Lost == nil && o.Renewing == nil && o.Deadlocked == nil,
		"WithObserver: none of the functions is set")
}

func (l *Lock) subject() observe.Subject {
	kind := observe.KindLock
	switch {
	case l.reads():
		kind = observe.KindReader
	case l.writes():
		kind = observe.KindWriter
	case l.redis.Format.Many():
		kind = observe.KindSemaphore
	}
	return observe.Subject{Path: l.Path(), Key: l.redis.Key, Kind: kind}
}

// subjectOf is subject for the events of a call or a hold. Leads: it is a candidate's or a leader's.
func (l *Lock) subjectOf(leads bool) observe.Subject {
	s := l.subject()
	if leads {
		s.Kind = observe.KindLeader
	}
	return s
}

// tellAcquired reports the end of a call to the observer, if there is one: then began is not 0. It is a function of its own, so
// that the stack of the call stays small.
func (l *Lock) tellAcquired(ctx context.Context, op string, q *request, began clock.Instant, got bool, err error) {
	if began == 0 {
		return
	}
	a := observe.Acquired{
		Subject: l.subjectOf(q.Terms.Leads), Op: op, How: q.How, Here: q.here, Redis: began.Until(l.reg.now()) - q.here,
		Wakeups: q.Woken, Err: err,
	}
	if !got {
		a.How = observe.HowNone
	}
	if ctx == nil { // bad input: the call failed with it
		ctx = context.Background()
	}
	defer l.reg.reports.dispatch.Caught("Acquired")
	l.reg.reports.observer.Acquired(ctx, a)
}

// tellOfRelease tells the observer, if there is one.
func (l *Lock) tellOfRelease(ctx context.Context, held hold.Held, how observe.End, err error) {
	if released := l.reg.reports.observer.Released; released != nil {
		defer l.reg.reports.dispatch.Caught("Released")
		released(ctx, observe.Released{Subject: l.subjectOf(held.Leads), Held: held.Owned, How: how, Err: err})
	}
}

func (l *Lock) tellLost(held hold.Held, why fault.Loss) {
	o := &l.reg.reports
	event := observe.Lost{Subject: l.subjectOf(held.Leads), Held: held.Owned, Why: losses[why]}
	tell(&o.dispatch, "Lost", o.observer.Lost, event)
}

func (r *Registry) tellRenewing(n int, failure error) {
	renewing := r.reports.observer.Renewing
	if renewing == nil {
		return
	}
	tell(&r.reports.dispatch, "Renewing", func(failure error) { // Classify calls methods of an unknown type: not with a mutex held
		renewing(observe.Renewing{Err: fault.Classify(failure), Commands: n})
	}, failure)
}

// tell calls a function of the observer in the background, if there is one.
func tell[E any](by *dispatch.Queue, name string, function func(E), event E) {
	if function != nil {
		by.Put(func() {
			defer by.Caught(name)
			function(event)
		})
	}
}
