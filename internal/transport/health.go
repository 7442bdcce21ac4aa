package transport

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/lockregistry/lockregistry/internal/clock"
)

// health is what is known of a master by its replies and messages, and by their absence.
//
// Rueidis sends a command when there is room in the queue of its connection, and the connection is made, without a look at the
// context of the command. So a shard is in one of three states:
//
//	healthy  it has just been heard from, by a reply or a message. A caller sends its command itself.
//	idle     nothing has been heard for a while, so the next command may hang. A sender of the batcher takes it. Where there
//	         is none it gets one of a few goroutines, of which all but the first wait for the shard to be healthy again.
//	suspect  a command was not answered in its time, or so late that a failover may have happened meanwhile. As idle, and
//	         commands go another way; see below.
//
//	healthy ──time──▶ idle ──reply──▶ healthy
//	   └───────────────┴──late or no reply──▶ suspect ──time without any──▶ idle
//
// A reply that comes late may come from a master that was frozen and deposed, and then went on with what was queued for it.
// Until it is demoted it answers everything, as a master, on the connections that it has. So what comes late is not believed,
// and while a shard is suspect its commands go over a connection made since, and over no other: the client's address, or its
// Sentinels, lead that one to the new master. Where the server has been slow all the time, answers on that connection are
// believed although they take long. In a cluster, commands on a suspect shard go over one to the node that most nodes say is
// the master; see topology.Resolver. There a connection that breaks makes the shard suspect, too.
type health struct {
	heard        atomic.Int64 // an instant: when the newest reply came, or an older one of a moment before
	messaged     atomic.Int64 // an instant: when the newest message came
	suspectUntil atomic.Int64 // an instant
	silentAt     atomic.Int64 // an instant: when the server was found silent; a reply to what was sent before is late
	brokeAfter   atomic.Int64 // what heard was when a connection broke last
	replies      atomic.Int32 // since a connection broke; counts to manyReplies

	mu     sync.Mutex
	news   chan struct{} // closed when it is time to look at the shard again; nil: nobody waits for that
	closed atomic.Bool   // it is never suspect again
}

const (
	healthyFor  = 10 * time.Millisecond // after a reply or a message
	heardAgain  = healthyFor / 8        // a reply so soon after another one is not worth noting
	manyReplies = 32
	newsWait    = 5 * time.Millisecond // for so long a command waits until the shard is healthy

	notHeard = clock.Instant(-time.Hour) // when the newest reply came, if there is none

	// suspectFor is longer than a deposed master can answer on the client's own connections. Rueidis breaks those that have been
	// silent for its ConnWriteTimeout, 10 s by default, which it notices within 2 s; so a master that comes back to them was
	// frozen for 12 s at most. Sentinel demotes it 8 to 10 s later.
	suspectFor = 30 * time.Second // mutant: trusted too soon
)

// IsHealthy tells whether the shard is healthy. Where many processes wait, each is silent until it is its turn, and then it is
// a message that tells it so.
func (h *health) IsHealthy(now clock.Instant) bool {
	news := clock.Instant(max(h.heard.Load(), h.messaged.Load()))
	return now < news.Add(healthyFor) && !h.IsSuspect(now) && h.warm()
}

// IsSuspect tells whether the shard is suspect.
func (h *health) IsSuspect(now clock.Instant) bool { return now < clock.Instant(h.suspectUntil.Load()) }

// warm tells whether there have been so many replies since a connection broke that each of the few connections among which
// rueidis chooses has surely been made.
func (h *health) warm() bool { return h.replies.Load() >= manyReplies }

// GotMessage is for when a message has come from the shard's server.
func (h *health) GotMessage(now clock.Instant) { h.messaged.Store(int64(now)) }

// LastReply is when the newest reply came; not positive: there is none.
func (h *health) LastReply() clock.Instant {
	return clock.Instant(max(h.heard.Load(), h.brokeAfter.Load()))
}

// LastBreak is when the newest reply before one of its connections broke came; 0: none has broken.
func (h *health) LastBreak() clock.Instant { return clock.Instant(h.brokeAfter.Load()) }

// answered takes in a reply that is not late. One on a way that was chosen since the shard is suspect tells nothing of the
// client's own connections.
func (h *health) answered(came clock.Instant, trusted bool) {
	if pause := clock.Instant(h.heard.Load()).Until(came); pause >= heardAgain {
		h.heard.Store(int64(came))
		if pause >= healthyFor {
			h.tellNews()
		}
	}
	if !trusted && !h.warm() {
		h.replies.Add(1)
	}
}

// broken takes in that a connection is: to make another one may take long. The fresh connection counts, too. While the shard is
// suspect no call's command goes over the client's own ones, so nobody is told that the server has broken them with it.
func (h *health) broken() {
	h.brokeAfter.Store(max(h.brokeAfter.Load(), h.heard.Load()))
	h.heard.Store(int64(notHeard))
	h.replies.Store(0)
}

func (h *health) beSuspect(now clock.Instant) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.closed.Load() {
		h.suspectUntil.Store(int64(now.Add(suspectFor)))
	}
}

// silent is beSuspect for when a command that was sent at some time has had no reply for too long. It reports whether that is
// new: while the shard is suspect, only a command that was sent since tells anything new.
func (h *health) silent(sent, now clock.Instant) (isNew bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed.Load() {
		return false
	}
	isNew = !h.IsSuspect(now) || sent >= clock.Instant(h.silentAt.Load())
	h.suspectUntil.Store(int64(now.Add(suspectFor)))
	if isNew {
		h.silentAt.Store(int64(now))
	}
	return isNew
}

func (h *health) close() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.closed.Store(true)
	h.suspectUntil.Store(0)
}

// awaitNews waits a moment until the shard is healthy again, if it is idle: when many come at once, a reply to the first is
// sooner there than goroutines for all. It reports false when it has not waited. Without it 64 calls that come at once after a
// pause take 1.1 times the time and 1.3 times the processor, 512 take 1.6 and 1.7.
func (h *health) awaitNews(now clock.Instant) bool {
	if h.IsSuspect(now) || !h.warm() {
		return false
	}
	h.mu.Lock()
	if now < clock.Instant(h.heard.Load()).Add(healthyFor) { // tellNews comes after that changes
		h.mu.Unlock()
		return true
	}
	if h.news == nil {
		h.news = make(chan struct{})
		time.AfterFunc(newsWait, h.tellNews)
	}
	news := h.news
	h.mu.Unlock()
	<-news
	return true
}

func (h *health) tellNews() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.news != nil {
		close(h.news)
		h.news = nil
	}
}
