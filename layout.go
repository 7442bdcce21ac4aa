package lockregistry

import (
	"context"
	"time"
)

// layout is the format of a lock in Redis. Nothing else in this package knows which one it runs on.
//
// A hold is named by its value, "<registry>:<number>", which no other hold ever has.
type layout interface {
	// obtain tries once to make the hold the owner of key. When somebody else has it, left is what remains of their lease,
	// or not positive when that has no end or was not asked. First says that this is the first try of a call, when the
	// key is most likely free; it may do less then: what it refuses is tried again. An error means that the hold is not
	// granted; whether the server granted it all the same, unknown tells.
	obtain(ctx context.Context, key, value string, l lease, first bool) (granted bool, left time.Duration, err error)

	// release is the call that removes the key if it is the hold's. It replies 0 when it was not, else 1 and, when it
	// published, how many received that.
	release(ctx context.Context, key, value string) call

	// renew is the call that sets the lease anew if the key is the hold's. It replies 1 when it was, else 0.
	renew(key, value string, l lease) call

	// channel is where releases of a key are published; on commonChannel those of all keys may be, with the key as the
	// message.
	channel(key string) string
	commonChannel() string

	// close is told when the registry no longer needs the layout.
	close()
}
