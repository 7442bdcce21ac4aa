package wake

import (
	"slices"
	"time"
)

// peers is what a node knows about the keys that calls wait for. Other processes, in Go or Java, change these keys. They publish
// a change on the key's channel or on a common one. Changes that are not published are reported by the server (tracking).
//
// It sends nothing and reads no clock, see the package comment. The hub's mutex guards it.
type peers struct {
	waiting  map[string][]*Waiter // all waiters, by key
	asked    map[*Waiter]struct{} // waiters to be watched
	tracks   bool                 // the connection tracks the keys that it reads
	channels channels
}

// batch is how many keys or channels are in one command.
const batch = 512

func newPeers() peers {
	return peers{waiting: map[string][]*Waiter{}, asked: map[*Waiter]struct{}{}, channels: newChannels()}
}

func (p *peers) add(w *Waiter) {
	w.index = len(p.waiting[w.Key])
	p.waiting[w.Key] = append(p.waiting[w.Key], w)
}

// has reports whether a waiter was added, and not removed since.
func (p *peers) has(w *Waiter) bool {
	all := p.waiting[w.Key]
	return w.index < len(all) && all[w.index] == w
}

// remove removes a waiter, also from its channel. It reports whether that is idle now, and no other is.
func (p *peers) remove(w *Waiter) (untidy bool) {
	delete(p.asked, w)
	all := p.waiting[w.Key]
	last := len(all) - 1
	all[w.index], all[last].index = all[last], w.index // the order does not matter, and there may be thousands
	all[last] = nil
	if p.waiting[w.Key] = all[:last]; last == 0 {
		delete(p.waiting, w.Key)
	}
	ch := p.channels.all[w.Channel]
	if ch == nil {
		return false
	}
	i := slices.Index(ch.waiters, w)
	if i < 0 {
		return false
	}
	ch.waiters = slices.Delete(ch.waiters, i, i+1)
	return p.channels.vacant(w.Channel, ch)
}

// ask requests that a waiter be watched, for its call. It reports false if the call waits for an answer already.
func (p *peers) ask(w *Waiter) bool {
	if w.asking == asksForCall {
		return false
	}
	w.asking = asksForCall
	p.asked[w] = struct{}{}
	if w.ready == nil {
		w.ready = make(chan KeyState, 1)
	}
	select {
	case <-w.ready: // an old answer
	default:
	}
	if w.Own == "" { // otherwise the wake-up may be about that channel
		w.wakeup.clear() // of a change that the look at the key will show
	}
	return true
}

// resume ends a pause that is over, and reports whether the waiter is to be watched again.
func (p *peers) resume(w *Waiter) bool {
	if w.paused == nil { // the pause was ended just after its timer had fired
		return false
	}
	w.paused = nil
	if w.watched || w.asking != asksNot {
		return false
	}
	w.asking = asksItself
	p.asked[w] = struct{}{}
	return true
}

// next removes from the list a batch of waiters to be watched, and returns it.
func (p *peers) next() (asked []*Waiter) {
	for w := range p.asked {
		if len(asked) == batch {
			break
		}
		delete(p.asked, w)
		asked = append(asked, w)
	}
	return asked
}

// enlisted is what to send so that waiters are watched.
type enlisted struct {
	tracked, others   []*Waiter // by how they are to be watched
	keys              []string  // of the tracked ones, to read
	channels, inSlots []string  // to subscribe to; the second also in their slots
}

// enlist marks waiters as watched, and returns what to send for that. They are marked before anything is sent, since the server
// may report a change before it replies.
func (p *peers) enlist(asked []*Waiter, served func(*user) bool) (e enlisted) {
	for _, w := range asked {
		if !p.has(w) { // closed, or moved to another node
			continue
		}
		if !served(w.user) {
			w.answer(KeyState{})
			continue
		}
		if w.watched, w.tracks = true, p.tracks && w.user.Track; w.tracks {
			e.tracked, e.keys = append(e.tracked, w), append(e.keys, w.Key)
		} else {
			e.others = append(e.others, w)
		}
		if w.Channel == "" || !w.user.Subscribe || w.tracks && !w.throttle.on() { // throttled, tracking is not enough
			continue
		}
		fresh, inSlot := p.channels.add(w)
		if fresh {
			e.channels = append(e.channels, w.Channel)
		}
		if inSlot {
			e.inSlots = append(e.inSlots, w.Channel)
		}
	}
	return e
}

// look is the reply to PTTL of a waiter's key.
type look struct {
	pttl   int64
	failed bool // the server has refused it
}

// looked handles the replies to PTTL of the waiters' keys. From then on the server tracks these keys. So a waiter that learns
// that its key is taken need not look again: the server will report its removal.
func (p *peers) looked(waiters []*Waiter, looks []look, sent, replied time.Time) {
	for i, w := range waiters {
		switch {
		case !p.has(w):
		case looks[i].failed:
			w.watched = false
			if w.asking == asksItself { // its call relies on the reports that have ended
				w.wakeup.wake()
			}
			w.answer(KeyState{})
		default:
			w.saw(looks[i].pttl, sent, replied)
		}
	}
}

// subscribed answers waiters whose channels were subscribed to: they must look at their keys themselves.
func (p *peers) subscribed(waiters []*Waiter) {
	for _, w := range waiters {
		if !p.has(w) {
			continue
		}
		if w.asking == asksItself {
			w.wakeup.wake()
		}
		w.answer(KeyState{Watched: w.watched}) // not watched if its channel was refused
	}
}

// published handles a message. On a key's channel it is about that key, on a common channel it names the key.
func (p *peers) published(channel, message string) {
	if c := p.channels.all[channel]; c != nil {
		for _, w := range c.waiters {
			w.message()
		}
	}
	for _, w := range p.waiting[message] {
		if w.user.Common == channel {
			w.message()
		}
	}
}

// changed handles the server's report that a key that the connection has read has changed.
func (p *peers) changed(key string, now time.Time) {
	for _, w := range p.waiting[key] {
		w.changed(now)
	}
}

// allChanged is changed for all keys.
func (p *peers) allChanged(now time.Time) {
	for w := range p.all {
		w.changed(now)
	}
}

// all yields the waiters.
func (p *peers) all(yield func(*Waiter) bool) {
	for _, waiters := range p.waiting {
		for _, w := range waiters {
			if !yield(w) {
				return
			}
		}
	}
}

// lost resets what is known of a lost connection, and wakes the waiters that relied on it.
func (p *peers) lost() {
	p.tracks, p.channels = false, newChannels()
	clear(p.asked)
	for w := range p.all {
		w.lost()
	}
}

// channels are the channels that a connection is or will soon be subscribed to: of keys, and the listeners' common ones. A
// channel without waiters stays subscribed for a while, so that the next waiter for the same key needs no new subscription.
type channels struct {
	all  map[string]*channel
	idle []string // channels to unsubscribe from
}

// channel is a subscribed channel.
type channel struct {
	waiters []*Waiter
	inSlot  bool // also subscribed in its slot
	common  bool // it is also a listener's common channel
	idle    bool // it is among the idle ones
}

func newChannels() channels { return channels{all: map[string]*channel{}} }

func (c *channel) unused() bool { return len(c.waiters) == 0 && !c.common }

// at returns the channel of a name, and whether it is new, so that the caller must subscribe to it.
func (c *channels) at(name string) (ch *channel, fresh bool) {
	ch = c.all[name]
	if fresh = ch == nil; fresh {
		ch = &channel{}
		c.all[name] = ch
	}
	return ch, fresh
}

// add adds a waiter to its channel, and returns whether to subscribe to that, and whether also in its slot.
func (c *channels) add(w *Waiter) (fresh, inSlot bool) {
	ch, fresh := c.at(w.Channel)
	if inSlot = w.sharded && !ch.inSlot; inSlot {
		ch.inSlot = true
	}
	if !slices.Contains(ch.waiters, w) {
		ch.waiters = append(ch.waiters, w)
	}
	return fresh, inSlot
}

// isCommon reports whether a common channel is subscribed.
func (c *channels) isCommon(name string) bool {
	ch := c.all[name]
	return ch != nil && ch.common
}

// addCommon notes that a common channel is subscribed.
func (c *channels) addCommon(name string) {
	ch, _ := c.at(name)
	ch.common = true
}

// removeCommon notes that a channel is no listener's common channel any more. It reports the same as remove.
func (c *channels) removeCommon(name string) (untidy bool) {
	ch := c.all[name]
	if ch == nil || !ch.common {
		return false
	}
	ch.common = false
	return c.vacant(name, ch)
}

// vacant makes a channel idle if it is no longer needed.
func (c *channels) vacant(name string, ch *channel) (untidy bool) {
	if !ch.unused() || ch.idle {
		return false
	}
	ch.idle = true
	c.idle = append(c.idle, name)
	return len(c.idle) == 1
}

// unused takes the idle channels that still have no waiters.
func (c *channels) unused() (names, inSlots []string) {
	for _, name := range c.idle {
		ch := c.all[name]
		if ch == nil {
			continue
		}
		if ch.idle = false; ch.unused() {
			delete(c.all, name)
			if names = append(names, name); ch.inSlot {
				inSlots = append(inSlots, name)
			}
		}
	}
	c.idle = nil
	return names, inSlots
}

// answered handles the reply to a subscription. It returns the users of the channel's waiters. If the subscription is refused,
// it returns only the users of those waiters that have no other way.
func (c *channels) answered(name string, refused bool) (users []*user) {
	ch := c.all[name]
	if ch == nil {
		return nil
	}
	if refused {
		delete(c.all, name)
	}
	for _, w := range ch.waiters {
		switch {
		case refused && w.tracks: // tracking still wakes it
			continue
		case refused:
			w.watched = false
		}
		if !slices.Contains(users, w.user) {
			users = append(users, w.user)
		}
	}
	return users
}
