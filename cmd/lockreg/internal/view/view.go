// Package view is what lockreg says of locks in JSON, on the command line and to the page alike. Times are RFC 3339 in UTC with
// microseconds, durations are whole milliseconds. What is unknown is null.
package view

import (
	"iter"
	"time"

	"github.com/lockregistry/lockregistry"
)

// Lock is a path and everybody who holds it or waits for it.
type Lock struct {
	Path   string `json:"path"`
	Key    string `json:"key"`
	Kind   string `json:"kind"`   // lock, readwrite, too long, or nothing: nobody holds it and nobody waits
	Layout string `json:"layout"` // spring or redisson

	Holders     []Holder `json:"holders"`     // 100 at most
	HolderCount int      `json:"holderCount"` // all of them
	Waiters     []Waiter `json:"waiters"`     // in order, 100 at most
	WaiterCount int      `json:"waiterCount"` // all of them

	TooLong []string `json:"tooLong"` // what is longer than a lock's own, and is not shown: see lockregistry.LockInfo
}

// Holder is a hold of a lock: the only one, or one of several readers.
type Holder struct {
	Holder  string     `json:"holder"` // as in Redis, the value or the field of the key
	Label   *Label     `json:"label"`  // null: Java, or an older version
	Shared  bool       `json:"shared"` // a reader
	Since   *time.Time `json:"since"`
	LeaseMS *int64     `json:"leaseMs"` // what is left of the lease; null: it has no end
	Token   uint64     `json:"token"`   // the last fencing token of the path; 0: none
	Kept    bool       `json:"kept"`    // nobody holds it: the path is kept for a while after its release
}

// Waiter is a call that waits for a lock.
type Waiter struct {
	Registry string     `json:"registry"`
	Label    *Label     `json:"label"`
	Shared   bool       `json:"shared"`
	Since    *time.Time `json:"since"`
}

// Label says which process a registry is in.
type Label struct {
	Registry string `json:"registry"`
	Host     string `json:"host"`
	PID      int    `json:"pid"`
	Name     string `json:"name"`
}

// Deadlock is a cycle: each of its waits is for a path that the next one holds, the last one's for one of the first's.
type Deadlock struct {
	Waits []Wait `json:"waits"`
}

// Wait is one call of a deadlock.
type Wait struct {
	Path  string     `json:"path"` // what it waits for
	Kind  string     `json:"kind"`
	Owner string     `json:"owner"`
	Holds []string   `json:"holds"`
	Label *Label     `json:"label"`
	Since *time.Time `json:"since"`
}

// OfLock is the view of a lock. Empty lists are [], never null.
func OfLock(info lockregistry.LockInfo) Lock {
	lock := Lock{
		Path: info.Path, Key: info.Key, Kind: info.Kind, Layout: OfLayout(info.Layout),
		Holders: make([]Holder, 0, len(info.Holders)), HolderCount: info.HolderCount,
		Waiters: make([]Waiter, 0, len(info.Waiters)), WaiterCount: info.WaiterCount,
		TooLong: append([]string{}, info.TooLong...),
	}
	for _, h := range info.Holders {
		lock.Holders = append(lock.Holders, Holder{
			Holder: h.Holder, Label: ofLabel(h.Label), Shared: h.Shared, Since: OfTime(h.Since), LeaseMS: ofLease(h.Lease),
			Token: h.Token, Kept: h.Kept,
		})
	}
	for _, w := range info.Waiters {
		lock.Waiters = append(lock.Waiters, Waiter{
			Registry: w.Registry, Label: ofLabel(w.Label), Shared: w.Shared, Since: OfTime(w.Since),
		})
	}
	return lock
}

// OfLocks gathers the views of locks. With an error it returns what came before it.
func OfLocks(infos iter.Seq2[lockregistry.LockInfo, error]) ([]Lock, error) {
	locks := []Lock{}
	for info, err := range infos {
		if err != nil {
			return locks, err
		}
		locks = append(locks, OfLock(info))
	}
	return locks, nil
}

// OfDeadlocks is the view of deadlocks. Empty lists are [], never null.
func OfDeadlocks(found []lockregistry.Deadlock) []Deadlock {
	deadlocks := make([]Deadlock, 0, len(found))
	for _, d := range found {
		deadlock := Deadlock{Waits: make([]Wait, 0, len(d.Waits))}
		for _, w := range d.Waits {
			deadlock.Waits = append(deadlock.Waits, Wait{
				Path: w.Path, Kind: w.Kind, Owner: w.Owner, Holds: append([]string{}, w.Holds...), Label: ofLabel(w.Label),
				Since: OfTime(w.Since),
			})
		}
		deadlocks = append(deadlocks, deadlock)
	}
	return deadlocks
}

// OfLayout is the name of a layout, as the flag --layout has it.
func OfLayout(layout lockregistry.Layout) string {
	if layout == lockregistry.LayoutRedisson {
		return "redisson"
	}
	return "spring"
}

func ofLabel(l lockregistry.Label) *Label {
	if !l.Known() {
		return nil
	}
	return &Label{Registry: l.Registry, Host: l.Host, PID: l.PID, Name: l.Name}
}

// OfTime is null when t is unknown, or when JSON has no form for it.
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
