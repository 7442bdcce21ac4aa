package transport

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"time"

	"github.com/redis/rueidis"

	"github.com/lockregistry/lockregistry/internal/clock"
	"github.com/lockregistry/lockregistry/internal/fault"
	"github.com/lockregistry/lockregistry/internal/topology"
)

// freshConn connection returns a connection made since the shard is suspect, or nil when there is none to be had until it is
// over. None tells that there will be none, because the client's pool is empty: to send nothing at all would be worse then
// than to believe the connections that there are.
func (s *Shard) freshConn(over func() bool) (fresh *freshConn, none bool) {
	for !over() {
		s.mu.Lock()
		if f := s.fresh; f != nil {
			if !f.broken.Load() {
				s.mu.Unlock()
				return f, false
			}
			s.abandon(f)
		}
		if s.stuck > 0 {
			s.mu.Unlock()
			return nil, true
		}
		now := s.client.Clock.Now()
		due := s.began.Add(s.RoundTrip().Connect())
		if s.making != nil && now >= due {
			s.giveUp(now)
		}
		if s.making == nil && now >= s.again {
			if s.hanging == mostMaking {
				s.mu.Unlock()
				return nil, false
			}
			s.making, s.began = make(chan struct{}), now
			s.hanging++
			go s.make(s.making, now)
			due = now.Add(s.RoundTrip().Connect())
		}
		making := s.making // nil, which nothing comes from, until it is time for another one
		if making == nil {
			due = s.again
		}
		s.mu.Unlock()
		wait := now.Until(due)
		if s.client.resolver != nil { // there may be a successor
			wait = min(wait, topology.AskPause)
		}
		limit := time.NewTimer(wait)
		select {
		case <-making:
			limit.Stop()
		case <-limit.C:
		}
	}
	return nil, false
}

// giveUp no longer expects the fresh connection that is being made, which has failed. The way may have become longer: it is
// measured anew. The caller holds the mutex.
func (s *Shard) giveUp(now clock.Instant) {
	close(s.making)
	s.making = nil
	s.failed++
	s.again = now.Add(clock.Backoff(s.failed, time.Hour))
	s.learn()
}

// make makes a fresh connection. It may hang: for some seconds when the server is frozen, or for as long as the client has no
// connection to give. What it gets after that leads to the old master, perhaps, which has come back meanwhile; so nobody
// expects it any more.
func (s *Shard) make(making chan struct{}, since clock.Instant) {
	stuck, over := false, false
	alarm := time.AfterFunc(poolWait, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if !over {
			stuck = true
			s.stuck++
		}
	})
	client := s.dedicate(since)
	alarm.Stop()
	s.mu.Lock()
	defer s.mu.Unlock()
	over = true
	s.hanging--
	if stuck {
		s.stuck--
	}
	now := s.client.Clock.Now()
	if s.making != making { // nobody expects it any more
		go closeAll(client)
		return
	}
	if client == nil || since.Until(now) >= s.RoundTrip().Connect() || s.closed || !s.IsSuspect(now) { // mutant: late greeting
		s.giveUp(now)
		go closeAll(client)
		return
	}
	close(s.making)
	s.making, s.failed, s.again = nil, 0, 0
	s.fresh = &freshConn{DedicatedClient: client, since: since}
	if !s.tidying {
		s.tidying = true
		time.AfterFunc(suspectFor, s.tidy)
	}
}

// dedicate gets a connection that was made since some time. The client may have older ones in its pool, so the server is
// asked for the age, in whole seconds; one that does not tell is believed. It returns nil when none was to be had in time.
func (s *Shard) dedicate(since clock.Instant) rueidis.DedicatedClient {
	for unfit := 0; ; {
		node := s.node()
		if node == nil {
			return nil
		}
		client, _ := node.Dedicate() // closing it takes it out of the pool
		t, trip := s.client, s.RoundTrip()
		end := t.watchdog.bound(&Wait{Ctx: context.Background(), Limit: trip.Plus(askLimit)}, t.Clock.Now(), nil)
		info, err := client.Do(end, client.B().Arbitrary("CLIENT", "INFO").Build()).ToString()
		end.stop()
		if errors.Is(err, fault.NoAnswer) { // a new one answers
			client.Close()
			if since.Until(t.Clock.Now()) >= trip.Connect() {
				return nil
			}
			continue
		}
		age, untold := ageOf(info)
		known := t.selected.Load()
		another := err == nil && known != nil && *known != "" && databaseIn(info) != *known // which somebody has selected
		if !another && (err != nil || untold != nil || age-time.Second <= since.Until(t.Clock.Now())) {
			return client
		}
		client.Close()
		if unfit++; unfit > mostUnfit && !s.stillWary(unfit-mostUnfit) {
			return nil
		}
	}
}

// stillWary waits for a while, which grows with the number of times, and tells whether the shard is suspect then. Where even
// new connections look like old ones, because a proxy or something else tells its own age, they are not asked for without a
// pause.
func (s *Shard) stillWary(times int) bool {
	<-time.After(clock.Pause(times, time.Second))
	return s.IsSuspect(s.client.Clock.Now())
}

// node is the client of the server that the shard leads to; nil when rueidis does not know that node of a cluster.
func (s *Shard) node() rueidis.Client {
	if s.Address == "" {
		return s.client.redis
	}
	return s.client.redis.Nodes()[s.Address]
}

// ageOf reads the age of a connection from the reply of CLIENT INFO.
func ageOf(info string) (time.Duration, error) {
	_, after, _ := strings.Cut(info, " age=")
	digits, _, _ := strings.Cut(after, " ")
	age, err := strconv.Atoi(digits)
	return time.Duration(age) * time.Second, err
}

// closeAll closes a connection, if it is there.
func closeAll(client rueidis.DedicatedClient) {
	if client != nil {
		client.Close()
	}
}

// tidy gives the fresh connection back when the shard is no longer suspect.
func (s *Shard) tidy() {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.client.Clock.Now()
	switch wary := clock.Instant(s.suspectUntil.Load()); {
	case s.fresh == nil:
		s.tidying = false
	case now < wary:
		time.AfterFunc(now.Until(wary), s.tidy)
	default:
		s.tidying = false
		s.abandon(s.fresh)
	}
}

// abandon closes a fresh connection, whose pending commands fail. The caller holds the mutex.
func (s *Shard) abandon(f *freshConn) {
	s.fresh = nil
	go f.Close()
}

// close gives up the fresh connection. What is sent afterwards, removals, goes over the client's own connections.
func (s *Shard) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	s.dropOwn()
	s.suspectUntil.Store(0)
	if s.fresh != nil {
		s.abandon(s.fresh)
	}
}
