// Package owner names who calls: a goroutine, an owner that a program has made, or a hold.
package owner

import "sync/atomic"

// ID is who holds a lock or waits for it: the number of a goroutine, a number made for NewOwner, or that of a Hold.
type ID uint64

// What IDs consist of.
const (
	Nobody  ID = 0
	Leaving ID = 1<<64 - 1 // stands in for the last owner while its removal from Redis is under way
	Made    ID = 1 << 63   // set in the owners that NewOwner made; goroutine numbers stay far below
	AnyHold ID = 1 << 62   // set, without made, in those of a Hold
	single  ID = 1 << 61   // set, too, in those of a run of Once
	grouped ID = 1 << 60   // set, too, in those of a Hold that has several paths, or one of them
)

// NewHold is the owner of one Hold.
func NewHold() ID { return AnyHold | ID(lastOwner.Add(1)) }

// IsHold tells whether a Hold is the owner. No call can act as it: it locks once, and unlocks by Release.
func (o ID) IsHold() bool { return o&(Made|AnyHold) == AnyHold }

// IsGoroutine tells whether a goroutine is the owner, by its number.
func (o ID) IsGoroutine() bool { return o&(Made|AnyHold) == 0 && o != Nobody }

// NewOnce is the owner of one run of Once.
func NewOnce() ID { return NewHold() | single }

// NewGroup is the owner of one path of a Hold that has several.
func NewGroup() ID { return NewHold() | grouped }

// IsGroup tells whether such a Hold is the owner.
func (o ID) IsGroup() bool { return o.IsHold() && o&grouped != 0 }

// IsOnce tells whether a run of Once is the owner.
func (o ID) IsOnce() bool { return o.IsHold() && o&single != 0 }

var lastOwner atomic.Uint64 // of those that are no goroutines

// Shared tells whether several goroutines can act as this owner at the same time.
func (o ID) Shared() bool { return o&Made != 0 && o != Leaving }

// New is the owner that one call of NewOwner makes.
func New() ID { return Made | ID(lastOwner.Add(1)) }

// Calling is the owner that the goroutine is which calls it.
func Calling() ID { return ID(goroutineID()) }

// Number is how people are told of one that NewOwner made.
func (o ID) Number() uint64 { return uint64(o &^ Made) }
