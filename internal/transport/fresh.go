package transport

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/lockregistry/lockregistry/internal/belief"
	"github.com/lockregistry/lockregistry/internal/clock"
)

// freshConns has the fresh connection of a suspect node, made since the node became suspect. One is made at a time, with a
// pause after a failure.
type freshConns struct {
	dials   *dialer
	judge   *judge
	watched func() bool // Sentinels are asked
	vouch   func(w *belief.Way) (says belief.Word, asked, now clock.Instant)

	mu       sync.Mutex
	conn     *freshConn    // nil: none
	last     *way          // the client's own connections, when there will be no fresh one; nil: none was needed
	making   chan struct{} // closed when the connection exists or has failed, in bounded time; nil: none is being made
	failed   int           // consecutive failures
	again    clock.Instant // none is made before then
	replicas int           // connections in a row that led to a replica, each soon after the one before
	replica  clock.Instant // when the newest of them was noticed
}

type freshConn struct {
	*dedicated
	way
	broken atomic.Bool
}

// get returns a connection made since the node became suspect, or nil if there is none before over reports true. None: there
// will be none, because the client's pool is exhausted, or all attempts hang, or the node is no longer suspect. Then the
// existing connections are used, which is better than sending nothing. With Sentinels, a fresh or an existing connection is
// used only once they vouch for its server.
func (f *freshConns) get(over func() bool) (conn *freshConn, none bool) {
	for !over() {
		address, now := f.judge.present(), f.judge.clock.Now()
		if !f.judge.IsSuspect(now) {
			return nil, !f.judge.belief.Closed()
		}
		f.mu.Lock()
		if f.conn == nil || f.conn.broken.Load() || f.conn.Address != address || f.judge.belief.Doubts(&f.conn.Way) {
			f.abandon()
		}
		conn, none = f.conn, false
		var changed <-chan struct{}
		var due clock.Instant
		switch {
		case conn != nil && conn.Trusted:
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
		clock.Await(changed, min(now.Until(due), belief.Tick)) // the suspicion may end sooner, or a successor appear
	}
	return nil, false
}

// attempt starts to make a connection, unless one is being made or it is too early for another attempt. Made is closed when the
// attempt is over; wait for it until due at most. If it is too early, made is nil, which blocks. None: the pool is exhausted.
// The caller holds the mutex, as for lastResort.
func (f *freshConns) attempt(now clock.Instant) (made <-chan struct{}, due clock.Instant, none bool) {
	if f.dials.exhausted(now) {
		return nil, 0, true
	}
	if f.making == nil && now < f.again {
		return nil, f.again, false
	}
	if f.making == nil {
		f.making = make(chan struct{})
		go f.make()
	}
	return f.making, now.Add(poolWait), false
}

// lastResort reports whether to use the client's own connections. If not, wait for asked, until due at most, and call it again.
// What the Sentinels said before the newest doubt does not count.
func (f *freshConns) lastResort(address string, now clock.Instant) (asked <-chan struct{}, due clock.Instant, use bool) {
	if !f.watched() {
		return nil, 0, true
	}
	if w := f.last; w == nil || w.Address != address || w.Since < f.judge.belief.SilentAt() || f.judge.belief.Doubts(&w.Way) {
		f.last = &way{Way: belief.Way{Address: address, Since: now, Greeted: now}}
	}
	if f.last.Trusted {
		return nil, 0, true
	}
	asked, due = f.ask(f.last, now)
	return asked, due, false
}

// forgetLast makes lastResort ask the Sentinels again.
func (f *freshConns) forgetLast() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.last = nil
}

// make makes a fresh connection. If it fails, the round trip may have become longer, so it is measured again. The pause is
// short where connections are refused at once: the server may be about to start.
func (f *freshConns) make() {
	address, began := f.judge.present(), f.judge.clock.Now()
	conn := f.dials.dial(wanted{skips: f.skips()})
	refused := conn == nil && began.Until(f.judge.clock.Now()) < belief.Tick && f.dials.unfit.Load() == 0
	if refused && f.watched() { // there is no connection to ask about, but the answers let the client learn of a successor
		f.vouch(&belief.Way{Address: address, Since: began, Greeted: clock.Never}) // mutant: refused, and nobody asked
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	close(f.making)
	f.making = nil
	now := f.judge.clock.Now()
	if conn == nil || f.judge.belief.Closed() || !f.judge.IsSuspect(now) {
		f.failed++
		pause := clock.MostPause
		if refused {
			pause = refusedPause
		}
		f.again = now.Add(clock.Pause(f.failed, pause))
		f.judge.act(belief.Measure, now)
		go conn.end()
		return
	}
	f.failed, f.again = 0, 0
	f.conn = &freshConn{dedicated: conn, way: way{Way: belief.Way{Address: address, Since: conn.made, Greeted: now}}}
	if !f.watched() {
		f.conn.Trusted = true // there is nobody to ask
	}
	f.tidyLater(f.conn)
}

// tidyLater closes a fresh connection when the node is no longer suspect.
func (f *freshConns) tidyLater(conn *freshConn) {
	time.AfterFunc(belief.Old, func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		switch {
		case f.conn != conn:
		case f.judge.IsSuspect(f.judge.clock.Now()):
			f.tidyLater(conn)
		default:
			f.abandon()
		}
	})
}

// stands reports whether a connection is younger than every command that had no reply. If not, it gives the connection up.
func (f *freshConns) stands(conn *freshConn) bool {
	if f.judge.belief.Outlives(conn.Since) { // mutant: silent connection taken
		return true
	}
	f.silent(conn.Since)
	return false
}

// silent gives up the connection if it may have carried a command that had no reply. Sent is when the command was sent.
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

// mostSkipped is how many connections to a replica one attempt skips. Servers report a connection's age in whole seconds, so
// pooled ones that are younger than a second look new.
const mostSkipped = 3

// skips returns how many connections to a replica an attempt skips, because they may come from the pool, not from the address.
func (f *freshConns) skips() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.judge.belief.Owed() || f.replica != 0 && f.replica.Until(f.judge.clock.Now()) < time.Second {
		return 0
	}
	return mostSkipped
}

// refused notes that a fresh connection leads to a replica.
func (f *freshConns) refused(conn *freshConn) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if conn.broken.Swap(true) {
		return
	}
	now := f.judge.clock.Now()
	if f.replica.Until(now) >= time.Second {
		f.replicas = 0
	}
	f.replicas, f.replica = f.replicas+1, now
	f.again = now.Add(clock.Pause(f.replicas, refusedPause))
}

// way is a way for which the Sentinels may have to vouch.
type way struct {
	belief.Way
	asking chan struct{} // closed when the Sentinels have been asked; nil: they are not asked now
}

// ask asks the Sentinels about a way in the background, unless it is too early or they are being asked. Wait for done, until
// due at most; if it is too early, done is nil, which blocks. The caller holds the mutex.
func (f *freshConns) ask(w *way, now clock.Instant) (done <-chan struct{}, due clock.Instant) {
	if w.asking == nil && now < w.Again {
		return nil, w.Again
	}
	if w.asking == nil {
		w.asking = make(chan struct{})
		go f.learn(w)
	}
	return w.asking, now.Add(firstWord)
}

func (f *freshConns) learn(w *way) {
	says, asked, now := f.vouch(&w.Way)
	f.mu.Lock()
	defer f.mu.Unlock()
	w.Told(says, asked, now)
	close(w.asking)
	w.asking = nil
}
