package wake

import (
	"reflect"
	"sync"

	"github.com/redis/rueidis"
)

// hub is what the listeners of one client share.
type hub struct {
	client rueidis.Client
	node   *node
	users  int // guarded by hubsMu
}

// hubs has the hub of each client that has listeners.
var (
	hubsMu sync.Mutex
	hubs   = map[rueidis.Client]*hub{}
)

// join returns the hub of a client. A wrapper by value, which no map can have for a key, gets one for each listener.
func join(client rueidis.Client, l *Listener) *hub {
	hubsMu.Lock()
	defer hubsMu.Unlock()
	shared := reflect.ValueOf(client).Comparable()
	var h *hub
	if shared {
		h = hubs[client]
	}
	if h == nil {
		h = &hub{client: client, node: newNode(client)}
		if shared {
			hubs[client] = h
		}
	}
	h.users++
	h.node.admit(l)
	return h
}

// leave takes a listener out. The last one closes the hub, and wait returns when it has.
func (h *hub) leave(l *Listener) (wait func()) {
	h.node.dismiss(l)
	hubsMu.Lock()
	h.users--
	last := h.users == 0
	if last && reflect.ValueOf(h.client).Comparable() {
		delete(hubs, h.client)
	}
	hubsMu.Unlock()
	if !last {
		return func() {}
	}
	h.node.close()
	return h.node.done.Wait
}
