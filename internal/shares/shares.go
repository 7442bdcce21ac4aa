// Package shares has what all users of one rueidis client share.
package shares

import (
	"reflect"
	"sync"

	"github.com/redis/rueidis"
)

// Of has a T for each client that has users.
type Of[T any] struct {
	mu sync.Mutex
	of map[rueidis.Client]*share[T]
}

type share[T any] struct {
	is    T
	users int
}

// Join counts another user of a client, and returns what all of them share: the first one makes it. The user must call leave
// once, which reports whether it was the last one.
func (o *Of[T]) Join(client rueidis.Client, first func() T) (shared T, leave func() (last bool)) {
	if !reflect.ValueOf(client).Comparable() { // a wrapper by value, which cannot be a map key: it has one user
		return first(), func() bool { return true }
	}
	known := o.join(client, nil)
	if known == nil {
		known = o.join(client, &share[T]{is: first()}) // without the mutex: a wrapper may block
	}
	return known.is, func() bool { return o.leave(client) }
}

// join counts a user of a client that is known, otherwise of unless, if that is not nil.
func (o *Of[T]) join(client rueidis.Client, unless *share[T]) *share[T] {
	o.mu.Lock()
	defer o.mu.Unlock()
	known := o.of[client]
	if known == nil {
		known = unless
	}
	if known != nil {
		if o.of == nil {
			o.of = map[rueidis.Client]*share[T]{}
		}
		o.of[client] = known
		known.users++
	}
	return known
}

func (o *Of[T]) leave(client rueidis.Client) (last bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	known := o.of[client]
	if known.users--; known.users == 0 {
		delete(o.of, client)
	}
	return known.users == 0
}
