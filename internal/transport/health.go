package transport

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/lockregistry/lockregistry/internal/belief"
	"github.com/lockregistry/lockregistry/internal/clock"
)

// health is what is known about a master from its replies and messages, and from their absence.
//
// Rueidis waits for its connection, and for room in the connection's queue, without regard to a command's context. So a shard
// is in one of three states:
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
// A late reply may come from a master that was frozen and deposed, and then went on with its queued commands. Until it is
// demoted, it answers everything on its existing connections as a master. So late replies are not believed, and commands on a
// suspect shard go only over a fresh connection, made since then, which the client's address or its Sentinels lead to the new
// master. If the server was only slow, replies on the fresh connection are believed although they take long. In a cluster
// they go over a fresh connection to the node that most nodes name as the master; see topology.Resolver. There a broken
// connection makes the shard suspect, too.
//
// Where Sentinels are asked, time alone does not end what they have raised: see doubt.
type health struct {
	heard        atomic.Int64 // an instant: when the newest reply came, or one of a moment before
	messaged     atomic.Int64 // an instant: when the newest message came
	suspectUntil atomic.Int64 // an instant
	inDoubt      atomic.Bool  // the shard is suspect until its Sentinels vouch for its server
	doubtedAt    atomic.Int64 // an instant: when they last raised a doubt; what they said before does not count
	silentAt     atomic.Int64 // an instant: when the server was found silent; replies to earlier commands are late
	brokeAfter   atomic.Int64 // the value of heard when a connection last broke
	replies      atomic.Int32 // since a connection broke; counts to manyReplies

	mu     sync.Mutex
	news   chan struct{} // closed when the state of the shard changes; nil: no command waits for that
	closed atomic.Bool   // the shard is never suspect again
}

const (
	healthyFor  = belief.Tick / 10 // after a reply or a message
	heardAgain  = healthyFor / 8   // a reply this soon after another one is not noted
	manyReplies = 32
	newsWait    = healthyFor / 2 // how long a command waits for the shard to be healthy

	notHeard = clock.Instant(-time.Hour) // the value of heard without a reply

	suspectFor = belief.Old
)

// IsHealthy reports whether the shard is healthy. Messages count, too: with many waiting processes each sends nothing until a
// message tells it that its turn has come.
func (h *health) IsHealthy(now clock.Instant) bool {
	news := clock.Instant(max(h.heard.Load(), h.messaged.Load()))
	return now < news.Add(healthyFor) && !h.IsSuspect(now) && h.warm()
}

// IsSuspect reports whether the shard is suspect.
func (h *health) IsSuspect(now clock.Instant) bool {
	return now < clock.Instant(h.suspectUntil.Load()) || h.inDoubt.Load()
}

// warm reports whether there were enough replies since a connection broke that all of the client's few connections have surely
// been made.
func (h *health) warm() bool { return h.replies.Load() >= manyReplies }

// GotMessage notes a message from the shard's server.
func (h *health) GotMessage(now clock.Instant) { h.messaged.Store(int64(now)) }

// LastReply returns when the newest reply came; not positive: there is none.
func (h *health) LastReply() clock.Instant {
	return clock.Instant(max(h.heard.Load(), h.brokeAfter.Load()))
}

// LastBreak returns when the newest reply before the last break of a connection came; 0: none has broken.
func (h *health) LastBreak() clock.Instant { return clock.Instant(h.brokeAfter.Load()) }

// answered notes a reply that is not late. A reply on a trusted way, chosen after the shard had become suspect, says nothing
// about the client's own connections.
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

// broken notes that a connection broke: making another one may take long. A broken fresh connection counts for the client's own
// ones: while the shard is suspect no command goes over those, so their end would go unnoticed.
func (h *health) broken() {
	h.brokeAfter.Store(max(h.brokeAfter.Load(), h.heard.Load()))
	h.heard.Store(int64(notHeard))
	h.replies.Store(0)
}

// beSuspect makes the shard suspect; not for less than it is.
func (h *health) beSuspect(now clock.Instant) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.closed.Load() {
		h.suspectUntil.Store(max(h.suspectUntil.Load(), int64(now.Add(suspectFor))))
	}
}

// endSuspicion undoes beSuspect, which was to last until then, unless the shard has become suspect for longer meanwhile.
func (h *health) endSuspicion(until clock.Instant) { h.suspectUntil.CompareAndSwap(int64(until), 0) }

// doubt makes the shard suspect until vouched ends that: its master may have been replaced, or may be about to be. No time ends
// it. A master may be frozen for longer than any, and whoever was idle meanwhile would believe it when it goes on.
func (h *health) doubt(at clock.Instant) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.closed.Load() {
		h.doubtedAt.Store(max(h.doubtedAt.Load(), int64(at)))
		h.inDoubt.Store(true) // mutant: doubt passes
	}
}

// vouched ends doubt: the Sentinels, asked at some time, vouch for the server that is in use. The shard stays suspect until some
// time. If doubt was raised since they were asked, it lasts.
func (h *health) vouched(asked, until clock.Instant) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.inDoubt.Load() && !h.doubtedSince(asked) { // mutant: newer doubt forgotten
		h.suspectUntil.Store(max(h.suspectUntil.Load(), int64(until))) // first: it is never suspect no more in between
		h.inDoubt.Store(false)
	}
}

// doubtedSince reports whether doubt was raised since the Sentinels were asked.
func (h *health) doubtedSince(asked clock.Instant) bool {
	return clock.Instant(h.doubtedAt.Load()) > asked
}

// silent makes the shard suspect because a command had no reply for too long; sent is when that was sent. It reports whether
// that is new: while the shard is suspect, only commands sent since then say anything new.
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
	h.inDoubt.Store(false)
}

// awaitNews waits a moment for an idle shard to be healthy again: when many commands come at once, the reply to the first comes
// sooner than goroutines for all start. It reports false if it has not waited. Without it 64 calls at once after a pause take
// 1.1 times the time and 1.3 times the CPU, 512 take 1.6 and 1.7.
func (h *health) awaitNews(now clock.Instant) bool {
	if h.IsSuspect(now) || !h.warm() {
		return false
	}
	h.mu.Lock()
	if now < clock.Instant(h.heard.Load()).Add(healthyFor) { // heard changes before tellNews
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
