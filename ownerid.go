package lockregistry

import "sync/atomic"

// owner holds or waits for a lock: a goroutine, by its number, or a number that NewOwner made, or that of a [Hold].
type owner uint64

const (
	nobody  owner = 0
	leaving owner = 1<<64 - 1 // stands in for the last owner while its removal from Redis is under way
	made    owner = 1 << 63   // set in the owners that NewOwner made; goroutine numbers stay far below
	valued  owner = 1 << 62   // set, without made, in those of a Hold
	single  owner = 1 << 61   // set, too, in those of a run of Once
)

// newValued is the owner of one Hold.
func newValued() owner { return valued | owner(lastOwner.Add(1)) }

// isValued tells whether a Hold is the owner. No call can act as it: it locks once, and unlocks by Release.
func (o owner) isValued() bool { return o&(made|valued) == valued }

// isGoroutine tells whether a goroutine is the owner, by its number.
func (o owner) isGoroutine() bool { return o&(made|valued) == 0 && o != nobody }

// newOnce is the owner of one run of Once.
func newOnce() owner { return newValued() | single }

func (o owner) isOnce() bool { return o.isValued() && o&single != 0 }

var lastOwner atomic.Uint64 // of those that are no goroutines

// shared tells whether several goroutines can act as this owner at the same time.
func (o owner) shared() bool { return o&made != 0 && o != leaving }

// madeOwner is one of NewOwner.
func madeOwner() owner { return made | owner(lastOwner.Add(1)) }

// callingGoroutine is the owner that the goroutine is which calls it.
func callingGoroutine() owner { return owner(goroutineID()) }

// number is how people are told of one that NewOwner made.
func (o owner) number() uint64 { return uint64(o &^ made) }
