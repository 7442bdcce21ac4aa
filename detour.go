package lockregistry

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

// detour returns a connection made since the lane is wary, or nil when there is none to be had until it is over. None
// tells that there will be none, because the client's pool is empty: to send nothing at all would be worse then than to
// believe the connections that there are.
func (l *lane) detour(over func() bool) (fresh *detour, none bool) {
	for !over() {
		l.mu.Lock()
		if f := l.fresh; f != nil {
			if !f.broken.Load() {
				l.mu.Unlock()
				return f, false
			}
			l.abandon(f)
		}
		if l.stuck > 0 {
			l.mu.Unlock()
			return nil, true
		}
		now := l.transport.clock.Now()
		due := l.began.Add(l.trip().connect())
		if l.making != nil && now >= due {
			l.giveUp(now)
		}
		if l.making == nil && now >= l.again {
			if l.hanging == mostMaking {
				l.mu.Unlock()
				return nil, false
			}
			l.making, l.began = make(chan struct{}), now
			l.hanging++
			go l.make(l.making, now)
			due = now.Add(l.trip().connect())
		}
		making := l.making // nil, which nothing comes from, until it is time for another one
		if making == nil {
			due = l.again
		}
		l.mu.Unlock()
		wait := now.Until(due)
		if l.transport.resolver != nil { // there may be a successor
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

// giveUp no longer expects the detour that is being made, which has failed. The way may have become longer: it is measured anew.
// The caller holds the mutex.
func (l *lane) giveUp(now clock.Instant) {
	close(l.making)
	l.making = nil
	l.failed++
	l.again = now.Add(clock.Backoff(l.failed, time.Hour))
	l.learn()
}

// make makes a detour. It may hang: for some seconds when the server is frozen, or for as long as the client has no
// connection to give. What it gets after that leads to the old master, perhaps, which has come back meanwhile; so nobody
// expects it any more.
func (l *lane) make(making chan struct{}, since clock.Instant) {
	stuck, over := false, false
	alarm := time.AfterFunc(poolWait, func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		if !over {
			stuck = true
			l.stuck++
		}
	})
	client := l.dedicate(since)
	alarm.Stop()
	l.mu.Lock()
	defer l.mu.Unlock()
	over = true
	l.hanging--
	if stuck {
		l.stuck--
	}
	now := l.transport.clock.Now()
	if l.making != making { // nobody expects it any more
		go closeAll(client)
		return
	}
	if client == nil || since.Until(now) >= l.trip().connect() || l.closed || !l.isWary(now) { // mutant: late greeting
		l.giveUp(now)
		go closeAll(client)
		return
	}
	close(l.making)
	l.making, l.failed, l.again = nil, 0, 0
	l.fresh = &detour{DedicatedClient: client, since: since}
	if !l.tidying {
		l.tidying = true
		time.AfterFunc(waryFor, l.tidy)
	}
}

// dedicate gets a connection that was made since some time. The client may have older ones in its pool, so the server is
// asked for the age, in whole seconds; one that does not tell is believed. It returns nil when none was to be had in time.
func (l *lane) dedicate(since clock.Instant) rueidis.DedicatedClient {
	for unfit := 0; ; {
		node := l.client()
		if node == nil {
			return nil
		}
		client, _ := node.Dedicate() // closing it takes it out of the pool
		t, trip := l.transport, l.trip()
		end := t.watch.limit(&patience{ctx: context.Background(), limit: trip.plus(askLimit)}, t.clock.Now(), nil)
		info, err := client.Do(end, client.B().Arbitrary("CLIENT", "INFO").Build()).ToString()
		end.stop()
		if errors.Is(err, fault.NoAnswer) { // a new one answers
			client.Close()
			if since.Until(t.clock.Now()) >= trip.connect() {
				return nil
			}
			continue
		}
		age, untold := ageOf(info)
		known := t.selected.Load()
		another := err == nil && known != nil && *known != "" && databaseIn(info) != *known // which somebody has selected
		if !another && (err != nil || untold != nil || age-time.Second <= since.Until(t.clock.Now())) {
			return client
		}
		client.Close()
		if unfit++; unfit > mostUnfit && !l.stillWary(unfit-mostUnfit) {
			return nil
		}
	}
}

// stillWary waits for a while, which grows with the number of times, and tells whether the lane is wary then. Where even new
// connections look like old ones, because a proxy or something else tells its own age, they are not asked for without a
// pause.
func (l *lane) stillWary(times int) bool {
	<-time.After(clock.Pause(times, time.Second))
	return l.isWary(l.transport.clock.Now())
}

// client is the client of the server that the lane leads to; nil when rueidis does not know that node of a cluster.
func (l *lane) client() rueidis.Client {
	if l.address == "" {
		return l.transport.client
	}
	return l.transport.client.Nodes()[l.address]
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

// tidy gives the detour back when the lane is no longer wary.
func (l *lane) tidy() {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := l.transport.clock.Now()
	switch wary := clock.Instant(l.wary.Load()); {
	case l.fresh == nil:
		l.tidying = false
	case now < wary:
		time.AfterFunc(now.Until(wary), l.tidy)
	default:
		l.tidying = false
		l.abandon(l.fresh)
	}
}

// abandon closes a detour, whose pending commands fail. The caller holds the mutex.
func (l *lane) abandon(f *detour) {
	l.fresh = nil
	go f.Close()
}

// close gives up the detour. What is sent afterwards, removals, goes over the client's own connections.
func (l *lane) close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed = true
	l.drop()
	l.wary.Store(0)
	if l.fresh != nil {
		l.abandon(l.fresh)
	}
}
