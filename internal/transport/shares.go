package transport

import (
	"reflect"
	"sync"

	"github.com/redis/rueidis"
)

// Shares has, for each client, what all its users share. An entry lives as long as a user.
type Shares[T any] struct {
	mu sync.Mutex
	of map[rueidis.Client]*Shared[T]
}

// Shared is what the users of a client share: the Client, and something of their own.
type Shared[T any] struct {
	*Client
	Own T

	shares *Shares[T]
	users  int // guarded by the mutex of shares
}

// Join counts another user of a client, and returns what it shares. The user must call Leave once.
func (s *Shares[T]) Join(client rueidis.Client) *Shared[T] {
	if !reflect.ValueOf(client).Comparable() { // a wrapper by value, which cannot be a map key
		return &Shared[T]{Client: New(client), shares: s}
	}
	if known := s.join(client, nil); known != nil {
		return known
	}
	return s.join(client, &Shared[T]{Client: New(client), shares: s}) // without the mutex: a wrapper may block
}

// join is Join for a client that is known, or else for unless, if that is not nil.
func (s *Shares[T]) join(client rueidis.Client, unless *Shared[T]) *Shared[T] {
	s.mu.Lock()
	defer s.mu.Unlock()
	known := s.of[client]
	if known == nil {
		known = unless
	}
	if known != nil {
		if s.of == nil {
			s.of = map[rueidis.Client]*Shared[T]{}
		}
		s.of[client] = known
		known.users++
	}
	return known
}

// Leave ends a user's use.
func (d *Shared[T]) Leave() {
	d.shares.mu.Lock()
	defer d.shares.mu.Unlock()
	if d.users--; d.users > 0 {
		return
	}
	if d.users == 0 { // else it is in no map, see Join
		delete(d.shares.of, d.redis)
	}
	d.Close()
}
