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
	s := &shared{Client: transport.New(client)} // not under the mutex: a wrapper may block
	if !reflect.ValueOf(client).Comparable() {  // a wrapper by value, which no map can have for a key
		return s
	}
	sharedMu.Lock()
	defer sharedMu.Unlock()
	if known := shares[client]; known != nil {
		s = known
	}
	shares[client] = s
	s.users++
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
