package transport

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/rueidis"

	"github.com/lockregistry/lockregistry/internal/belief"
	"github.com/lockregistry/lockregistry/internal/clock"
	"github.com/lockregistry/lockregistry/internal/fault"
	"github.com/lockregistry/lockregistry/internal/topology"
)

// freshConns has the fresh connection of a suspect shard, made since the shard became suspect. One is made at a time, with a
// pause after a failure.
type freshConns struct {
	shard *Shard

	mu      sync.Mutex
	conn    *freshConn    // nil: none
	last    *way          // the client's own connections, when there will be no fresh one; nil: none was needed
	making  chan struct{} // closed when the connection exists or has failed; nil: none is being made
	began   clock.Instant // when making it began
	failed  int           // consecutive failures
	again   clock.Instant // none is made before then
	tidying bool          // the timer of tidy runs

	refusals  int           // how many of them led to a replica, one soon after the other
	refusedAt clock.Instant // when the last of these was noticed

	// hanging has when the goroutines that make connections began, also those that were given up.
	hanging []clock.Instant
}

type freshConn struct {
	rueidis.DedicatedClient
	way
	broken atomic.Bool
}

const (
	poolWait   = 6 * belief.Connect // longer than an attempt of rueidis takes, which gives up after 5 s
	mostMaking = 8                  // goroutines that make one
	mostUnfit  = 1024               // old connections in the client's pool, by default
)

// get returns a connection made since the shard became suspect, or nil if there is none before over reports true. None: there
// will be none, because the client's pool is exhausted, or all attempts hang, or the shard is not suspect any more. Then using
// the existing connections is better than sending nothing. With Sentinels either is used only once they vouch for the server.
func (f *freshConns) get(over func() bool) (conn *freshConn, none bool) {
	for !over() {
		address, now := f.shard.present(), f.shard.client.Clock.Now()
		if !f.shard.IsSuspect(now) {
			return nil, !f.shard.belief.Closed()
		}
		f.mu.Lock()
		if f.conn == nil || f.conn.broken.Load() || f.conn.Address != address || f.shard.belief.Doubts(&f.conn.Way) {
			f.abandon()
		}
		conn, none = f.conn, false
		var changed <-chan struct{}
		var due clock.Instant
		switch {
		case conn != nil && conn.Trusted():
			f.mu.Unlock()
			return conn, false
		case conn != nil:
			changed, due = f.ask(&conn.way, now)
		default:
			if changed, due, none = f.attempt(now); none {
				changed, due, none = f.lastResort(address, now)
			}
		}
		f.mu.Unlock()
		if none {
			return nil, true
		}
		wait := now.Until(due)
		if f.shard.client.resolver != nil { // there may be a successor
			wait = min(wait, topology.AskPause)
		}
		limit := time.NewTimer(wait)
		select {
		case <-changed:
			limit.Stop()
		case <-limit.C:
		}
	}
	return nil, false
}

// attempt has a connection made, unless that is under way or it is too early. It returns what to wait for, until when at most;
// nil, which blocks, until it is time for another attempt. The caller holds the mutex, as for lastResort.
func (f *freshConns) attempt(now clock.Instant) (made <-chan struct{}, due clock.Instant, none bool) {
	if len(f.hanging) > 0 && f.hanging[0].Until(now) >= poolWait {
		return nil, 0, true
	}
	due = f.began.Add(f.shard.RoundTrip().Connect())
	if f.making != nil && now >= due {
		f.giveUp(now)
	}
	if f.making == nil && now >= f.again {
		if len(f.hanging) == mostMaking {
			return nil, 0, true
		}
		f.making, f.began = make(chan struct{}), now
		f.hanging = append(f.hanging, now)
		go f.make(f.making, now)
		due = now.Add(f.shard.RoundTrip().Connect())
	}
	if f.making == nil {
		due = f.again
	}
	return f.making, due, false
}

// lastResort reports whether the client's own connections are to be used, or what to wait for until then. What the Sentinels said
// before the newest doubt does not count.
func (f *freshConns) lastResort(address string, now clock.Instant) (asked <-chan struct{}, due clock.Instant, use bool) {
	if !f.shard.client.watched() {
		return nil, 0, true
	}
	silent := f.shard.belief.SilentAt()
	if f.last == nil || f.last.Address != address || f.last.Since < silent || f.shard.belief.Doubts(&f.last.Way) {
		f.last = &way{Way: belief.Way{Address: address, Since: now, Greeted: now}}
	}
	if f.last.Trusted() {
		return nil, 0, true
	}
	asked, due = f.ask(f.last, now)
	return asked, due, false
}

// forgetLast has the Sentinels asked anew before the client's own connections are the last resort.
func (f *freshConns) forgetLast() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.last = nil
}

// giveUp gives up the attempt under way, which counts as failed. The round trip may have become longer, so it is measured anew.
// The caller holds the mutex.
func (f *freshConns) giveUp(now clock.Instant) {
	close(f.making)
	f.making = nil
	f.failed++
	f.again = now.Add(clock.Pause(f.failed, clock.MostPause))
	f.shard.act(belief.Measure, now)
}

// make makes a fresh connection. It may hang: for some seconds if the server is frozen, or until the client has a free
// connection. A connection after that may lead to the old master, which has come back meanwhile, so it is not used.
func (f *freshConns) make(making chan struct{}, since clock.Instant) {
	s, address := f.shard, f.shard.present()
	conn := s.dedicate(since)
	f.mu.Lock()
	defer f.mu.Unlock()
	f.hanging = slices.DeleteFunc(f.hanging, func(began clock.Instant) bool { return began == since })
	now, expected := s.client.Clock.Now(), f.making == making
	late := since.Until(now) >= s.RoundTrip().Connect() // mutant: late greeting
	if !expected || conn == nil || late || s.belief.Closed() || !s.IsSuspect(now) {
		if expected {
			f.giveUp(now)
		}
		if conn != nil {
			go conn.Close()
		}
		return
	}
	close(f.making)
	f.making, f.failed, f.again = nil, 0, 0
	f.conn = &freshConn{DedicatedClient: conn, way: way{Way: belief.Way{Address: address, Since: since, Greeted: now}}}
	if !s.client.watched() {
		f.conn.Trust()
	}
	if !f.tidying {
		f.tidying = true
		time.AfterFunc(belief.Old, f.tidy)
	}
}

// dedicate gets a connection that was made at since or later. The client's pool may have older ones, so the server is asked
// for the age, in whole seconds; if it does not say, the connection is accepted. It returns nil if there is none in time.
func (s *Shard) dedicate(since clock.Instant) rueidis.DedicatedClient {
	pooled := s.fresh.pooled()
	for unfit := 0; ; {
		node := s.node()
		if node == nil {
			return nil
		}
		client, _ := node.Dedicate() // closing a connection takes it out of the pool
		t, trip := s.client, s.RoundTrip()
		end := t.bound(&Wait{Ctx: context.Background(), Limit: trip.Plus(askLimit)}, t.Clock.Now(), nil)
		info, err := client.Do(end, client.B().Arbitrary("CLIENT", "INFO").Build()).ToString()
		end.stop()
		if errors.Is(err, fault.NoAnswer) { // a new connection answers
			client.Close()
			if since.Until(t.Clock.Now()) >= trip.Connect() {
				return nil
			}
			continue
		}
		if pooled > 0 && s.leadsToReplica(client) {
			client.Close()
			pooled--
			continue
		}
		age, untold := ageOf(info)
		known := t.selected.Load()
		another := err == nil && known != nil && *known != "" && databaseIn(info) != *known // another user of the pool has selected it
		if !another && (err != nil || untold != nil || age-time.Second <= since.Until(t.Clock.Now())) {
			return client
		}
		client.Close()
		if unfit++; unfit > mostUnfit && !s.stillSuspect(unfit-mostUnfit) {
			return nil
		}
	}
}

// stillSuspect waits for a while, longer with each time, and reports whether the shard is suspect then. A proxy may report its
// own age, so that even new connections look old.
func (s *Shard) stillSuspect(times int) bool {
	<-time.After(clock.Pause(times, time.Second))
	return s.IsSuspect(s.client.Clock.Now())
}

func ageOf(info string) (time.Duration, error) {
	_, after, _ := strings.Cut(info, " age=")
	digits, _, _ := strings.Cut(after, " ")
	age, err := strconv.Atoi(digits)
	return time.Duration(age) * time.Second, err
}

// tidy returns the fresh connection to the client when the shard is no longer suspect.
func (f *freshConns) tidy() {
	f.mu.Lock()
	defer f.mu.Unlock()
	now := f.shard.client.Clock.Now()
	switch until, inDoubt := f.shard.belief.SuspectUntil(); {
	case f.conn == nil:
		f.tidying = false
	case inDoubt:
		time.AfterFunc(belief.Old, f.tidy)
	case now < until:
		time.AfterFunc(now.Until(until), f.tidy)
	default:
		f.tidying = false
		f.abandon()
	}
}

// silent gives up the connection that a command may have used; sent is when that was sent.
func (f *freshConns) silent(sent clock.Instant) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.conn != nil && f.conn.Since <= sent {
		f.abandon()
	}
}

// abandon closes the connection, if there is one; its pending commands fail. The caller holds the mutex.
func (f *freshConns) abandon() {
	if f.conn != nil {
		go f.conn.Close()
		f.conn = nil
	}
}
