package lockregistry

import (
	"context"
	"errors"
	"strconv"
	"time"

	"github.com/lockregistry/lockregistry/internal/clock"
	"github.com/lockregistry/lockregistry/internal/fault"
	"github.com/lockregistry/lockregistry/internal/queue"
)

// Observer has functions that are called when something happens inside a registry: see [WithObserver]. Any of its functions may
// be nil. They may be called by many goroutines at the same time.
//
// Acquired and Released are about a call. The goroutine of the call calls them, with the context of the call, when the
// outcome stands: they delay that call alone, and with Acquired the lease of what it has got runs. They must not end the
// goroutine.
//
// The others are about what happens in the background. One goroutine calls them, one after another, in the order of the
// events, also with the lines of [WithLogger]. They delay nothing but each other; what comes while 1024 wait is dropped, and
// logged.
//
// A panic in any of them is logged, and harms nobody.
type Observer struct {
	// Acquired is called for each call that asked for a lock, whether or not it got it: Lock, TryLock, Do, Acquire, Once, and what
	// stands on them. AcquireAll counts as a call for each path.
	Acquired func(ctx context.Context, a Acquired)

	// Released is called for each hold that its last owner has released, by Unlock or Release, or at the end of Do and Once. Its
	// context may have ended.
	Released func(ctx context.Context, r Released)

	// Lost is called for each hold that was lost, once: when it is noticed, whether or not it is ever released.
	Lost func(l Lost)

	// Renewing is called when renewals and removals in the background begin to fail, and when they succeed again: in a cluster,
	// when the first master fails, and when none does any more.
	Renewing func(r Renewing)

	// Deadlocked is called for each cycle of calls that wait for each other that is found, once; see [ErrDeadlock].
	Deadlocked func(d Deadlock)
}

// Subject is the lock that an event is about.
type Subject struct {
	Path string
	Key  string // prefix + ":" + path
	Kind string // "lock"; of a [ReadWriteLock] "reader" or "writer"
}

// Acquired is a call that asked for a lock.
type Acquired struct {
	Subject

	Op      string        // "lock", "trylock", "do", "acquire" or "once"; "do" is also for DoValue
	How     How           // how it got the lock; NotAcquired when it did not
	Here    time.Duration // how long it waited for goroutines of this process
	Redis   time.Duration // how long the rest took: Redis, and waiting for other processes
	Wakeups Wakeups       // while it waited for other processes
	Err     error         // what the call returned; nil, too, when it returned false, and another owner has the lock
}

// Waited tells whether the call waited for anybody.
func (a Acquired) Waited() bool { return a.Here > 0 || a.Wakeups != (Wakeups{}) }

// Wakeups is how often a call woke while it waited for other processes.
type Wakeups struct {
	Messages int // a release by this library made it the owner, or the next one
	Changes  int // the server, or a release by Java, announced that the key has changed
	Timeouts int // without a message: a poll, or its time to look
}

// How is how a call got its lock.
type How uint8

// The ways to get a lock. What happened elsewhere is judged by what this process can tell.
const (
	NotAcquired     How = iota // it did not
	HowFree                    // the lock was free
	HowAgain                   // its owner had it already
	HowShared                  // a reader joined others of this process
	HowHandedOver              // a goroutine of this process handed it over
	HowGranted                 // another process's release made the call the owner
	HowFoundFree               // the call waited, and found it free when it looked again
	HowFoundExpired            // the same, when the lease of its holder was over
)

// obtained is how a call got its lock whose hold Redis has given.
var obtained = [...]How{
	queue.Free: HowFree, queue.Granted: HowGranted, queue.FoundFree: HowFoundFree, queue.FoundExpired: HowFoundExpired,
}

var hows = [...]string{"none", "free", "again", "shared", "handed_over", "granted", "found_free", "found_expired"}

// String returns a short name, such as "handed_over".
func (h How) String() string { return nameOf(hows[:], h) }

// Released is a hold that its last owner has released.
type Released struct {
	Subject

	Held time.Duration // since its owner got it; a hold that readers share, since the first of them did
	How  End
	Err  error // nil, ErrLockLost, ErrUnavailable, or another error of Redis
}

// End is how a released hold ended.
type End uint8

// The ways in which a hold ends.
const (
	EndReleased   End = iota // its key was removed, or another process's waiter is the owner now
	EndHandedOver            // the next goroutine of this process has it
	EndKept                  // its path stays taken, see [AtLeast]
	EndLost                  // it was lost before
	EndUnknown               // it is not known whether it was removed; the registry tries again
)

var ends = [...]string{"released", "handed_over", "kept", "lost", "unknown"}

// String returns a short name, such as "handed_over".
func (e End) String() string { return nameOf(ends[:], e) }

// Lost is a hold that was lost.
type Lost struct {
	Subject

	Held time.Duration // as in Released
	Why  Loss
}

// Loss is why a hold was lost, in words.
type Loss string

// The reasons.
const (
	LeaseOver      Loss = "the lease is over"                                  // nobody renewed it, or Redis could not be asked
	KeyGone        Loss = "the key is gone"                                    // removed, expired, or lost by a failover
	KeyTaken       Loss = "another owner has the key"                          // the same, and another one got the lock
	RenewedTooLate Loss = "the lease was over before its renewal was answered" // the lease is too short for Redis or the network
	Forced         Loss = "the lock was removed by force"                      // by ForceUnlock of this registry
	GrantedTwice   Loss = "another server has granted it once more"            // a failover brought an old queue back
)

// Renewing is that renewals and removals in the background began to fail, or succeed again.
type Renewing struct {
	Err      error // nil: they succeed again; it matches ErrUnavailable when Redis did not answer or cannot serve
	Commands int   // how many were sent together
}

func nameOf[N ~uint8](names []string, n N) string {
	if int(n) < len(names) {
		return names[n]
	}
	return strconv.Itoa(int(n))
}

// WithObserver has the registry tell o what happens. At least one of its functions must be set. See module lockotel for one
// that reports to OpenTelemetry. Default: none, which costs nothing.
func WithObserver(o Observer) Option { return func(s *settings) { s.observer = &o } }

func observes(o *Observer) error {
	if o != nil && o.Acquired == nil && o.Released == nil && o.Lost == nil && o.Renewing == nil && o.Deadlocked == nil {
		return errors.New("WithObserver: none of the functions is set")
	}
	return nil
}

// observed is when something begins whose time an observer gets; 0 when there is none.
func (r *Registry) observed() clock.Instant {
	if r.reports.observer.Acquired == nil {
		return 0
	}
	return r.clock.Now()
}

func (l *Lock) subject() Subject {
	kind := "lock"
	switch {
	case l.reads():
		kind = "reader"
	case l.writes():
		kind = "writer"
	}
	return Subject{l.path(), l.redis.Key, kind}
}

// tellAcquired is for the end of a call that began at some time. It is apart from the call so that its stack stays small.
//
//go:noinline
func (l *Lock) tellAcquired(ctx context.Context, op string, q *request, began clock.Instant, got bool, err error) {
	a := Acquired{
		Subject: l.subject(), Op: op, How: q.how, Here: q.here, Redis: began.Until(l.reg.clock.Now()) - q.here,
		Wakeups: q.wakeups, Err: err,
	}
	if !got {
		a.How = NotAcquired
	}
	if ctx == nil { // that is what is wrong
		ctx = context.Background()
	}
	defer l.reg.reports.dispatch.Caught("Acquired")
	l.reg.reports.observer.Acquired(ctx, a)
}

// tellReleased is release with an observer.
func (l *Lock) tellReleased(ctx context.Context) (err error) { // also when the observer panics
	owned, _, _ := l.hold.Load().Held(l.reg.clock.Now())
	r := Released{Subject: l.subject(), Held: owned}
	r.How, err = l.release(ctx)
	r.Err = err
	defer l.reg.reports.dispatch.Caught("Released")
	l.reg.reports.observer.Released(ctx, r)
	return err
}

func (l *Lock) tellLost(held time.Duration, why Loss) {
	r := l.reg
	if r.reports.observer.Lost == nil {
		return
	}
	lost := Lost{Subject: l.subject(), Held: held, Why: why}
	r.reports.dispatch.Put(func() {
		defer r.reports.dispatch.Caught("Lost")
		r.reports.observer.Lost(lost)
	})
}

func (r *Registry) tellRenewing(n int, failure error) {
	if r.reports.observer.Renewing == nil {
		return
	}
	r.reports.dispatch.Put(func() {
		defer r.reports.dispatch.Caught("Renewing")
		r.reports.observer.Renewing(Renewing{fault.Classify(failure), n})
	})
}
