package lockregistry

import (
	"context"
	"sync/atomic"
)

// owner is who holds or waits for a lock: a goroutine, by its number, or a number that NewOwner made.
type owner uint64

const (
	nobody  owner = 0
	leaving owner = 1<<64 - 1 // stands in for the last owner while its removal from Redis is under way
	made    owner = 1 << 63   // set in the owners that NewOwner made; goroutine numbers stay far below
)

var lastOwner atomic.Uint64

type ownerKey struct{}

// NewOwner returns a child of ctx that carries a new owner. Calls with this context, or with children of it, lock and
// unlock as that owner, whichever goroutine makes them: so one goroutine can unlock what another one locked, and several
// can nest within one hold. Without it the goroutine that calls is the owner, as the thread is in Java.
func NewOwner(ctx context.Context) context.Context {
	if ctx == nil {
		ctx = context.Background()
	}
	return context.WithValue(ctx, ownerKey{}, made|owner(lastOwner.Add(1)))
}

func ownerOf(ctx context.Context) owner {
	if o, ok := ctx.Value(ownerKey{}).(owner); ok {
		return o
	}
	return owner(goroutineID())
}

// shared tells whether several goroutines can act as this owner at the same time.
func (o owner) shared() bool { return o&made != 0 && o != leaving }
