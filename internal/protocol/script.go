package protocol

import (
	"context"
	"crypto/sha1"
	"encoding/hex"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/redis/rueidis"

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
	Script *Script
	Key    string
	Args   Args
	more   []string // the arguments after the fixed ones, if they are not among Args

	// While a slot of a cluster moves, a script with only the lock's key goes to the node that has the key, or, if it is gone, to
	// the slot's new node. There it must not begin a queue while the old queue is still to be moved: the move would fail with an
	// error. So a call that may begin a queue also names the queue as a key, and is refused unless both are at the node. A waiting
	// call then tries again, and a release goes on without the queue.
	queue string // the queue's key; empty: the call begins none

	// For an obtaining call: a script that the server does not know is not sent again once the caller has given up. The removal of
	// its grant is under way by then, and would come first.
	DropIfAbandoned bool

	Replicas *Replicas // the replicas that must have the write; nil: none
	Wrote    func(c *Call, result rueidis.RedisResult) bool
	others   []string // further keys in the key's slot: on a cluster the fencing counter, for the same reason
}

// Replicas says how many replicas must have a write before it counts, and within what time.
type Replicas struct {
	N       int
	Timeout time.Duration
	Settled func(why error) // called after each wait: why the write does not count, or nil
}

// counts notes that a call may begin a fencing counter.
func (c *Call) counts(counter string, cluster bool) {
	if cluster {
		c.others = append(c.others, counter)
	}
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

// Given returns the arguments of the script.
func (c *Call) Given() []string {
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
	return c.Repair(ctx, way, way.Do(ctx, c.Command(way.B(), false)))
}

// SendAsync is [Call.Send] for a goroutine that goes on when its caller has given up. Gone says whether it has.
func (c *Call) SendAsync(ctx context.Context, way rueidis.CoreClient, gone *atomic.Bool) (result rueidis.RedisResult) {
	result = way.Do(ctx, c.Command(way.B(), false))
	if c.DropIfAbandoned && gone.Load() {
		return result
	}
	return c.Repair(ctx, way, result)
}

// Repair runs a script by its source if the server has replied that it does not know the digest.
func (c *Call) Repair(ctx context.Context, way rueidis.CoreClient, result rueidis.RedisResult) rueidis.RedisResult {
	if c.Script != nil && NoScript(result.Error()) {
		result = way.Do(ctx, c.BySource(way.B()))
	}
	return result
}

// Command returns the command of a call: SET, or a script by its digest. Blocks: it is sent on a connection of its own.
func (c *Call) Command(b rueidis.Builder, blocks bool) rueidis.Completed {
	name := "SET"
	if c.Script != nil {
		name = "EVALSHA"
	}
	command := b.Arbitrary(name)
	if c.Script != nil {
		command = command.Args(c.Script.SHA, c.numKeys())
	}
	if c.queue == "" && c.others == nil { // Keys, also for a single server: rueidis chooses a connection by them
		command = command.Keys(c.Key)
	} else {
		command = command.Keys(c.Keys()...)
	}
	if c.Script == nil {
		command = command.Args(c.Args[0], "NX", "PX", c.Args[1])
	} else {
		command = command.Args(c.Given()...)
	}
	if blocks {
		return command.Blocking()
	}
	return command.Build()
}

func (c *Call) numKeys() string {
	if c.queue == "" && c.others == nil {
		return "1"
	}
	return strconv.Itoa(len(c.Keys()))
}

// Keys returns the keys of the script.
func (c *Call) Keys() []string {
	keys := append([]string{c.Key}, c.others...)
	if c.queue != "" {
		keys = append(keys, c.queue)
	}
	return keys
}

// BySource returns the command of a call whose script the server does not know.
func (c *Call) BySource(b rueidis.Builder) rueidis.Completed {
	keys := c.Keys()
	return b.Eval().Script(c.Script.Source).Numkeys(int64(len(keys))).Key(keys...).Arg(c.Given()...).Build()
}

// NoScript reports whether the server does not know the script, for instance after a restart.
func NoScript(err error) bool {
	reply, ok := rueidis.IsRedisErr(err)
	return ok && reply.IsNoScript()
}

// SendAll runs scripts in one pipeline. Scripts that the server does not know run again in a second one, if they are still
// wanted.
func SendAll(ctx context.Context, way rueidis.CoreClient, calls []Call, wanted func(i int) bool) []rueidis.RedisResult {
	commands := make(rueidis.Commands, len(calls))
	for i, c := range calls {
		commands[i] = c.Command(way.B(), false)
	}
	results := way.DoMulti(ctx, commands...)
	var again []int
	var evals rueidis.Commands
	for i, result := range results {
		if NoScript(result.Error()) && wanted(i) {
			again = append(again, i)
			evals = append(evals, calls[i].BySource(way.B()))
		}
	}
	if len(evals) > 0 {
		for i, result := range way.DoMulti(ctx, evals...) {
			results[again[i]] = result
		}
	}
	return results
}

// Reply is the decoded reply to an obtaining call.
type Reply struct {
	Granted bool          // the hold owns the key
	Token   uint64        // the fencing token, if one was wanted
	Left    time.Duration // else the rest of the owner's lease; not positive: no end, or not known

	// For a call that asks something of the queue, if not granted; else empty.
	State   string // as in the scripts
	Rank    int    // how many tickets are in front of the call's
	Place   string // of the call's ticket
	Foreign bool   // the owner may not know of the queue
	Why     string // why there is no queue

	Number int // of a semaphore's permits, if the call named another number
}

// The states. One more is handled as missing: "refused", the command is late, and a later hold of this registry owns the key.
const (
	StateGranted = "granted" // the hold owns the key, and has a token
	stateTaken   = "taken"   // another hold owns it
	StateQueued  = "queued"  // the ticket is in the queue
	StateOwner   = "owner"   // the hold has owned the key before
	StateMissing = "missing" // the ticket is not there
	StateFailing = "error"   // there is no queue
)

// Decode reads the reply to an obtaining call.
func (c *Call) Decode(result rueidis.RedisResult) (s Reply, err error) {
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
	s.State, s.Left, s.Place = StateQueued, remaining(-1), place
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
		case i == 1 && s.State == StateGranted:
			s.Token, err = v.AsUint64()
		case s.State == StateGranted:
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
	if s.Number = int(number); s.State == StateGranted {
		s.State, s.Granted = "", true
		return s, nil
	}
	if s.State == stateTaken {
		s.State = ""
	}
	s.Left, s.Rank, s.Foreign = remaining(pttl), int(rank), foreign == 1
	return s, nil
}

// Confirmed decodes the reply to a release or a renewal: 0 means that the key is gone, a negative number that another hold has
// it, or that the key is of another type.
func Confirmed(result rueidis.RedisResult) (int64, error) {
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
	why, _ := reply.ToString() // cannot fail: it is a string
	return why
}
