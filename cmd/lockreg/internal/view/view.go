// Package view has the JSON form of locks, for the command line and the page. Times are RFC 3339 in UTC with microseconds,
// durations are whole milliseconds. Unknown values are null.
package view

import (
	"iter"
	"net/url"
	"strings"
	"time"

	"github.com/lockregistry/lockregistry/cmd/lockreg/internal/printable"
	"github.com/lockregistry/lockregistry/inspect"
	"github.com/lockregistry/lockregistry/observe"
)

// Lock is a path and everybody who holds it or waits for it.
type Lock struct {
	Path   string `json:"path"`
	ID     string `json:"id"` // the path, see ID
	Key    string `json:"key"`
	Kind   string `json:"kind"`   // lock, readwrite, semaphore, too long, or nothing: nobody holds it and nobody waits
	Layout string `json:"layout"` // spring or redisson

	Permits int `json:"permits"` // of a semaphore: how many there are

	Holders     []Holder `json:"holders"`     // 100 at most
	HolderCount int      `json:"holderCount"` // all of them
	Waiters     []Waiter `json:"waiters"`     // in order, 100 at most
	WaiterCount int      `json:"waiterCount"` // all of them
	Waiting     int      `json:"waiting"`     // see Waiting

	TooLong []string `json:"tooLong"` // what is too long to be shown: see inspect.Lock
}

// Holder is a hold of a lock: the only one, or one of several readers.
type Holder struct {
	Holder  string     `json:"holder"`  // as in Redis, the value or the field of the key
	ID      string     `json:"id"`      // the same, see ID
	Label   *Label     `json:"label"`   // null: it says nothing of itself
	Who     string     `json:"who"`     // for people, see Who
	Shared  bool       `json:"shared"`  // a reader
	Permits int        `json:"permits"` // of a semaphore: how many it has
	Since   *time.Time `json:"since"`   // when it asked for the lock
	Granted *time.Time `json:"granted"`
	Behind  int        `json:"behind"` // calls of its process that wait and are not among the waiters

	BehindSince *time.Time `json:"behindSince"` // since when the first of them waits

	LeaseMS *int64 `json:"leaseMs"` // the rest of the lease; null: it has no end
	Token   uint64 `json:"token"`   // the last fencing token of the path, the holder's or a later one; 0: none
	Kept    bool   `json:"kept"`    // nobody holds it: the path is kept for a while after its release

	RenewedMS int64 `json:"renewedMs"` // the lease that its process sets anew each third of it; 0: not known, or not renewed
	OverdueMS int64 `json:"overdueMs"` // how late that is; 0: it is not
	SilentMS  int64 `json:"silentMs"`  // for how long its process has renewed nothing, and should have; 0: not so, or not known
}

// Waiter is a call that waits for a lock.
type Waiter struct {
	Registry string     `json:"registry"`
	Label    *Label     `json:"label"`
	Who      string     `json:"who"`
	Shared   bool       `json:"shared"`
	Permits  int        `json:"permits"`
	Since    *time.Time `json:"since"`
	Gone     bool       `json:"gone"`    // nobody listens to its channel
	Standby  bool       `json:"standby"` // it waits to lead
	Behind   int        `json:"behind"`  // further calls of its process that wait

	BehindSince *time.Time `json:"behindSince"` // since when the first of them waits
}

// Label says which process a registry is in.
type Label struct {
	Registry string `json:"registry"`
	Host     string `json:"host"`
	PID      int    `json:"pid"`
	Name     string `json:"name"`
}

// Deadlock is a cycle: each call waits for a path that the next one holds, the last one for a path of the first.
type Deadlock struct {
	Waits []Wait `json:"waits"`
}

// Wait is one call of a deadlock.
type Wait struct {
	Path  string     `json:"path"` // what it waits for
	ID    string     `json:"id"`   // the same, see ID
	Kind  string     `json:"kind"`
	Owner string     `json:"owner"`
	Holds []string   `json:"holds"`
	IDs   []string   `json:"holdIds"` // the same
	Label *Label     `json:"label"`
	Who   string     `json:"who"` // for people, see Process
	Since *time.Time `json:"since"`
}

// ID is a text of Redis, percent-encoded: all bytes but letters, digits, and -_.~ are %XX. It is another one for every other
// text, also where that is no UTF-8, which JSON cannot have, and whose bytes are shown as \xff. It can stand in a query.
func ID(text string) string { return strings.ReplaceAll(url.QueryEscape(text), "+", "%20") }

// OfID is the inverse of ID.
func OfID(id string) (string, error) { return url.PathUnescape(id) }

// Waiting is how many calls wait for a lock: those with a place in the queue of Redis, also of processes that are gone, until
// their turn comes; and those that wait within the processes of the holders and waiters that are named.
func Waiting(info inspect.Lock) int {
	n := info.WaiterCount
	for _, h := range info.Holders {
		n += h.Behind
	}
	for _, w := range info.Waiters {
		n += w.Behind
	}
	return n
}

// WaitsSince iterates over the times since when the listed calls wait, and the first ones within their processes. It leaves out
// standbys of a leader, which wait for ever, and calls of dead processes, which wait for nothing.
func WaitsSince(info inspect.Lock) iter.Seq[time.Time] {
	return func(yield func(time.Time) bool) {
		for _, h := range info.Holders {
			if h.Silent == 0 && !h.BehindSince.IsZero() && !yield(h.BehindSince) {
				return
			}
		}
		for _, w := range info.Waiters {
			for _, since := range []time.Time{w.Since, w.BehindSince} {
				if !w.Gone && !w.Standby && !since.IsZero() && !yield(since) {
					return
				}
			}
		}
	}
}

// OfLock is the view of a lock. Empty lists are [], never null.
func OfLock(info inspect.Lock) Lock {
	lock := Lock{
		Path: printable.Valid(info.Path), ID: ID(info.Path), Key: printable.Valid(info.Key),
		Kind: string(info.Kind), Layout: string(info.Layout), Permits: info.Permits,
		Holders: make([]Holder, 0, len(info.Holders)), HolderCount: info.HolderCount,
		Waiters: make([]Waiter, 0, len(info.Waiters)), WaiterCount: info.WaiterCount, Waiting: Waiting(info),
		TooLong: append([]string{}, info.TooLong...),
	}
	for _, h := range info.Holders {
		lock.Holders = append(lock.Holders, Holder{
			Holder: printable.Valid(h.Holder), ID: ID(h.Holder), Label: ofLabel(h.Label), Who: Who(h),
			Shared: h.Shared, Permits: h.Permits, Since: OfTime(h.Since), Granted: OfTime(h.Granted), LeaseMS: ofLease(h.Lease),
			Token: h.Token, Kept: h.Kept, Behind: h.Behind, BehindSince: OfTime(h.BehindSince), RenewedMS: h.Renewed.Milliseconds(),
			OverdueMS: h.Overdue().Milliseconds(), SilentMS: h.Silent.Milliseconds(),
		})
	}
	for _, w := range info.Waiters {
		lock.Waiters = append(lock.Waiters, Waiter{
			Registry: printable.Valid(w.Registry), Label: ofLabel(w.Label), Who: WhoWaits(w), Shared: w.Shared, Permits: w.Permits,
			Since: OfTime(w.Since), Gone: w.Gone, Standby: w.Standby, Behind: w.Behind,
			BehindSince: OfTime(w.BehindSince),
		})
	}
	return lock
}

// OfDeadlocks is the view of deadlocks. Empty lists are [], never null.
func OfDeadlocks(found []observe.Deadlock) []Deadlock {
	deadlocks := make([]Deadlock, 0, len(found))
	for _, d := range found {
		deadlock := Deadlock{Waits: make([]Wait, 0, len(d.Waits))}
		for _, w := range d.Waits {
			wait := Wait{
				Path: printable.Valid(w.Path), ID: ID(w.Path), Kind: string(w.Kind), Owner: printable.Valid(w.Owner),
				Holds: make([]string, 0, len(w.Holds)), IDs: make([]string, 0, len(w.Holds)),
				Label: ofLabel(w.Label), Who: Process(w.Label), Since: OfTime(w.Since),
			}
			for _, path := range w.Holds {
				wait.Holds, wait.IDs = append(wait.Holds, printable.Valid(path)), append(wait.IDs, ID(path))
			}
			deadlock.Waits = append(deadlock.Waits, wait)
		}
		deadlocks = append(deadlocks, deadlock)
	}
	return deadlocks
}

func ofLabel(l observe.Label) *Label {
	if !l.Known() {
		return nil
	}
	return &Label{Registry: printable.Valid(l.Registry), Host: l.Host, PID: l.PID, Name: l.Name}
}

// OfTime returns nil if t is unknown, or JSON cannot express it.
func OfTime(t time.Time) *time.Time {
	t = t.UTC().Truncate(time.Microsecond)
	if t.IsZero() || t.Year() < 0 || t.Year() > 9999 {
		return nil
	}
	return &t
}

// ofLease rounds up: a lease that has not ended is not 0.
func ofLease(left time.Duration) *int64 {
	if left < 0 {
		return nil
	}
	ms := (left + time.Millisecond - 1).Milliseconds()
	return &ms
}
