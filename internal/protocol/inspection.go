package protocol

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/rueidis"

	"github.com/lockregistry/lockregistry/internal/fault"
)

// Kinds of locks, in the words of inspect.lua.
const (
	KindLock      = "lock"
	KindReadWrite = "readwrite"
	KindSemaphore = "semaphore"
)

// Inspection is what inspect.lua returns for a key.
type Inspection struct {
	Kind   string // one of these; empty: no holder and no waiter
	Stored Stored
	Number int // of the permits of a semaphore

	Holders     []Holder // the first ones
	HolderCount int      // all of them
	Waiters     []Queued // the first ones in the order of the queue
	WaiterCount int      // all of them

	TooLong []string // what the script has left out or cut because it was too long: token, holder or waiter, each once
}

// Stored is how a key is stored.
type Stored int

// The ways to store a key.
const (
	NotStored Stored = iota // there is no key
	AsString                // as Spring does
	AsHash                  // as Redisson does
	AsSet                   // as a semaphore, whatever the registry's layout is
)

// Holder is a holder of a key.
type Holder struct {
	Text    string // the value of the key, or a field of the hash
	Name    Name
	Shared  bool          // it is a reader
	Permits int           // how many it has; 0: not a semaphore's
	Lease   time.Duration // what is left of it; negative: it has no end
	Token   uint64        // the last fencing token that was drawn for the key; 0: none, or none for readers
}

// Queued is a ticket in the queue of a key.
type Queued struct {
	Registry string
	Shared   bool      // it is a reader's
	Permits  int       // how many it asks for; 0: not a semaphore's
	Since    time.Time // from its place in the queue; zero: not known
	Gone     bool      // no connection listens to the channel of its registry
}

// ReadInspection reads what inspect.lua returns for one key. It fails with fault.WrongType if the key is not a lock.
func ReadInspection(row rueidis.RedisMessage) (Inspection, error) {
	reply, err := row.ToAny()
	if err != nil {
		return Inspection{}, fault.Join(ErrStrange, err)
	}
	return parseInspection(reply)
}

func parseInspection(reply any) (x Inspection, err error) {
	values, _ := reply.([]any)
	if len(values) != 7 {
		return x, ErrStrange
	}
	kind, ok1 := values[0].(string)
	token, ok2 := values[2].(string)
	waiters, ok3 := values[3].(int64)
	tickets, ok4 := values[4].([]any)
	holders, ok5 := values[5].(int64)
	fields, ok6 := values[6].([]any)
	if !ok1 || !ok2 || !ok3 || !ok4 || !ok5 || !ok6 {
		return x, ErrStrange
	}
	x.WaiterCount, x.HolderCount = int(waiters), int(holders)
	switch kind {
	case "none":
	case "string":
		x.Kind, x.Stored = KindLock, AsString
	case KindLock, KindReadWrite:
		x.Kind, x.Stored = kind, AsHash
	case KindSemaphore:
		number, _ := values[1].(int64)
		x.Kind, x.Stored, x.Number = kind, AsSet, int(number)
	case "number":
		return x, fault.Number
	default:
		return x, fmt.Errorf("%w: a %s", fault.WrongType, kind)
	}
	drawn, _ := strconv.ParseUint(token, 10, 64)
	if token == TooLong {
		x.note("token")
	}
	for i := 0; i+2 < len(fields); i += 3 {
		field, ok1 := fields[i].(string)
		left, ok2 := fields[i+2].(int64)
		if !ok1 || !ok2 {
			return x, ErrStrange
		}
		held, _ := fields[i+1].(string)
		if err := x.addHolder(field, held, left, drawn); err != nil {
			return x, err
		}
	}
	for i := 0; i+2 < len(tickets); i += 3 {
		ticket, ok1 := tickets[i].(string)
		place, ok2 := tickets[i+1].(string)
		listeners, ok3 := tickets[i+2].(int64)
		if !ok1 || !ok2 || !ok3 {
			return x, ErrStrange
		}
		x.addWaiter(ticket, place, listeners == 0)
	}
	return x, nil
}

// note adds a name to TooLong, once.
func (x *Inspection) note(what string) {
	if !slices.Contains(x.TooLong, what) {
		x.TooLong = append(x.TooLong, what)
	}
}

// addHolder reads the value of a key, a field of the hash, or a member of the set.
func (x *Inspection) addHolder(text, held string, left int64, drawn uint64) error {
	h := Holder{Text: text, Name: ParseName(text), Lease: remaining(left), Token: drawn}
	if IsCut(text) {
		h.Name = Name{Registry: text}
		x.note("holder")
	} else if !h.Name.Known && x.Stored == AsHash {
		return fmt.Errorf("%w: a hash with the field %.100q", fault.WrongType, text)
	}
	if x.Kind == KindReadWrite && !h.Name.Writes {
		h.Shared, h.Token = true, 0
	}
	if x.Kind == KindSemaphore {
		h.Permits, _ = strconv.Atoi(held)
	}
	x.Holders = append(x.Holders, h)
	return nil
}

// addWaiter reads a ticket, and its place in the queue. If the key is not held, the tickets show its kind.
func (x *Inspection) addWaiter(ticket, place string, gone bool) {
	member, side := ticket, ""
	if at := strings.LastIndexByte(ticket, '|'); at >= 0 { // a client id may contain one, too
		member, side = ticket[:at], ticket[at:]
	}
	q := Queued{Registry: ParseName(member).Registry, Shared: strings.HasSuffix(side, "r"), Gone: gone}
	if IsCut(ticket) {
		q.Registry, side = ticket, ""
		x.note("waiter")
	}
	if micros, err := strconv.ParseFloat(place, 64); err == nil {
		q.Since = Time(int64(micros))
	}
	if at := strings.LastIndexByte(side, 'p'); at >= 0 {
		q.Permits, _ = strconv.Atoi(side[at+1:])
	}
	if x.Kind == "" {
		if x.Kind = KindLock; q.Permits > 0 {
			x.Kind = KindSemaphore
		} else if strings.HasSuffix(side, "r") || strings.HasSuffix(side, "w") {
			x.Kind = KindReadWrite
		}
	}
	x.Waiters = append(x.Waiters, q)
}
