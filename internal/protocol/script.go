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

// Script is a Lua script that works on the keys of one slot, so that it runs on every node of a cluster.
type Script struct {
	Source string
	SHA    string
}

// NewScript makes a script of its source.
func NewScript(source string) *Script {
	sum := sha1.Sum([]byte(source))
	return &Script{Source: source, SHA: hex.EncodeToString(sum[:])}
}

// Call is a command about one key: a script with its arguments, or, without a script, the SET that takes a free lock.
type Call struct {
	Script *Script
	Key    string
	Args   Args
	more   []string // what follows them, in calls that are rare

	// While a slot of a cluster moves, a script with the one key goes to where that is, or, when it is gone, to where the slot
	// goes. There it must not begin a queue while another one is on its way: the server that moves them would stop with an error.
	// So a call that may begin one names the queue too. It is refused then unless both are there. A call that waits tries again,
	// and a release does so without the queue.
	queue string // its key; empty: the call begins none

	// Of a call that obtains: a script that the server does not know is not sent again once nobody waits for the answer. The
	// removal of what it may have got is on its way then, and would come first.
	DropIfAbandoned bool

	Replicas *Replicas // which must have what it writes before it counts; nil: none
	Wrote    func(c *Call, result rueidis.RedisResult) bool
	others   []string // further keys of the script, in the slot of the key: for the same reason, the fencing counter on a cluster
}

// Replicas is what a write needs before it counts: how many must have a write, and within what time.
type Replicas struct {
	N       int
	Timeout time.Duration
	Told    func(why error) // of each write that was waited for: why it does not count, or nil
}

// counts notes that a call may begin a fencing counter.
func (c *Call) counts(counter string, cluster bool) {
	if cluster {
		c.others = []string{counter}
	}
}

// QueueKey is the key of a lock's queue, see lua/queue.lua; empty where that is in another slot, so that there is none.
func QueueKey(prefix, key string) string {
	queue := prefix + ":{" + key + "}:waiters"
	if HashTag(key) != key {
		queue = key + ":waiters"
	}
	if Slot(queue) != Slot(key) {
		return ""
	}
	return queue
}

// Args are those of one call: an array, so that a call needs no memory of its own. Empty ones at the end are not
// sent; a script takes a missing one for empty.
type Args [5]string

// then adds rare arguments to those of the array.
func (c *Call) then(more ...string) {
	n := len(more)
	for n > 0 && more[n-1] == "" {
		n--
	}
	if n > 0 {
		c.more = slices.Clone(more[:n])
	}
}

// Given is the arguments of the script.
func (c *Call) Given() []string {
	given := c.Args[:len(c.Args):len(c.Args)]
	if c.more != nil {
		given = append(given, c.more...)
	}
	n := len(given)
	for n > 0 && given[n-1] == "" {
		n--
	}
	return given[:n]
}

// Send runs a call: a script by its digest where the server knows it.
func (c *Call) Send(ctx context.Context, way rueidis.CoreClient) (result rueidis.RedisResult) {
	return c.Repair(ctx, way, way.Do(ctx, c.Command(way.B(), false)))
}

// SendAsync is [Call.Send] in a goroutine of its own: ctx does not end when nobody waits any more.
func (c *Call) SendAsync(ctx context.Context, way rueidis.CoreClient, gone *atomic.Bool) (result rueidis.RedisResult) {
	result = way.Do(ctx, c.Command(way.B(), false))
	if c.DropIfAbandoned && gone.Load() {
		return result
	}
	return c.Repair(ctx, way, result)
}

// Repair runs a script by its source when the server has said that it does not know its digest.
func (c *Call) Repair(ctx context.Context, way rueidis.CoreClient, result rueidis.RedisResult) rueidis.RedisResult {
	if c.Script != nil && NoScript(result.Error()) {
		result = way.Do(ctx, c.BySource(way.B()))
	}
	return result
}

// Command is that of a call: SET, or a script by its digest. One that blocks has a connection of its own.
func (c *Call) Command(b rueidis.Builder, blocks bool) rueidis.Completed {
	name := "SET"
	if c.Script != nil {
		name = "EVALSHA"
	}
	command := b.Arbitrary(name)
	if c.Script != nil {
		command = command.Args(c.Script.SHA, c.numKeys())
	}
	if c.queue == "" && c.others == nil { // Keys, also for a single server: among its connections rueidis chooses by them
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

// Keys is the keys of the script.
func (c *Call) Keys() []string {
	keys := append([]string{c.Key}, c.others...)
	if c.queue != "" {
		keys = append(keys, c.queue)
	}
	return keys
}

// BySource is the command of a call whose script the server does not know.
func (c *Call) BySource(b rueidis.Builder) rueidis.Completed {
	if c.queue != "" || c.others != nil {
		keys := c.Keys()
		return b.Eval().Script(c.Script.Source).Numkeys(int64(len(keys))).Key(keys...).Arg(c.Given()...).Build()
	}
	return b.Eval().Script(c.Script.Source).Numkeys(1).Key(c.Key).Arg(c.Given()...).Build()
}

// NoScript tells whether the server does not know the script, after a restart for instance.
func NoScript(err error) bool {
	reply, ok := rueidis.IsRedisErr(err)
	return ok && reply.IsNoScript()
}

// SendAll runs scripts in one pipeline. Those that the server does not know run again in a second one, if they are wanted
// still.
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

// Reply is what the reply of a call that obtains says about its hold.
type Reply struct {
	Granted bool          // it owns the key
	Token   uint64        // the fencing token that came with it, if one was wanted
	Left    time.Duration // else: what remains of the lease of whoever does, not positive when that has no end or is not known

	// Of a call that asks something of the queue, where not granted; empty for others.
	State   string // in the words of the scripts
	Rank    int    // how many tickets are in front of its own
	Place   string // of its own
	Foreign bool   // the owner may not know of the queue
	Why     string // there is no queue

	Number int // of the permits of a semaphore, if the call has named another one
}

// The states.
const (
	StateGranted = "granted" // the hold owns the key, and has a token
	stateTaken   = "taken"   // another one has it
	StateQueued  = "queued"  // the ticket is in the queue
	StateOwner   = "owner"   // the hold has owned the key before
	StateMissing = "missing" // the ticket is not there
	StateRefused = "refused" // the command is late: a later hold of this registry owns the key
	StateFailing = "error"   // there is no queue to be had
)

// Decode reads the reply of a call that obtains.
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
		s.Left = Remaining(pttl)
		return s, err
	}
	values, err := message.ToArray()
	if err == nil {
		s, err = readStanding(values)
	}
	return s, err
}

// readShort reads the reply to a ticket of which the script has asked little, see lua/queue.lua.
func readShort(reply string) (s Reply, err error) {
	ahead, place, _ := strings.Cut(reply, " ")
	s.State, s.Left, s.Place = StateQueued, Remaining(-1), place
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
	s.Left, s.Rank, s.Foreign = Remaining(pttl), int(rank), foreign == 1
	return s, nil
}

// Confirmed decodes the reply of a release or a renewal: when the key was not the hold's, 0 means that it is gone, and less that
// another has it, as does a key of another type, which somebody put in its place.
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

// WhyNoQueue is why there is no queue, when that is what a release has replied. Most replies are numbers, and cost no
// allocation here.
func WhyNoQueue(result rueidis.RedisResult) string {
	reply, err := result.ToMessage()
	if err != nil || !reply.IsString() {
		return ""
	}
	why, _ := reply.ToString() // which cannot fail: it is a string
	return why
}
