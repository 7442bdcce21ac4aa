package lockregistry

import "time"

// layout is the format of a lock in Redis. Nothing else in this package knows which one it runs on.
//
// A hold is named by its value, "<registry>:<number>", which no other hold ever has.
type layout interface {
	// obtain is the call that makes the hold that bids the owner of its key, unless somebody else has it; see call.granted.
	// Quick says that the key is most likely free; the call may do less then, and leave out what is only needed when it is
	// not: what it refuses is tried again otherwise.
	obtain(b bid, quick bool) call

	// release is the call that removes the key if it is the hold's. It replies 0 when it was not, else 1 and, when it
	// published, how many received that.
	release(key, value string) call

	// renew is the call that sets the lease anew if the key is the hold's. It replies 1 when it was, else 0.
	renew(key, value string, l lease) call

	// channel is where releases of a key are published; on commonChannel those of all keys may be, with the key as the
	// message.
	channel(key string) string
	commonChannel() string
}

// kind is what all locks of a registry have in common that work in the same way.
type kind struct {
	layout   layout
	watchdog bool // who names no lease has it renewed, as in Redisson
}

// remaining is what the server says that a lease has left: whole milliseconds, of which the last one is 0; negative when it
// has no end.
func remaining(pttl int64) time.Duration {
	if pttl == 0 {
		pttl = 1
	}
	return time.Duration(pttl) * time.Millisecond
}

// bid is what a hold asks for.
type bid struct {
	key   string
	value string
	lease lease
	under string // to read: the value of the hold with which the same owner writes already
}
