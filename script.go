package lockregistry

import (
	"context"
	"crypto/sha1"
	"embed"
	"encoding/hex"
	"io/fs"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/redis/rueidis"

	"github.com/lockregistry/lockregistry/internal/lua"
)

//go:embed lua/*.lua
var sources embed.FS

// script is a Lua script that works on the keys of one slot, so that it runs on every node of a cluster.
type script struct {
	source string
	sha    string
}

func load(name string) *script {
	folder, err := fs.Sub(sources, "lua")
	if err == nil {
		var source string
		if source, err = lua.Script(folder, name); err == nil {
			return scriptOf(source)
		}
	}
	panic(err) // only a broken build can lack it
}

func scriptOf(source string) *script {
	sum := sha1.Sum([]byte(source))
	return &script{source: source, sha: hex.EncodeToString(sum[:])}
}

// call is a command about one key: a script with its arguments, or, without a script, the SET that takes a free lock.
type call struct {
	script *script
	key    string
	args   arguments
	more   []string // what follows them, in calls that are rare

	// While a slot of a cluster moves, a script with the one key goes to where that is, or, when it is gone, to where the slot
	// goes. There it must not begin a queue while another one is on its way: the server that moves them would stop with an error.
	// So a call that may begin one names the queue too. It is refused then unless both are there. A call that waits tries again,
	// and a release does so without the queue, see removeLater.
	queue string // its key; empty: the call begins none

	// Of a call that obtains: a script that the server does not know is not sent again once nobody waits for the answer. The
	// removal of what it may have got is on its way then, and would come first.
	vain bool

	replicas *replicas // which must have what it writes before it counts; nil: none
	wrote    func(c *call, result rueidis.RedisResult) bool
	others   []string // further keys of the script, in the slot of the key: for the same reason, the fencing counter on a cluster
}

// counts notes that a call may begin a fencing counter.
func (c *call) counts(counter string, cluster bool) {
	if cluster {
		c.others = []string{counter}
	}
}

// queueOf is the key of a lock's queue, see lua/names.lua; empty where that is in another slot, so that there is none.
func queueOf(prefix, key string) string {
	queue := prefix + ":{" + key + "}:waiters"
	if hashed(key) != key {
		queue = key + ":waiters"
	}
	if slotOf(queue) != slotOf(key) {
		return ""
	}
	return queue
}

// arguments are those of one call: an array, so that a call needs no memory of its own. Empty ones at the end are not
// sent; a script takes a missing one for empty.
type arguments [5]string

func (c *call) given() []string {
	given := c.args[:len(c.args):len(c.args)]
	if c.more != nil {
		given = append(given, c.more...)
	}
	n := len(given)
	for n > 0 && given[n-1] == "" {
		n--
	}
	return given[:n]
}

// send runs a call: a script by its digest where the server knows it.
func (c *call) send(ctx context.Context, way rueidis.CoreClient) (result rueidis.RedisResult) {
	return c.repair(ctx, way, way.Do(ctx, c.command(way.B(), false)))
}

// sendApart is send in a goroutine of its own: ctx does not end when nobody waits any more.
func (c *call) sendApart(ctx context.Context, way rueidis.CoreClient, gone *atomic.Bool) (result rueidis.RedisResult) {
	result = way.Do(ctx, c.command(way.B(), false))
	if c.vain && gone.Load() {
		return result
	}
	return c.repair(ctx, way, result)
}

// repair runs a script by its source when the server has said that it does not know its digest.
func (c *call) repair(ctx context.Context, way rueidis.CoreClient, result rueidis.RedisResult) rueidis.RedisResult {
	if c.script != nil && noScript(result.Error()) {
		result = way.Do(ctx, c.bySource(way.B()))
	}
	return result
}

// command is that of a call: SET, or a script by its digest. One that blocks has a connection of its own.
func (c *call) command(b rueidis.Builder, blocks bool) rueidis.Completed {
	name := "SET"
	if c.script != nil {
		name = "EVALSHA"
	}
	command := b.Arbitrary(name)
	if c.script != nil {
		command = command.Args(c.script.sha, c.numKeys())
	}
	if c.queue == "" && c.others == nil { // Keys, also for a single server: among its connections rueidis chooses by them
		command = command.Keys(c.key)
	} else {
		command = command.Keys(c.keys()...)
	}
	if c.script == nil {
		command = command.Args(c.args[0], "NX", "PX", c.args[1])
	} else {
		command = command.Args(c.given()...)
	}
	if blocks {
		return command.Blocking()
	}
	return command.Build()
}

func (c *call) numKeys() string {
	if c.queue == "" && c.others == nil {
		return "1"
	}
	return strconv.Itoa(len(c.keys()))
}

func (c *call) keys() []string {
	keys := append([]string{c.key}, c.others...)
	if c.queue != "" {
		keys = append(keys, c.queue)
	}
	return keys
}

func (c *call) bySource(b rueidis.Builder) rueidis.Completed {
	if c.queue != "" || c.others != nil {
		keys := c.keys()
		return b.Eval().Script(c.script.source).Numkeys(int64(len(keys))).Key(keys...).Arg(c.given()...).Build()
	}
	return b.Eval().Script(c.script.source).Numkeys(1).Key(c.key).Arg(c.given()...).Build()
}

// noScript tells whether the server does not know the script, after a restart for instance.
func noScript(err error) bool {
	reply, ok := rueidis.IsRedisErr(err)
	return ok && reply.IsNoScript()
}

// wrongType tells whether the key holds something that is no lock of this layout.
func wrongType(err error) bool {
	reply, ok := rueidis.IsRedisErr(err)
	return ok && strings.Contains(reply.Error(), "WRONGTYPE")
}

// sendAll runs scripts in one pipeline. Those that the server does not know run again in a second one, if they are wanted
// still.
func sendAll(ctx context.Context, way rueidis.CoreClient, calls []call, wanted func(i int) bool) []rueidis.RedisResult {
	commands := make(rueidis.Commands, len(calls))
	for i, c := range calls {
		commands[i] = c.command(way.B(), false)
	}
	results := way.DoMulti(ctx, commands...)
	var again []int
	var evals rueidis.Commands
	for i, result := range results {
		if noScript(result.Error()) && wanted(i) {
			again = append(again, i)
			evals = append(evals, calls[i].bySource(way.B()))
		}
	}
	if len(evals) > 0 {
		for i, result := range way.DoMulti(ctx, evals...) {
			results[again[i]] = result
		}
	}
	return results
}

// standing is what the reply of a call that obtains says about its hold.
type standing struct {
	granted bool          // it owns the key
	token   uint64        // the fencing token that came with it, if one was wanted
	left    time.Duration // else: what remains of the lease of whoever does, not positive when that has no end or is not known

	// Of a call that asks something of the queue, where not granted; empty for others.
	state   string // in the words of the scripts
	rank    int    // how many tickets are in front of its own
	place   string // of its own
	foreign bool   // the owner may not know of the queue
	why     string // there is no queue
}

// The states.
const (
	isGranted = "granted" // the hold owns the key, and has a token
	isQueued  = "queued"  // the ticket is in the queue
	isOwner   = "owner"   // the hold has owned the key before
	isMissing = "missing" // the ticket is not there
	isRefused = "refused" // the command is late: a later hold of this registry owns the key
	isFailing = "error"   // there is no queue to be had
)

// decode reads the reply of a call that obtains.
func (c *call) decode(result rueidis.RedisResult) (s standing, err error) {
	if c.script == nil {
		if err = result.Error(); rueidis.IsRedisNil(err) {
			return s, nil
		}
		s.granted = err == nil
		return s, err
	}
	message, err := result.ToMessage()
	switch {
	case rueidis.IsRedisNil(err):
		s.granted = true
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
		s.left = remaining(pttl)
		return s, err
	}
	values, err := message.ToArray()
	if err == nil {
		s, err = readStanding(values)
	}
	return s, err
}

// readShort reads the reply to a ticket of which the script has asked little, see lua/ticket.lua.
func readShort(reply string) (s standing, err error) {
	ahead, place, _ := strings.Cut(reply, " ")
	s.state, s.left, s.place = isQueued, remaining(-1), place
	s.rank, err = strconv.Atoi(ahead)
	return s, err
}

func readStanding(values []rueidis.RedisMessage) (s standing, err error) {
	var pttl, rank, foreign int64
	for i := range values {
		switch v := &values[i]; {
		case i == 0:
			s.state, err = v.ToString()
		case s.state == isFailing:
			s.why, err = v.ToString()
		case s.state == isGranted:
			s.token, err = v.AsUint64()
		case i == 1:
			pttl, err = v.AsInt64()
		case i == 2:
			rank, err = v.AsInt64()
		case i == 3:
			s.place, err = v.ToString()
		case i == 4:
			foreign, err = v.AsInt64()
		}
		if err != nil {
			return s, err
		}
	}
	if s.state == isGranted {
		s.state, s.granted = "", true
		return s, nil
	}
	s.left, s.rank, s.foreign = remaining(pttl), int(rank), foreign == 1
	return s, nil
}

// confirmed decodes the reply of a release or a renewal: when the key was not the hold's, 0 means that it is gone, and less that
// another has it, as does a key of another type, which somebody put in its place.
func confirmed(result rueidis.RedisResult) (int64, error) {
	if unqueued(result) != "" {
		return queueless, nil
	}
	n, err := result.AsInt64()
	if wrongType(err) {
		return -1, nil
	}
	return n, err
}

// unqueued is why there is no queue, when that is what a release has replied. Most replies are numbers, and cost no
// allocation here.
func unqueued(result rueidis.RedisResult) string {
	reply, err := result.ToMessage()
	if err != nil || !reply.IsString() {
		return ""
	}
	why, _ := reply.ToString() // which cannot fail: it is a string
	return why
}
