package transport

import (
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lockregistry/lockregistry/internal/clock"
	"github.com/lockregistry/lockregistry/internal/fault"
)

// Shard is the way to a master; see routes.
type Shard struct {
	client       *Client
	Address      string       // of the node of a cluster; empty for a single server, and while that is not known
	heard        atomic.Int64 // an instant: when the newest reply came, or an older one of a moment before
	messaged     atomic.Int64 // an instant: when the newest message came
	suspectUntil atomic.Int64 // an instant: until when
	silentAt     atomic.Int64 // an instant: when the server was found silent; a reply to what was sent before is late
	estimate     estimate
	probes       prober
	brokeAfter   atomic.Int64  // what heard was when a connection broke last
	replies      atomic.Int32  // since a connection broke; counts to manyAnswers
	places       chan struct{} // one is taken by each command that has a goroutine

	bounds [mostDirect / placesOfAGroup]atomic.Pointer[boundGroup] // of the commands that their callers send themselves

	_       cacheLine
	inARow  atomic.Int32 // how many of those have come one at a time, without a pause
	_       cacheLine
	running atomic.Int32 // commands that have a goroutine, or wait for a place

	own      ownState
	batching atomic.Pointer[batcher] // nil: none
	senders  atomic.Int32            // of it, and of those before

	waiting atomic.Int32 // calls that wait for a message, and send nothing meanwhile
	keeping atomic.Bool  // a timer runs that asks for them; see KeepAlive

	mu      sync.Mutex
	news    chan struct{} // closed when it is time to look at the shard again; nil: nobody waits for that
	fresh   *freshConn    // nil: none
	making  chan struct{} // closed when the fresh connection is there, or is not to be had; nil: none is being made
	began   clock.Instant // when making it began
	failed  int           // how often that has failed in a row
	again   clock.Instant // not before is another one made
	hanging int           // goroutines that make fresh connections, those of which nothing is expected any more among them
	stuck   int           // those of them that have hung for so long that the client must have no connection left
	tidying bool          // a timer runs that gives the fresh connection back
	closed  bool
}

func newShard(t *Client, address string) *Shard {
	s := &Shard{client: t, Address: address, places: make(chan struct{}, mostAsync)}
	s.heard.Store(int64(notHeard))
	s.own.possible = isSingle(t.redis)
	return s
}

// Healthy tells whether the shard is healthy. In a crowd each process is silent until it is its turn, and then it is a message
// that tells it so.
func (s *Shard) Healthy(now clock.Instant) bool {
	news := clock.Instant(max(s.heard.Load(), s.messaged.Load()))
	return now < news.Add(healthyFor) && !s.IsSuspect(now) && s.warm()
}

// enter returns the limit for a command that its caller sends itself, who must begin it and stop it, if the shard is healthy
// and has room for one.
func (s *Shard) enter(now clock.Instant) *bound {
	if !s.Healthy(now) || s.client.ignoresContexts.Load() {
		return nil
	}
	return s.place()
}

// awaitNews waits a moment until the shard is healthy again, if it is idle: when many come at once, a reply to the first is
// sooner there than goroutines for all. It reports false when it has not waited. Without it 64 calls that come at once after a
// pause take 1.1 times the time and 1.3 times the processor, 512 take 1.6 and 1.7.
func (s *Shard) awaitNews(now clock.Instant) bool {
	if s.IsSuspect(now) || !s.warm() || s.client.ignoresContexts.Load() {
		return false
	}
	s.mu.Lock()
	if now < clock.Instant(s.heard.Load()).Add(healthyFor) { // tellNews comes after that changes
		s.mu.Unlock()
		return true
	}
	if s.news == nil {
		s.news = make(chan struct{})
		time.AfterFunc(newsWait, s.tellNews)
	}
	news := s.news
	s.mu.Unlock()
	<-news
	return true
}

func (s *Shard) tellNews() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.news != nil {
		close(s.news)
		s.news = nil
	}
}

// judge takes in a reply, or that there was none while its caller waited, and tells whether it is late. That a caller has gone
// says nothing about the server: see prober. Excused tells that it may have taken so long because this process stood still.
// Then it is late all the same, and asked for again.
func (s *Shard) judge(p *Wait, err error, x exchange) bool {
	came, took := x.came, x.sent.Until(x.came) // mutant: no answer is late
	switch {
	case errors.Is(err, fault.NotSent):
		return false
	case errors.Is(err, fault.NoAnswer):
		if p.probes == 0 {
			s.probe(x.sent)
		}
		return false
	case took >= s.silence(x.trip)+p.holds && !x.excused: // the timer that tells so is about to
		s.foundSilent(x.sent, came)
		return true
	case took >= x.trip.Late(p.Lease)+p.holds, p.Obtains && !x.trip.Known && took >= lateReply:
		return true
	case x.sent < clock.Instant(s.silentAt.Load()):
		// Its master was silent for long enough for a failover, whatever this answer took.
		return true
	}
	if fault.Answered(err) {
		if pause := clock.Instant(s.heard.Load()).Until(came); pause >= heardAgain {
			s.heard.Store(int64(came))
			if pause >= healthyFor {
				s.tellNews()
			}
		}
		if !s.warm() {
			s.replies.Add(1)
		}
	} else { // the connection is broken: to make another one may take long
		s.brokeAfter.Store(max(s.brokeAfter.Load(), s.heard.Load()))
		s.heard.Store(int64(notHeard))
		s.replies.Store(0)
		s.dropOwn()
		if s.client.resolver != nil {
			s.beSuspect(came)
		}
	}
	return false
}

// silence is for how long a command may have no reply until the shard is suspect. Until all connections have surely been made
// it may have to wait for its own: that is no silence, but its reply is late as any other that takes so long.
func (s *Shard) silence(t RoundTrip) time.Duration {
	if s.warm() {
		return t.Silence()
	}
	return t.Silence() + 4*t.sure()
}

// Plus is a time for a reply that was chosen for a server nearby, with a connection that may have to be made.
func (s *Shard) Plus(d time.Duration) time.Duration {
	t := s.RoundTrip()
	if s.warm() {
		return t.Plus(d)
	}
	return t.Plus(d) + 4*t.Base
}

// RoundTrip is what is known of the way to the master.
func (s *Shard) RoundTrip() RoundTrip { return s.estimate.roundTrip() }

// warm tells whether there have been so many replies since a connection broke that each of the few connections among which
// rueidis chooses has surely been made.
func (s *Shard) warm() bool { return s.replies.Load() >= manyReplies }

// GotMessage is for when a message has come from the shard's server.
func (s *Shard) GotMessage(now clock.Instant) { s.messaged.Store(int64(now)) }

// LastReply is when the newest reply came; not positive: there is none.
func (s *Shard) LastReply() clock.Instant {
	return clock.Instant(max(s.heard.Load(), s.brokeAfter.Load()))
}

// LastBreak is when the newest reply before one of its connections broke came; 0: none has broken.
func (s *Shard) LastBreak() clock.Instant { return clock.Instant(s.brokeAfter.Load()) }

// Overdue tells whether a command that was sent at some time would be answered by now, if the server were there.
func (s *Shard) Overdue(sent clock.Instant) bool {
	return sent.Until(s.client.Clock.Now()) >= s.RoundTrip().Plus(tooSoon)
}

// nobodys tells whether the shard leads to no server in particular: the first one of a cluster.
func (s *Shard) nobodys() bool { return s.client.resolver != nil && s.Address == "" }

// IsSuspect tells whether the shard is suspect.
func (s *Shard) IsSuspect(now clock.Instant) bool { return now < clock.Instant(s.suspectUntil.Load()) }

// beSuspect has commands go another way.
func (s *Shard) beSuspect(now clock.Instant) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.closed {
		s.suspectUntil.Store(int64(now.Add(suspectFor)))
		s.dropOwn()
		s.stopBatching()
	}
}

// foundSilent is for when a command that was sent at some time has had no reply for too long. What was sent before now is
// late, if it is answered at all, even if it has not taken long: a master that was frozen answers all that was sent to it in
// between as soon as it goes on. While the shard is suspect, only a command that was sent since tells anything new: that the
// fresh connection, if there was one by then, is silent as well.
func (s *Shard) foundSilent(sent, now clock.Instant) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return
	}
	known := s.IsSuspect(now) && sent < clock.Instant(s.silentAt.Load())
	s.suspectUntil.Store(int64(now.Add(suspectFor)))
	if known {
		return
	}
	s.silentAt.Store(int64(now))
	s.dropOwn()
	s.stopBatching()
	if f := s.fresh; f != nil && f.since <= sent {
		s.abandon(f)
	}
	s.learn()
}
