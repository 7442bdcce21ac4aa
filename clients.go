package lockregistry

import (
	"reflect"
	"sync"

	"github.com/redis/rueidis"

	"github.com/lockregistry/lockregistry/internal/transport"
)

// shared is what all registries on one client have in common.
type shared struct {
	*transport.Client
	remove remover
	users  int // registries; guarded by sharedMu
}

// shares has one for a client. An entry lives as long as a registry that uses it is open.
var (
	sharedMu sync.Mutex
	shares   = map[rueidis.Client]*shared{}
)

func sharedOf(client rueidis.Client) *shared {
	if !reflect.ValueOf(client).Comparable() { // a wrapper by value, which no map can have for a key
		return &shared{Client: transport.New(client)}
	}
	if s := share(client, nil); s != nil {
		return s
	}
	return share(client, &shared{Client: transport.New(client)}) // made without the mutex: a wrapper may block
}

// share counts another registry on a client whose shared part is known, or becomes the one that is given.
func share(client rueidis.Client, unless *shared) *shared {
	sharedMu.Lock()
	defer sharedMu.Unlock()
	s := shares[client]
	if s == nil {
		s = unless
	}
	if s != nil {
		shares[client] = s
		s.users++
	}
	return s
}

// dismiss is called when a registry is closed.
func (s *shared) dismiss(client rueidis.Client) {
	sharedMu.Lock()
	defer sharedMu.Unlock()
	if s.users--; s.users > 0 {
		return
	}
	if s.users == 0 { // else it is in no map, see sharedOf
		delete(shares, client)
	}
	s.Close()
}
