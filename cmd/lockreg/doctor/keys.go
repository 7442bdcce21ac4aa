package doctor

import (
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/rueidis"

	"github.com/lockregistry/lockregistry/internal/clock"
	"github.com/lockregistry/lockregistry/internal/fault"
	"github.com/lockregistry/lockregistry/internal/keyspace"
	"github.com/lockregistry/lockregistry/internal/presence"
	"github.com/lockregistry/lockregistry/internal/scan"
)

const (
	scanShare = 19 // of the time that a call takes, how much of a pause follows: 5 % of the server's time is used
	scanPause = 20 * time.Millisecond
	keysShown = 10
)

// leftover is a key that nothing of this library or of its peers leaves like that.
type leftover struct {
	key  string
	kind string // its type
}

// leftovers are how many there are, and the first ones in the order of their names.
type leftovers struct {
	count int
	first []leftover
}

func (l *leftovers) add(key, kind string) {
	l.count++
	at, _ := slices.BinarySearchFunc(l.first, key, func(o leftover, key string) int { return strings.Compare(o.key, key) })
	if at < keysShown {
		l.first = slices.Insert(l.first, at, leftover{key, kind})
		l.first = l.first[:min(len(l.first), keysShown)]
	}
}

// looked is the result of a look at the keys of a node.
type looked struct {
	forever, strange, long leftovers // without a lease, of a type that no lock has, with a name that is too long
	known                  map[uint64]bool
	seed                   maphash.Seed
	steps                  int
}

// repeats reports whether SCAN has shown a key before.
func (l *looked) repeats(key string) bool {
	sum := maphash.String(l.seed, key)
	known := l.known[sum]
	if !known && len(l.known) < 1_000_000 {
		l.known[sum] = true
	}
	return known
}

// keys goes through the keys of the prefix.
func (x *examination) keys(ctx context.Context) {
	until := time.Now().Add(x.opts.ScanFor)
	var seen, denied bool
	for _, n := range x.nodes {
		if n.role() == "replica" {
			continue
		}
		all := looked{known: map[uint64]bool{}, seed: maphash.MakeSeed()}
		err := x.scan(ctx, n, until, &all)
		switch {
		case errors.Is(err, errDenied):
			denied = true
		case err != nil:
			x.unscanned(n, err)
		}
		seen = seen || all.steps > 0
		x.leftovers(n, "key-lease", all.forever, "have no expiry",
			"They never expire, so their paths stay taken until somebody removes them. No registry makes such keys: they were set by "+
				"hand.")
		x.leftovers(n, "key-type", all.strange, "are of a type that no lock has",
			"Locking their paths fails with ErrWrongType, or there is no queue.")
		x.leftovers(n, "key-name", all.long, "have names that are too long", "They were not examined.")
	}
	if seen && !denied {
		x.found(Finding{ID: "key-lease", Severity: OK, Seen: "all keys of the prefix have an expiry"})
		x.found(Finding{ID: "key-type", Severity: OK, Seen: "all keys of the prefix are of this library, or of its peers"})
	}
}

// unscanned says that there may be more keys than were looked at.
func (x *examination) unscanned(n *node, err error) {
	f := Finding{
		ID: "keys-unseen", Severity: Info, Nodes: []string{n.address},
		Seen: fmt.Sprintf("not all keys of the database were scanned in %v", x.opts.ScanFor),
		Why:  "There may be more leftover keys.", Do: "Look for longer: lockreg doctor --scan-for 10m.",
	}
	if !errors.Is(err, errOver) {
		f.Seen, f.Do = "not all keys of the database were scanned: "+fault.Short(err.Error()), "Run lockreg doctor again."
	}
	x.found(f)
}

func (x *examination) leftovers(n *node, id string, all leftovers, what, why string) {
	if all.count == 0 {
		return
	}
	var names, keys []string
	for _, l := range all.first {
		if l.kind == "" { // its name is cut
			names = append(names, l.key)
			continue
		}
		names, keys = append(names, fmt.Sprintf("%s (%s)", l.key, l.kind)), append(keys, l.key)
	}
	seen := fmt.Sprintf("%d keys %s: %s", all.count, what, strings.Join(names, ", "))
	if all.count == 1 {
		what = strings.NewReplacer("have names that are", "has a name that is", "have", "has", "are", "is").Replace(what)
		seen = "1 key " + what + ": " + names[0]
	}
	if all.count > len(names) {
		seen += " and others"
	}
	f := Finding{
		ID: id, Severity: Warning, Nodes: []string{n.address}, Seen: seen, Why: why,
		Do: "Find out which program made them. Remove them if nobody needs them. If you remove a lock that is held, a second " +
			"owner may get it.",
	}
	for _, key := range keys { // one by one: on a cluster they are in different slots
		f.Commands = append(f.Commands, line("DEL", key))
	}
	x.found(f)
}

// Why a scan has ended before the last key, besides errors of the server and of the connection.
var (
	errOver   = errors.New("the time is over")
	errDenied = errors.New("the user lacks a permission") // which is noted
)

// scan looks at all keys. It returns nil if it has seen all.
func (x *examination) scan(ctx context.Context, n *node, until time.Time, all *looked) error {
	pattern := "*" + scan.Literal(x.opts.Prefix) + ":*" // readers' keys, and Redisson's counters, begin otherwise
	send := func(words ...string) rueidis.RedisResult { return n.do(ctx, words...) }
	for cursor := "0"; ; {
		began := time.Now()
		step, err := keyspace.Step(send, cursor, pattern)
		if err != nil {
			return x.missScan(err)
		}
		for _, name := range step.TooLong {
			if !all.repeats(name) && x.meaning(name) != foreign {
				all.long.add(name, "")
			}
		}
		names := slices.DeleteFunc(step.Keys, func(key string) bool { return all.repeats(key) || x.meaning(key) == foreign })
		if err := x.look(ctx, n, names, all); err != nil {
			return err
		}
		all.steps++
		if cursor = step.Cursor; cursor == "0" {
			return nil
		}
		if time.Now().After(until) || !clock.Rest(ctx, min(scanShare*time.Since(began), scanPause)) {
			return errOver
		}
	}
}

// missScan notes the permission that the user lacks for a scan, and returns errDenied, if that is why it failed.
func (x *examination) missScan(err error) error {
	refused, ok := rueidis.IsRedisErr(err)
	switch {
	case !ok || !fault.IsDenied(refused):
		return err
	case strings.HasPrefix(refused.Error(), "NOPERM"):
		x.miss("+eval")
	default: // the script may run, but not this
		x.miss("+scan")
	}
	return errDenied
}

// look asks for the types and leases of keys.
func (x *examination) look(ctx context.Context, n *node, keys []string, all *looked) error {
	if len(keys) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, answerLimit)
	defer cancel()
	var commands rueidis.Commands
	for _, key := range keys {
		commands = append(commands, n.client.B().Arbitrary("TYPE", key).Build(), n.client.B().Arbitrary("PTTL", key).Build())
	}
	replies := n.client.DoMulti(ctx, commands...)
	var permits []leftover // strange or without a lease, unless they are semaphores
	for i, key := range keys {
		kind, err := replies[2*i].ToString()
		lease, err2 := replies[2*i+1].AsInt64()
		switch {
		case x.refused(err, "+type") || x.refused(err2, "+pttl"):
			return errDenied
		case !fault.Answered(err):
			return err
		case !fault.Answered(err2):
			return err2
		case err != nil || err2 != nil || lease == -2: // gone meanwhile
			continue
		}
		switch means := x.meaning(key); {
		case means == lock && (kind == "zset" || kind == "string" && lease == -1):
			permits = append(permits, leftover{key, kind})
		case !slices.Contains(means.types(), kind):
			all.strange.add(key, kind)
		case lease == -1 && means != counter && (means != held || kind != "zset"):
			all.forever.add(key, kind)
		}
	}
	return x.lookAtPermits(ctx, n, permits, all)
}

// refused reports whether the user lacks a permission, and notes it.
func (x *examination) refused(err error, rule string) bool {
	refused, ok := rueidis.IsRedisErr(err)
	if ok = ok && strings.HasPrefix(refused.Error(), "NOPERM"); ok {
		x.miss(rule)
	}
	return ok
}

// longestNumber is how long the number of free permits of a semaphore of Redisson may be.
const longestNumber = 11

// lookAtPermits notes what is no semaphore: sets without a number of permits, and strings other than the number of free permits
// that Redisson's semaphores have there, which has no lease.
func (x *examination) lookAtPermits(ctx context.Context, n *node, keys []leftover, all *looked) error {
	if len(keys) == 0 {
		return nil
	}
	var first, second rueidis.Commands
	for _, l := range keys {
		command := n.client.B().Arbitrary("STRLEN", l.key).Build()
		if l.kind == "zset" {
			command = n.client.B().Arbitrary("ZSCORE", l.key, "permits").Build()
		}
		first = append(first, command)
	}
	var numbers []leftover
	for i, reply := range n.client.DoMulti(ctx, first...) {
		l, err := keys[i], reply.Error()
		switch {
		case x.refused(err, "+zscore +strlen"):
			return errDenied
		case !fault.Answered(err):
			return err
		case l.kind == "zset":
			if err != nil {
				all.strange.add(l.key, l.kind)
			}
		default:
			if length, err := reply.AsInt64(); err != nil || length > longestNumber {
				all.forever.add(l.key, l.kind)
				continue
			}
			numbers = append(numbers, l)
			second = append(second, n.client.B().Arbitrary("GET", l.key).Build())
		}
	}
	if len(second) == 0 {
		return nil
	}
	for i, reply := range n.client.DoMulti(ctx, second...) {
		number, err := reply.ToString()
		switch {
		case x.refused(err, "+get"):
			return errDenied
		case !fault.Answered(err):
			return err
		}
		if _, err := strconv.Atoi(number); err != nil {
			all.forever.add(numbers[i].key, numbers[i].kind)
		}
	}
	return nil
}

// meaning is the purpose of a key, by its name.
type meaning int

const (
	foreign meaning = iota
	lock
	queue   // of a lock
	record  // a fencing counter, a registry's record
	list    // of the registries that have a record
	counter // Redisson's fencing counter, which has no lease
	reader  // the lease of a reader
	held    // the held permits of a semaphore of Redisson
)

func (m meaning) types() []string {
	switch m {
	case lock:
		return []string{"string", "hash"}
	case queue, list:
		return []string{"zset"}
	case held: // or a lock with such a path
		return []string{"zset", "string", "hash"}
	default:
		return []string{"string"}
	}
}

func (x *examination) meaning(key string) meaning {
	prefix := x.opts.Prefix + ":"
	switch rest, own := strings.CutPrefix(key, prefix); {
	case own && tagged(key) && strings.HasSuffix(rest, ":waiters"):
		return queue
	case own && presence.IsList(key):
		return list
	case own && tagged(key) && (strings.HasSuffix(rest, ":fencing") || strings.HasSuffix(rest, "}:registry")):
		return record
	case own && strings.Contains(rest, ":rwlock_timeout:"):
		return reader
	case own && tagged(key) && strings.HasSuffix(rest, ":timeout"):
		return held
	case own:
		return lock
	case strings.HasPrefix(key, "{"+prefix) && strings.Contains(key, "}:") && strings.Contains(key, ":rwlock_timeout:"):
		return reader
	case strings.HasPrefix(key, "redisson_lock_token:{"+prefix), strings.HasPrefix(key, "redisson_lock_token:"+prefix):
		return counter
	}
	return foreign
}

// tagged reports whether a part of a key is in braces.
func tagged(key string) bool {
	_, rest, open := strings.Cut(key, "{")
	return open && strings.Index(rest, "}") > 0
}
