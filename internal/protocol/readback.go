package protocol

import (
	"context"

	"github.com/redis/rueidis"
)

// readings are the commands that follow a script which obtains several locks, in its pipeline: each reads one lock's key.
//
// A proxy in front of several servers sends a script where its first key belongs. Some refuse scripts whose keys belong to
// several servers; others do not look. The script then obtains locks at a server to which no other command about them comes: two
// owners could have one of them. A command of one key goes where all commands about that key go. So if each lock has its hold
// there, the script has reached it. No sample of keys shows that for others: some keys are on one server by chance.
//
// A call that waits for replicas reads nothing back: no such proxy knows WAIT, which has no key.
//
// If a reading comes late, or behind a change of the key, it may miss a hold that was there. Then the call obtains the locks one
// by one, which is always right.
type readings struct {
	of     []reading
	fields bool // the holds are fields of hashes, else values
	split  bool // the last execution granted the locks, and not each has its hold
}

type reading struct{ key, value string }

// ReadsBack reports whether the call reads the keys back.
func (r *readings) ReadsBack() bool { return len(r.of) > 0 }

// Split reports whether the last reply granted locks of which one is not where commands of its key alone find it.
func (r *readings) Split() bool { return r.split }

// SendOnce sends the call's command, once, with the readings behind it. A reading without an answer is the result: the locks may
// be there. Blocks: as of Command.
func (c *Call) SendOnce(ctx context.Context, way rueidis.CoreClient, blocks bool) rueidis.RedisResult {
	command := c.Command(way.B(), blocks)
	if !c.ReadsBack() {
		return way.Do(ctx, command)
	}
	commands := make(rueidis.Commands, 1, 1+len(c.of))
	commands[0] = command
	for _, r := range c.of {
		if c.fields {
			commands = append(commands, way.B().Hexists().Key(r.key).Field(r.value).Build())
		} else {
			commands = append(commands, way.B().Get().Key(r.key).Build())
		}
	}
	results := way.DoMulti(ctx, commands...)
	c.split = false
	if _, taken, err := Tokens(results[0], len(c.of)); err != nil || taken > 0 {
		return results[0]
	}
	for i, r := range c.of {
		found, err := r.found(results[1+i], c.fields)
		if _, refused := rueidis.IsRedisErr(err); err != nil && !refused {
			return results[1+i]
		}
		c.split = c.split || !found
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

// GiveBack returns the call that removes what a script for several locks, a call of ObtainAll, has obtained at a server to which
// commands of one key do not come. Others do not wait there.
func (f *Format) GiveBack(obtained Call) Call {
	c := Call{Script: giveBackAll, Key: obtained.Key, more: []string{}}
	c.others = obtained.others[:len(obtained.of)-1]
	values := make([]string, len(obtained.of))
	for i, r := range obtained.of {
		values[i] = r.value
	}
	copy(c.Args[:], values)
	c.more = values[min(fixedArgs, len(values)):]
	return c
}

var giveBackAll = Load("give_back_all")
