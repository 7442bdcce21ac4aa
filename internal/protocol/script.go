package protocol

import (
	"context"
	"crypto/sha1"
	"encoding/hex"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/rueidis"

	"github.com/lockregistry/lockregistry/internal/clock"
	"github.com/lockregistry/lockregistry/internal/fault"
)

// Script is a Lua script whose keys are in one slot, so that it works on a cluster.
type Script struct {
	Source string
	SHA    string
}

// NewScript makes a script from its source.
func NewScript(source string) *Script {
	sum := sha1.Sum([]byte(source))
	return &Script{Source: source, SHA: hex.EncodeToString(sum[:])}
}

// Call is a command about one key: a script with its arguments, or, without a script, the SET that takes a free lock.
type Call struct {
	Script  *Script
	plainly *Script // for a script that asks for a ticket: the one that does not
	Key     string
	Args    Args
	more    []string // the arguments after the fixed ones, if they are not among Args
	beside
	readings

	// DropIfAbandoned is set for an obtaining call. If its command was not executed, for instance because the server did not know
	// the script, it is not sent again once the caller has given up: the removal of its grant is already under way, and would be
	// executed first.
	DropIfAbandoned bool
	source          bool // the server does not know the script: its source is sent

	Replicas *Replicas // the replicas that must have the write; nil: none
	// Wrote reports from the reply whether the call has written. It is used only with Replicas.
	Wrote func(c *Call, result rueidis.RedisResult) bool
}

// Replicas says how many replicas must have a write before it counts, and within what time.
type Replicas struct {
	N       int
	Timeout time.Duration
	Settled func(why error) // called after each wait: why the write does not count, or nil
}

// Args are the arguments of a call: an array, so that a call needs no allocation. Empty ones at the end are not sent; scripts
// take a missing argument as empty.
type Args [fixedArgs + 2]string

// fixedArgs is how many arguments come before those that then appends.
const fixedArgs = 5

// then appends arguments to the fixed ones.
func (c *Call) then(more ...string) {
	n := len(more)
	for n > 0 && more[n-1] == "" {
		n--
	}
	if fixedArgs+n <= len(c.Args) {
		copy(c.Args[fixedArgs:], more[:n])
	} else {
		c.more = slices.Clone(more[:n])
	}
}

// given returns the arguments of the script.
func (c *Call) given() []string {
	given := c.Args[:]
	if c.more != nil {
		given = slices.Concat(c.Args[:fixedArgs], c.more)
	}
	n := len(given)
	for n > 0 && given[n-1] == "" {
		n--
	}
	return given[:n]
}

// Send runs a call: a script by its digest if the server knows it.
func (c *Call) Send(ctx context.Context, way rueidis.CoreClient) (result rueidis.RedisResult) {
	return c.Repair(ctx, way, c.SendOnce(ctx, way, false))
}

// Repair sends a call again after a reply to it, as long as it must be sent again.
func (c *Call) Repair(ctx context.Context, way rueidis.CoreClient, result rueidis.RedisResult) rueidis.RedisResult {
	for c.Again(result) {
		result = c.SendOnce(ctx, way, false)
	}
	return result
}

// Again takes the reply to a call. It reports whether the call must be sent again, since it was not executed: by its source, to a
// server that does not know the script, or with the lock's key alone, see beside.
func (c *Call) Again(result rueidis.RedisResult) bool {
	err := result.Error()
	if c.Script == nil {
		return false
	}
	if NoScript(err) && !c.source {
		c.source = true
		return true
	}
	c.source = false
	if err != nil && c.refused(err) {
		return true
	}
	if c.why != "" { // it was narrowed
		c.learn(err)
	}
	return false
}

// Command returns the command of a call: SET, or a script. Blocks: it is sent on a connection of its own.
func (c *Call) Command(b rueidis.Builder, blocks bool) rueidis.Completed {
	verb, script := "SET", ""
	switch {
	case c.Script == nil:
	case c.source:
		verb, script = "EVAL", c.Script.Source
	default:
		verb, script = "EVALSHA", c.Script.SHA
	}
	command := b.Arbitrary(verb)
	var room [4]string // for the keys of most calls, without an allocation
	keys := c.append(append(room[:0], c.Key))
	if c.Script != nil {
		command = command.Args(script, strconv.Itoa(len(keys)))
	}
	command = command.Keys(keys...) // also for a single server: rueidis chooses a connection by them
	if c.Script == nil {
		command = command.Args(c.Args[0], "NX", "PX", c.Args[1])
	} else {
		command = command.Args(c.given()...)
	}
	if blocks {
		return command.Blocking()
	}
	// Over a shared connection, whatever the options of the client: rueidis may send others over those of its pool, which may be
	// in any state, and there it ignores contexts.
	return command.Build().ToPipe()
}

// Keys returns the keys of the script.
func (c *Call) Keys() []string { return c.append([]string{c.Key}) }

// NoScript reports whether the server does not know the script, for instance after a restart.
func NoScript(err error) bool {
	reply, ok := rueidis.IsRedisErr(err)
	return ok && reply.IsNoScript()
}

// SendAll runs scripts in one pipeline. Those that must be sent again run in a second one, and so on, if they are still wanted.
func SendAll(ctx context.Context, way rueidis.CoreClient, calls []Call, wanted func(i int) bool) []rueidis.RedisResult {
	results := make([]rueidis.RedisResult, len(calls))
	these := make([]int, len(calls))
	for i := range calls {
		these[i] = i
	}
	for len(these) > 0 {
		commands := make(rueidis.Commands, len(these))
		for k, i := range these {
			commands[k] = calls[i].Command(way.B(), false)
		}
		again := these[:0]
		for k, result := range way.DoMulti(ctx, commands...) {
			i := these[k]
			if results[i] = result; calls[i].Again(result) && wanted(i) {
				again = append(again, i)
			}
		}
		these = again
	}
	return results
}

// Resend sends those of some commands again, once, that have failed in a certain way, and replaces their results.
func Resend(
	results []rueidis.RedisResult, some []int, failed func(err error) bool, send func(again []int) []rueidis.RedisResult,
) {
	var again, at []int
	for k, result := range results {
		if err := result.Error(); err != nil && failed(err) {
			again, at = append(again, some[k]), append(at, k)
		}
	}
	if len(again) == 0 {
		return
	}
	for k, result := range send(again) {
		results[at[k]] = result
	}
}

// Reply is the decoded reply to an obtaining call.
type Reply struct {
	Granted bool          // the hold owns the key
	Token   uint64        // the fencing token, if one was wanted
	Left    time.Duration // if not granted, the rest of the owner's lease: not known if not positive, except Endless

	// For a call that asks something of the queue, if not granted; otherwise empty.
	State   string // as in the scripts
	Rank    int    // how many tickets are in front of the call's
	Place   string // of the call's ticket
	Foreign bool   // the owner may not know of the queue
	Why     string // why there is no queue

	Number int // of a semaphore's permits, if the call named another number
}

// The states. One more is handled as missing: "refused", the command is late, and a later hold of this registry owns the key.
const (
	stateGranted = "granted" // the hold owns the key, and has a token
	stateTaken   = "taken"   // another hold owns it
	StateQueued  = "queued"  // the ticket is in the queue
	StateOwner   = "owner"   // the hold has owned the key before
	stateMissing = "missing" // the ticket is not there
	StateFailing = "error"   // there is no queue
)

// Endless is the rest of a lease that has no end.
const Endless = -time.Millisecond

// remaining returns what a lease has left, from the server's reply to PTTL: whole milliseconds, of which the last one is 0. A
// lease without end is negative.
func remaining(pttl int64) time.Duration {
	if pttl == 0 {
		pttl = 1
	}
	return clock.Milliseconds(pttl)
}

// Decode reads the reply to an obtaining call.
func (c *Call) Decode(result rueidis.RedisResult) (s Reply, err error) {
	if fault.IsInTransaction(result) {
		return s, fault.InTransaction
	}
	if c.Script == nil {
		if err = result.Error(); rueidis.IsRedisNil(err) {
			return s, nil
		}
		s.Granted = err == nil
		return s, err
	}
	message, err := result.ToMessage()
	switch {
	case rueidis.IsRedisNil(err):
		s.Granted = true
		return s, nil
	case err != nil:
		return s, err
	case message.IsString():
		reply, err := message.ToString()
		if err == nil {
			s, err = readShort(reply)
		}
		return s, err
	case !message.IsArray():
		pttl, err := message.AsInt64()
		s.Left = remaining(pttl)
		return s, err
	}
	values, err := message.ToArray()
	if err == nil {
		s, err = readStanding(values)
	}
	return s, err
}

// readShort reads the short reply to a new ticket, see lua/queue.lua.
func readShort(reply string) (s Reply, err error) {
	ahead, place, _ := strings.Cut(reply, " ")
	s.State, s.Place = StateQueued, place // the lease is not asked for
	s.Rank, err = strconv.Atoi(ahead)
	return s, err
}

func readStanding(values []rueidis.RedisMessage) (s Reply, err error) {
	var pttl, rank, foreign, number int64
	for i := range values {
		switch v := &values[i]; {
		case i == 0:
			s.State, err = v.ToString()
		case s.State == StateFailing:
			s.Why, err = v.ToString()
		case i == 1 && s.State == stateGranted:
			s.Token, err = v.AsUint64()
		case s.State == stateGranted:
			number, err = v.AsInt64()
		case i == 1:
			pttl, err = v.AsInt64()
		case i == 2 && s.State == stateTaken:
			number, err = v.AsInt64()
		case i == 2:
			rank, err = v.AsInt64()
		case i == 3:
			s.Place, err = v.ToString()
		case i == 4:
			foreign, err = v.AsInt64()
		case i == 5:
			number, err = v.AsInt64()
		}
		if err != nil {
			return s, err
		}
	}
	if s.Number = int(number); s.State == stateGranted {
		s.State, s.Granted = "", true
		return s, nil
	}
	if s.State == stateTaken {
		s.State = ""
	}
	s.Left, s.Rank, s.Foreign = remaining(pttl), int(rank), foreign == 1
	return s, nil
}

// RefusedByReplica reports whether a server has refused a write because it is a replica: by an error, or as why there is no
// queue.
func RefusedByReplica(result rueidis.RedisResult) bool {
	if err := result.Error(); err != nil {
		reply, ok := rueidis.IsRedisErr(err)
		return ok && fault.OfReplica(reply.Error())
	}
	message, err := result.ToMessage()
	switch {
	case err != nil:
		return false
	case message.IsString():
		why, _ := message.ToString() // cannot fail
		return fault.OfReplica(why)
	case message.IsArray():
		if values, _ := message.ToArray(); len(values) == 2 && values[0].IsString() && values[1].IsString() {
			state, _ := values[0].ToString()
			why, _ := values[1].ToString()
			return state == StateFailing && fault.OfReplica(why)
		}
	}
	return false
}

// Confirmed decodes the reply to a release or a renewal: 0 means that the key is gone, a negative number that another hold has
// it, or that the key is of another type.
func Confirmed(result rueidis.RedisResult) (int64, error) {
	if fault.IsInTransaction(result) {
		return 0, fault.InTransaction
	}
	if WhyNoQueue(result) != "" {
		return NoQueue, nil
	}
	n, err := result.AsInt64()
	if fault.IsWrongType(err) {
		return -1, nil
	}
	return n, err
}

// WhyNoQueue returns why there is no queue, if a release has replied that. Most replies are numbers, and cost no allocation
// here.
func WhyNoQueue(result rueidis.RedisResult) string {
	reply, err := result.ToMessage()
	if err != nil || !reply.IsString() {
		return ""
	}
	if fault.IsInTransaction(result) {
		return ""
	}
	why, _ := reply.ToString() // cannot fail: it is a string
	return why
}
