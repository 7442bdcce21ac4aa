package queue

import (
	"math"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/lockregistry/lockregistry/internal/clock"
)

// Message is what a script tells a process about the queue of a key.
type Message struct {
	what   byte // one of the constants below
	Number string
	time   time.Duration
	Key    string
}

const (
	tellsGrant = 'g' // the hold owns the key, with a lease of so long
	tellsNext  = 'n' // its ticket is the next one, and may look when so long is over
	tellsGone  = 'd' // its ticket was taken out, by an older version
)

// ParseMessage reads "<what> <number> <milliseconds> <key>". Older versions have "@" and a time behind the milliseconds of a
// grant.
func ParseMessage(text string) (m Message, ok bool) {
	what, rest, ok1 := strings.Cut(text, " ")
	number, rest, ok2 := strings.Cut(rest, " ")
	ms, key, ok3 := strings.Cut(rest, " ")
	ms, _, _ = strings.Cut(ms, "@")
	n, err := strconv.ParseFloat(ms, 64) // as Lua writes it: with an exponent, from 15 digits on
	if !ok1 || !ok2 || !ok3 || err != nil || !(n >= 0) || len(what) != 1 {
		return m, false
	}
	return Message{what[0], number, clock.Milliseconds(int64(min(n, math.MaxInt64/2))), key}, true
}

// Grants tells whether the message is that of a grant.
func (m Message) Grants() bool { return m.what == tellsGrant }

// mailbox takes the messages for a waiting call.
type mailbox struct {
	came chan struct{} // has room for one

	mu     sync.Mutex
	number string // of the attempt, empty between attempts
	mail   mail
	closed bool
}

// mail is what messages have said since it was last taken.
type mail struct {
	granted time.Duration // the call's hold owns the key, with a lease of so long; 0: it does not
	next    time.Duration // the ticket is the next one, which may look when so long is over
	isNext  bool
	look    bool // something happened that only a look tells
}

// open makes the mailbox that of an attempt, without mail; of none when number is empty.
func (b *mailbox) open(number string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.number, b.mail = number, mail{}
}

func (b *mailbox) take() mail {
	b.mu.Lock()
	defer b.mu.Unlock()
	taken := b.mail
	b.mail = mail{}
	return taken
}

// put takes a message for the attempt, and reports whether it was one. It wakes the attempt.
func (b *mailbox) put(m Message) bool {
	b.mu.Lock()
	mine := m.Number == b.number && !b.closed
	switch {
	case !mine:
	case m.what == tellsGrant:
		b.mail.granted = m.time
	case m.what == tellsNext:
		b.mail.isNext, b.mail.next = true, m.time
	default:
		b.mail.look = true
	}
	b.mu.Unlock()
	if mine {
		b.ring()
	}
	return mine
}

// stir has the call look.
func (b *mailbox) stir() {
	b.mu.Lock()
	b.mail.look = true
	b.mu.Unlock()
	b.ring()
}

func (b *mailbox) ring() {
	select {
	case b.came <- struct{}{}:
	default:
	}
}

// close returns what nobody has taken. From now on there is none.
func (b *mailbox) close() mail {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.closed = true
	return b.mail
}

// Told passes a message on to the call that waits for it, or to the hold that it is about: in this order, since a call
// makes its hold the lock's before it closes its mailbox. A hold that is taken for nobody's would be removed while it is held.
func (p *Path) Told(m Message) bool {
	if box := p.box(); box != nil && box.put(m) {
		return true
	}
	if m.what != tellsGrant {
		return false
	}
	if h := p.local.Hold(); h != nil && h.Number() == m.Number {
		h.Regranted() // mutant: granted once more
		return true
	}
	return p.expects(m.Number)
}

// box is that of the call that waits in the queue, if one does.
func (p *Path) box() *mailbox {
	if w := p.active.Load(); w != nil && w.box.came != nil {
		return &w.box
	}
	return nil
}

// Stir has the call that waits in the queue look, since something was granted to another attempt of its registry, which it
// takes over. It tells whether one waits.
func (p *Path) Stir() bool {
	box := p.box()
	if box != nil {
		box.stir()
	}
	return box != nil
}
