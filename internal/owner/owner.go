// Package owner has the ids of owners: goroutines, owners made by ContextWithOwner, and Holds. A [GoroutineScan] says which
// goroutines still exist.
package owner

import "sync/atomic"

// ID identifies an owner of a lock: the number of a goroutine, or a number made for ContextWithOwner or a Hold.
type ID uint64

// Special IDs, and bits of IDs.
const (
	Nobody  ID = 0
	Leaving ID = 1<<64 - 1 // stands in for the last owner while its removal from Redis is under way
	Made    ID = 1 << 63   // set for owners of ContextWithOwner; goroutine numbers stay far below
	AnyHold ID = 1 << 62   // set, without Made, for a Hold
	single  ID = 1 << 61   // also set for a run of Once
)

// NewHold returns a new owner for a Hold.
func NewHold() ID { return AnyHold | ID(lastOwner.Add(1)) }

// IsHold reports whether the owner is a Hold. No other call can act as it: it locks once, and unlocks by Release.
func (o ID) IsHold() bool { return o&(Made|AnyHold) == AnyHold }

// IsGoroutine reports whether the owner is a goroutine.
func (o ID) IsGoroutine() bool { return o&(Made|AnyHold) == 0 && o != Nobody }

// NewOnce returns a new owner for a run of Once.
func NewOnce() ID { return NewHold() | single }

// IsOnce reports whether the owner is a run of Once.
func (o ID) IsOnce() bool { return o.IsHold() && o&single != 0 }

var lastOwner atomic.Uint64 // numbers owners that are not goroutines

// Shared reports whether several goroutines can act as this owner at the same time.
func (o ID) Shared() bool { return o&Made != 0 && o != Leaving }

// New returns a new owner for ContextWithOwner.
func New() ID { return Made | ID(lastOwner.Add(1)) }

// Calling returns the calling goroutine as an owner.
func Calling() ID { return ID(goroutineID()) }

// Number returns the number of an owner of ContextWithOwner, for people.
func (o ID) Number() uint64 { return uint64(o &^ Made) }
