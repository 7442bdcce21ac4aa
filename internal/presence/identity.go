package presence

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"
	"unicode/utf8"
)

// Identity says which process a registry belongs to. The zero value means that there is no record.
type Identity struct {
	Registry string // what its holds in Redis begin with, up to the last colon
	Host     string // the host name; empty if there is none
	PID      int    // of the process
	Name     string // set by WithName, or empty
}

// Own returns the identity of a registry of this process. The name may be nil.
func Own(registry string, name *string) Identity {
	i := Identity{Registry: registry, PID: os.Getpid()}
	i.Host, _ = os.Hostname() // there may be none
	if name != nil {
		i.Name = *name
	}
	return i
}

// Unread returns the identity of a registry whose record is too long to be read.
func Unread(registry string) Identity { return Identity{Registry: registry, Name: TooLong} }

// Unread reports whether the record was too long to be read.
func (i Identity) Unread() bool { return i.PID == 0 && i.Name == TooLong }

// CheckName returns what is wrong with a name. Nil means no name, and is valid.
func CheckName(name *string) error {
	switch {
	case name == nil:
		return nil
	case *name == "":
		return errors.New("WithName(\"\"): the name is empty")
	case len(*name) > longestName:
		return fmt.Errorf("WithName: the name has %d bytes, which is more than %d", len(*name), longestName)
	case !utf8.ValidString(*name):
		return fmt.Errorf("WithName(%q): the name is not valid UTF-8", *name)
	}
	return nil
}

// Record is what a registry keeps in Redis about itself: a string with JSON, see docs/wire-format.md.
type Record struct {
	Host  string `json:"host"`
	PID   int    `json:"pid"`
	Name  string `json:"name,omitempty"`
	Waits []Wait `json:"waits,omitempty"`
	Locks []Lock `json:"locks,omitempty"`

	// For is when the record expires, in milliseconds from when it was written; older versions: 0. Left is what is left of that.
	For  int64         `json:"for,omitempty"`
	Left time.Duration `json:"-"`
}

// Silent returns for how long a registry that holds or waits has not written its record, if it is longer than SilentFor: its
// process is dead or frozen, or cannot reach Redis. Otherwise it returns 0.
func (r *Record) Silent() time.Duration {
	if since := time.Duration(r.For)*time.Millisecond - r.Left; r.For > 0 && since >= SilentFor {
		return since
	}
	return 0
}

// Wait is a call that has waited for a second, and whose owner holds a lock.
type Wait struct {
	Path  string   `json:"path"`
	Kind  string   `json:"kind"`
	Owner string   `json:"owner"`
	Since int64    `json:"since"` // microseconds since 1970
	Holds []string `json:"holds"` // paths; that of a semaphore for each hold of it
}

// Permits is the kind of a wait for permits of a semaphore.
const Permits = "semaphore"

// Lock is what the process holds of a path, or waits for, if that has lasted for a second. Older versions do not write it.
type Lock struct {
	Path    string `json:"path"`
	Waiting int    `json:"waiting,omitempty"` // calls that wait without a place in the queue of Redis

	Oldest int64 `json:"oldest,omitempty"` // since when the first of them has waited, in microseconds since 1970; older versions: 0

	Hold  string `json:"hold,omitempty"`  // the number of a hold
	Since int64  `json:"since,omitempty"` // when its owner got it, in microseconds since 1970
	Lease int64  `json:"lease,omitempty"` // the lease in milliseconds, if it is renewed

	Standby bool `json:"standby,omitempty"` // the call with a place in the queue waits to lead

	Lasts time.Duration `json:"-"` // for how long the lock may stay locked if the process dies now; 0: it is not held
}

// Upper returns the [MostLocks] most important locks: many calls wait for them, or they have been held for a long time.
func Upper(locks []Lock) []Lock {
	slices.SortFunc(locks, func(a, b Lock) int {
		return cmp.Or(cmp.Compare(b.Waiting, a.Waiting), cmp.Compare(a.Since, b.Since), strings.Compare(a.Path, b.Path),
			strings.Compare(a.Hold, b.Hold))
	})
	return locks[:min(len(locks), MostLocks)]
}

// Limits of a record, and of its writing.
const (
	Lasting   = time.Second      // how long a hold or a wait must last to be in a record; also the time between looks
	Denied    = 10 * time.Minute // the pause without permission: each attempt is a line in the server's log
	MostWaits = 100
	MostLocks = 100
	MostBytes = 1 << 20 // a longer record is not read

	lockBytes = 1 << 15 // for all locks: they may be written every second

	longestName = 100 // bytes
	longestHost = 255

	// TooLong replaces longer texts, so that a malicious record costs no memory here.
	TooLong = "too long"
)

// Key returns the key of a registry's record.
func Key(prefix, registry string) string { return prefix + ":{" + registry + End }

// ListKey returns the key of the list of the registries under a prefix that have a record. No path may have this key, and older
// versions take the list for the record of a registry that says nothing.
func ListKey(prefix string) string { return Key(prefix, listed) }

// IsList reports whether a key that may be a record's is a list.
func IsList(key string) bool { return strings.HasSuffix(key, ":{"+listed+End) }

// listed is no registry's name: those end with a UUID.
const listed = "registries"

// How the list of registries is kept; see list.lua.
const (
	ListedFor  = recordFor + mostLonger + recordEach // longer than any record lasts
	SilentFor  = 3 * recordEach                      // a process that has not written its record for this long is most likely dead
	MostDead   = 500                                 // records of such processes that are kept, under one prefix
	MostListed = 10_000                              // names that are read
	LongestID  = 1024                                // bytes of a name that is read
)

// End is what the keys of all records end with.
const End = "}:registry"

// Owner returns the registry whose record has this key.
func Owner(prefix, key string) string {
	return strings.TrimSuffix(strings.TrimPrefix(key, prefix+":{"), End)
}

// Parse reads the record of a registry. A text that is not a record gives the zero identity.
func Parse(registry, text string) (Record, Identity) {
	var r Record
	if json.Unmarshal([]byte(text), &r) != nil {
		return Record{}, Identity{}
	}
	r.Waits = r.Waits[:min(len(r.Waits), MostWaits)]
	r.Locks = r.Locks[:min(len(r.Locks), MostLocks)]
	if len(r.Host) > longestHost {
		r.Host = TooLong
	}
	if len(r.Name) > longestName {
		r.Name = TooLong
	}
	return r, Identity{Registry: registry, Host: r.Host, PID: r.PID, Name: r.Name}
}
