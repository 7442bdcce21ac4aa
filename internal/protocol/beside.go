package protocol

import (
	"strings"
	"sync/atomic"
	"time"

	"github.com/lockregistry/lockregistry/internal/clock"
	"github.com/lockregistry/lockregistry/internal/fault"
)

// beside has the keys that a call names besides its lock's key: all that the script may touch, so that a server or a proxy knows
// them before the script runs. They are in the lock's slot.
//
// A call with such keys may be refused although the script would run with the lock's key alone:
//
//   - The user lacks permission for one of the keys: NOPERM.
//   - A proxy keeps them on several servers: CROSSSLOT, or words of its own.
//   - The slot of a cluster moves, and the keys are at two nodes, or one of them does not exist: TRYAGAIN.
//
// The script has not run then. If the user lacks permission for a command, it has run, and has undone what it wrote. So the call
// is narrowed, to the lock's key alone, and sent again: it goes on without a queue. The fencing counter is then named as an
// argument: the script draws from it, or fails. A reader's call at first leaves out the queue alone, and keeps the key of its own
// lease: so the reply shows which of the two is refused. A script cannot tell these two keys apart by position, so a call without
// the key of the lease has no key of the queue either.
//
// A look at a ticket is not narrowed. Without the queue it would obtain the lock, and leave the ticket in the queue, so that a
// later release would grant the lock to the same hold once more.
//
// While a slot moves, a call that waits in a queue, or may begin one, is not narrowed, but tries again later. At the node of the
// lock's key it could begin a second queue, and the move of the first one would fail. For the same reason fencing counters are
// always keys on a cluster.
type beside struct {
	counter string   // the fencing counter; it is the second key. Empty: none, or among the others
	others  []string // keys without which the call cannot be sent: of other locks, and on a cluster the counters
	own     string   // the key of a reader's own lease; empty: none
	queue   string   // the last key; empty: none

	shape  shape
	waits  bool    // it waits in a queue, or may begin one
	narrow bool    // the counter and the queue are left out
	bare   bool    // a reader's own lease is left out, too
	why    string  // the last refusal of keys that lasts; empty: there was none
	known  *Beside // nil: what is learned is not kept
}

// shape is what the arguments of a call are like.
type shape uint8

const (
	fixed     shape = iota // the call is not narrowed
	obtaining              // of obtain.lua
	asking                 // of obtain_queued.lua: narrowed, the call is one of obtain.lua
	releasing              // of release.lua, and set_permits.lua
	renewing               // of renew.lua
	removing               // of force_unlock.lua
)

// secondKey tells a script that the fencing counter is the second key; otherwise the argument is its name.
const secondKey = "2"

// append adds the keys in the order in which scripts expect them.
func (b *beside) append(keys []string) []string {
	if b.counter != "" && !b.narrow {
		keys = append(keys, b.counter)
	}
	keys = append(keys, b.others...)
	if b.own != "" && !b.bare {
		keys = append(keys, b.own)
	}
	if b.queue != "" && !b.narrow {
		keys = append(keys, b.queue)
	}
	return keys
}

// refused narrows a call if err may say that its keys are refused. It reports whether it did.
func (c *Call) refused(err error) bool {
	if c.shape == fixed || len(c.Keys()) == 1+len(c.others) {
		return false
	}
	switch {
	case strings.HasPrefix(err.Error(), "TRYAGAIN"):
		if c.waits {
			return false
		}
		c.bare = true
	case !fault.Refusal(err) || fault.IsWrongType(err):
		return false
	default:
		c.why = err.Error()
		c.bare = c.narrow || c.counter == "" && c.queue == ""
	}
	if !c.narrow {
		c.leaveOut()
	}
	return true
}

// leaveOut narrows a call.
func (c *Call) leaveOut() {
	c.narrow = true
	switch c.shape {
	case obtaining:
		c.Args[2], c.Args[3] = "", ""
		if c.counter != "" {
			c.Args[5] = c.counter
		}
	case asking:
		given := c.given()
		args := Args{given[0], given[1], "", "", "", c.counter}
		if c.counter == "" && len(given) > 5 {
			args[5] = given[5]
		}
		if len(given) > 9 {
			args[6] = given[9]
		}
		c.Script, c.Args, c.more = c.plainly, args, nil
	case releasing:
		c.Args[2], c.Args[3] = "", ""
	case renewing:
		if c.counter != "" {
			c.Args[2] = c.counter
		}
	case removing, fixed:
	}
}

// learn notes which keys are refused, once a call that was narrowed is executed: the keys that it has left out last. Nothing is
// known about keys that it had left out before.
func (c *Call) learn(err error) {
	if c.known == nil || !fault.Answered(err) || fault.Refusal(err) {
		return
	}
	if c.bare {
		c.known.leases.note(c.known.clock, c.why)
	} else {
		c.known.queues.note(c.known.clock, c.why)
	}
}

// Beside is what a registry has learned about keys besides those of locks. While they count as refused, its calls are narrow
// from the beginning.
type Beside struct {
	clock  clock.Clock
	queues refusal // of the queues and the fencing counters
	leases refusal // of the readers' own leases
}

// NewBeside returns a Beside for a registry.
func NewBeside(c clock.Clock) *Beside { return &Beside{clock: c} }

// Refused returns why the queues of locks are refused; empty if they are not, or it is not known.
func (b *Beside) Refused() string {
	if b == nil {
		return ""
	}
	return b.queues.now(b.clock)
}

// Unqueued returns why locks of the format have no queue: the server refuses it, or, for readers, the key of their own lease.
// Empty: they have one, or it is not known.
func (f *Format) Unqueued() (why string) {
	b := f.Beside
	if b == nil {
		return ""
	}
	if why = b.queues.now(b.clock); why == "" && f.format.Side == "read" {
		why = b.leases.now(b.clock)
	}
	return why
}

// refusal is what is known about keys that may be refused.
type refusal struct {
	until atomic.Int64 // an instant: until then they count as refused
	why   atomic.Pointer[string]
}

// refusedFor is how long keys count as refused. Then one call tries them again: permissions may have been given.
const refusedFor = time.Minute

func (r *refusal) note(c clock.Clock, why string) {
	r.why.Store(&why)
	r.until.Store(int64(c.Now().Add(refusedFor)))
}

// now returns why the keys count as refused; empty if they do not.
func (r *refusal) now(c clock.Clock) string {
	if until := r.until.Load(); until == 0 || c.Now() >= clock.Instant(until) {
		return ""
	}
	return *r.why.Load()
}
