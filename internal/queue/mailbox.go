package queue

import (
	"math"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/lockregistry/lockregistry/internal/barging"
	"github.com/lockregistry/lockregistry/internal/clock"
)

// Message is a script's message to a process about the queue of a key.
type Message struct {
	what   byte // one of the constants below
	Number string
	time   time.Duration
	Key    string
}

const (
	grantMessage = 'g' // the hold owns the key, with a lease of this length
	nextMessage  = 'n' // its ticket is the next one, and it may look once this time has passed
	lookMessage  = 'd' // its ticket was removed, or must show that its process runs: it looks
)

// ParseMessage reads "<what> <number> <milliseconds> <key>". Older versions append "@" and a time to the milliseconds of a
// grant.
func ParseMessage(text string) (m Message, ok bool) {
	what, rest, ok1 := strings.Cut(text, " ")
	number, rest, ok2 := strings.Cut(rest, " ")
	ms, key, ok3 := strings.Cut(rest, " ")
	ms, _, _ = strings.Cut(ms, "@")
	n, err := strconv.ParseFloat(ms, 64) // as Lua writes it: with an exponent from 15 digits on
	if !ok1 || !ok2 || !ok3 || err != nil || !(n >= 0) || len(what) != 1 {
		return m, false
	}
	return Message{what[0], number, clock.Milliseconds(int64(min(n, math.MaxInt64/2))), key}, true
}

// Grants reports whether the message is about a grant.
func (m Message) Grants() bool { return m.what == grantMessage }

// mailbox takes the messages for a waiting call.
type mailbox struct {
	came chan struct{} // has room for one

	mu     sync.Mutex
	number string // of the attempt; empty between attempts, and when no call waits
	mail   mail
}

// mail is the content of the messages since it was last taken.
type mail struct {
	granted time.Duration // the call's hold owns the key, with this lease; 0: it does not
	next    time.Duration // if isNext: after how long the call may look
	isNext  bool
	window  bool // isNext, most likely because of a barging window, see put
	look    bool // something happened that only a look shows
}

// open opens the mailbox for an attempt; if number is empty for none, so that put refuses messages from now on. It returns the
// mail that was not taken.
func (b *mailbox) open(number string) (left mail) {
	b.mu.Lock()
	defer b.mu.Unlock()
	left = b.mail
	b.number, b.mail = number, mail{}
	return left
}

func (b *mailbox) take() mail {
	b.mu.Lock()
	defer b.mu.Unlock()
	taken := b.mail
	b.mail = mail{}
	return taken
}

// put takes a message and wakes the attempt. It reports whether the message was for the attempt. The time in a message about the
// next ticket shows whether it is about a barging window:
//
//	none                      the call may look at once
//	at most a window          a window is open; rarely, a lease with so little left
//	longer than any window    for the second ticket, or when a lease is over
func (b *mailbox) put(m Message) bool {
	b.mu.Lock()
	mine := m.Number == b.number && m.Number != ""
	switch {
	case !mine:
	case m.what == grantMessage:
		b.mail.granted = m.time
	case m.what == nextMessage:
		b.mail.isNext, b.mail.next, b.mail.window = true, m.time, m.time > 0 && m.time <= barging.Window
	default:
		b.mail.look = true
	}
	b.mu.Unlock()
	if mine {
		b.wake()
	}
	return mine
}

func (b *mailbox) wakeToLook() {
	b.mu.Lock()
	b.mail.look = true
	b.mu.Unlock()
	b.wake()
}

func (b *mailbox) wake() {
	select {
	case b.came <- struct{}{}:
	default:
	}
}

// Deliver passes a message to the call that waits for it, or to the hold that it names. It tries the call first, because a call
// gives the lock its hold before it closes its mailbox, so one of the two takes the message. In the other order neither might,
// and a hold in use would be removed as unclaimed.
func (p *Path) Deliver(m Message) bool {
	if w := p.active.Load(); w != nil && w.mail != nil && w.mail.put(m) {
		return true
	}
	if m.what != grantMessage {
		return false
	}
	if h := p.lock.Hold(); h != nil && h.Number() == m.Number {
		h.GrantAgain() // mutant: granted once more
		return true
	}
	return p.expects(m.Number)
}

// Wake makes the call that waits in the queue look: another attempt of its registry was granted the lock, and the call takes
// that grant over. It reports whether a call waits.
func (p *Path) Wake() bool {
	w := p.active.Load()
	waits := w != nil && w.mail != nil
	if waits {
		w.mail.wakeToLook()
	}
	return waits
}
