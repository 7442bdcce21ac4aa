package protocol

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/rueidis"

	"github.com/lockregistry/lockregistry/internal/clock"
)

// readings are commands that follow a script for several locks, in one pipeline: each reads the key of one lock. The key of the
// first lock is not read: like the script of a single lock, the script was sent to the server of that key.
//
// Some proxies in front of several servers refuse a script whose keys belong to several of them; others do not look:
//
//  1. The proxy sends the script to the server of the first key, where it obtains all locks.
//  2. All other commands about a lock go to the lock's own server, which does not know the hold.
//  3. Another owner obtains the lock there.
//
// A command with a single key goes to the server of that key. So if each reading finds its hold, the script has run at the
// servers of all keys. All must be read, since some keys are on the same server by chance.
//
// A call that waits for replicas reads nothing back: no proxy that lets such a script through knows WAIT, which has no key.
//
// A reading may miss a hold that was there, if it comes late or after a change of the key; and it may be refused. Then, too, the
// call obtains the locks one by one, which is always right.
type readings struct {
	of     []reading
	fields bool // the holds are fields of hashes, otherwise values
	last   ReadBack
}

type reading struct{ key, value string }

// ReadBack is what the readings have found after a script that has granted locks.
type ReadBack struct {
	Missing []int // the locks whose own server does not have the hold
	Refused bool  // a reading was refused
}

// Sound reports whether each lock has its hold.
func (b *ReadBack) Sound() bool { return len(b.Missing) == 0 && !b.Refused }

// ReadsBack reports whether the call reads the keys back.
func (r *readings) ReadsBack() bool { return len(r.of) > 0 }

// ReadBack returns what the last execution has found.
func (r *readings) ReadBack() ReadBack { return r.last }

// SendOnce sends the call's command, once, followed by the readings. If a reading is not answered, SendOnce returns that: the
// locks may be there. For blocks see Command.
func (c *Call) SendOnce(ctx context.Context, way rueidis.CoreClient, blocks bool) rueidis.RedisResult {
	command := c.Command(way.B(), blocks)
	if !c.ReadsBack() {
		return way.Do(ctx, command)
	}
	commands := make(rueidis.Commands, 1, len(c.of))
	commands[0] = command
	for _, r := range c.of[1:] {
		if c.fields { // not as a read command: the client may send those to replicas
			commands = append(commands, way.B().Arbitrary("HEXISTS").Keys(r.key).Args(r.value).Build())
		} else {
			commands = append(commands, way.B().Arbitrary("GET").Keys(r.key).Build())
		}
	}
	results := way.DoMulti(ctx, commands...)
	c.last = ReadBack{}
	if _, taken, err := Tokens(results[0], len(c.of)); err != nil || taken > 0 {
		return results[0]
	}
	for i, result := range results[1:] {
		found, err := c.of[1+i].found(result, c.fields)
		_, refused := rueidis.IsRedisErr(err)
		switch {
		case refused:
			c.last.Refused = true
		case err != nil:
			return result
		case !found:
			c.last.Missing = append(c.last.Missing, 1+i)
		}
	}
	return results[0]
}

// found reports whether a reply shows the hold.
func (r reading) found(reply rueidis.RedisResult, field bool) (bool, error) {
	if field {
		return reply.AsBool()
	}
	value, err := reply.ToString()
	if rueidis.IsRedisNil(err) {
		return false, nil
	}
	return value == r.value || value == r.value+"+", err // with the mark: others wait
}

// GiveBack returns the call that removes what a call of ObtainAll has obtained at a server where it does not belong: the holds
// of the missing locks. No call waits for them there. The other holds are where they belong, and calls may wait for them, so each
// of these is released by itself.
func (f *Format) GiveBack(obtained Call, missing []int) Call {
	c := Call{Script: giveBackAll, Key: obtained.Key, more: []string{}} // the key says where the script has run
	values := []string{""}
	for _, i := range missing {
		r := obtained.of[i]
		if r.key == c.Key {
			values[0] = r.value
			continue
		}
		c.others, values = append(c.others, r.key), append(values, r.value)
	}
	copy(c.Args[:], values)
	c.more = values[min(fixedArgs, len(values)):]
	return c
}

var giveBackAll = Load("give_back_all")

// Apart is what a registry knows about a proxy that keeps keys on several servers. It may be wrong: a reading may have missed a
// hold that was there, and a proxy may be replaced. So the registry tries again after a pause: a minute, then twice as long each
// time that it sees a proxy once more, up to an hour. If it sees none for as long as the last pause, the next pause is a minute
// again. Such a try costs a script and its undoing.
type Apart struct {
	seen atomic.Bool // that was ever noted

	mu     sync.Mutex
	until  clock.Instant
	pause  time.Duration
	worked bool // since the last sighting a script has obtained several keys where they belong
}

const (
	apartFirst = time.Minute
	apartMost  = 60 * apartFirst
)

// Note notes at now that keys are on several servers. It reports whether that is news.
func (a *Apart) Note(now clock.Instant) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.worked = false
	switch {
	case now < a.until: // another call has seen the same
	case a.pause == 0 || a.until.Until(now) >= a.pause:
		a.pause = apartFirst
		a.until = now.Add(a.pause)
	default:
		a.pause = min(2*a.pause, apartMost)
		a.until = now.Add(a.pause)
	}
	return !a.seen.Swap(true)
}

// Counts reports whether calls obtain keys one by one at now.
func (a *Apart) Counts(now clock.Instant) bool {
	if !a.seen.Load() {
		return false
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	return now < a.until
}

// Worked notes that a script has obtained several keys where they belong.
func (a *Apart) Worked() {
	if !a.seen.Load() {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.worked = true
}

// Seen reports whether commands about several keys that no readings follow must be sent for one key after another at now. They
// must be, from a sighting on, for 2 × pause, and until a script has obtained several keys where they belong.
func (a *Apart) Seen(now clock.Instant) bool {
	if a == nil || !a.seen.Load() {
		return false
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	return !a.worked || now < a.until.Add(a.pause)
}
