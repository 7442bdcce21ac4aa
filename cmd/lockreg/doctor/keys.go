package doctor

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/rueidis"
)

const (
	scanCount = 500
	scanShare = 19 // of the time that a call takes, how much of a pause follows: 5 % of the server's time is used
	scanPause = 20 * time.Millisecond
	keysShown = 10
)

// leftover is a key that nothing of this library or of its peers leaves like that.
type leftover struct {
	key  string
	kind string // its type
}

// keys goes through the keys of the prefix.
func (x *examination) keys(ctx context.Context) {
	until := time.Now().Add(x.opts.ScanFor)
	for _, n := range x.nodes {
		if n.role() == "replica" {
			continue
		}
		var forever, strange []leftover
		seen, done := x.scan(ctx, n, until, &forever, &strange)
		x.found(Finding{ID: "key-lease", Severity: OK, Seen: "all keys of the prefix have a lease"})
		x.found(Finding{ID: "key-type", Severity: OK, Seen: "all keys of the prefix are of this library, or of its peers"})
		if !done && seen > 0 {
			x.found(Finding{
				ID: "keys-unseen", Severity: Info, Nodes: []string{n.address},
				Seen: fmt.Sprintf("not all keys of the database were looked at in %v", x.opts.ScanFor),
				Why:  "Others may be left over, too.", Do: "Take more time for it: lockreg doctor --scan-for 10m.",
			})
		}
		x.leftovers(n, "key-lease", forever, "have no lease",
			"Nobody removes them, so that their paths stay taken for ever. No registry makes such keys: somebody set them by hand.")
		x.leftovers(n, "key-type", strange, "are of a type that no lock has",
			"Locking their paths fails with ErrWrongType, or their queue cannot be had.")
	}
}

func (x *examination) leftovers(n *node, id string, all []leftover, what, why string) {
	if len(all) == 0 {
		return
	}
	slices.SortFunc(all, func(a, b leftover) int { return strings.Compare(a.key, b.key) })
	shown := all[:min(len(all), keysShown)]
	var names, keys []string
	for _, l := range shown {
		names, keys = append(names, fmt.Sprintf("%s (%s)", l.key, l.kind)), append(keys, l.key)
	}
	seen := fmt.Sprintf("%d keys %s: %s", len(all), what, strings.Join(names, ", "))
	if len(all) == 1 {
		seen = "1 key " + strings.Replace(strings.Replace(what, "have", "has", 1), "are", "is", 1) + ": " + names[0]
	}
	if len(all) > len(shown) {
		seen += " and others"
	}
	f := Finding{
		ID: id, Severity: Warning, Nodes: []string{n.address}, Seen: seen, Why: why,
		Do: "Find out who made them. Remove them if nobody needs them; removing a lock that is held lets a second owner in.",
	}
	for _, key := range keys { // one by one: on a cluster they are in different slots
		f.Commands = append(f.Commands, line("DEL", key))
	}
	x.found(f)
}

// scan looks at keys until it is through, or the time is over. It tells how many it saw, and whether that was all.
func (x *examination) scan(ctx context.Context, n *node, until time.Time, forever, strange *[]leftover) (seen int, done bool) {
	pattern := "*" + literal(x.opts.Prefix) + ":*" // readers' keys, and Redisson's counters, begin otherwise
	found := map[string]bool{}                     // SCAN may show a key twice
	for cursor := uint64(0); ; {
		began := time.Now()
		reply := n.do(ctx, "SCAN", strconv.FormatUint(cursor, 10), "MATCH", pattern, "COUNT", strconv.Itoa(scanCount))
		entry, err := reply.AsScanEntry()
		if err != nil {
			if answered(err) {
				x.miss("+scan")
			}
			return seen, false
		}
		keys := slices.DeleteFunc(entry.Elements, func(key string) bool {
			known := found[key]
			if !known && len(found) < 1_000_000 {
				found[key] = true
			}
			return known || x.meaning(key) == foreign
		})
		if !x.look(ctx, n, keys, forever, strange) {
			return seen, false
		}
		seen++
		cursor = entry.Cursor
		if cursor == 0 {
			return seen, true
		}
		if time.Now().After(until) || pause(ctx, min(scanShare*time.Since(began), scanPause)) != nil {
			return seen, false
		}
	}
}

// look asks for the types and leases of keys.
func (x *examination) look(ctx context.Context, n *node, keys []string, forever, strange *[]leftover) bool {
	if len(keys) == 0 {
		return true
	}
	ctx, cancel := context.WithTimeout(ctx, answerLimit)
	defer cancel()
	var commands rueidis.Commands
	for _, key := range keys {
		commands = append(commands, n.client.B().Arbitrary("TYPE", key).Build(), n.client.B().Arbitrary("PTTL", key).Build())
	}
	replies := n.client.DoMulti(ctx, commands...)
	for i, key := range keys {
		kind, err := replies[2*i].ToString()
		lease, err2 := replies[2*i+1].AsInt64()
		for rule, err := range map[string]error{"+type": err, "+pttl": err2} {
			if refused, ok := rueidis.IsRedisErr(err); ok && strings.HasPrefix(refused.Error(), "NOPERM") {
				x.miss(rule)
				return false
			}
		}
		if err != nil || err2 != nil || lease == -2 { // gone meanwhile
			continue
		}
		if types := x.meaning(key).types(); !slices.Contains(types, kind) {
			*strange = append(*strange, leftover{key, kind})
		} else if lease == -1 && x.meaning(key) != counter {
			*forever = append(*forever, leftover{key, kind})
		}
	}
	return true
}

// meaning is what a key is by its name.
type meaning int

const (
	foreign meaning = iota
	lock
	queue   // of a lock
	record  // a fencing counter, a registry's record
	counter // Redisson's fencing counter, which has no lease
	reader  // the lease of a reader
)

func (m meaning) types() []string {
	switch m {
	case lock:
		return []string{"string", "hash"}
	case queue:
		return []string{"zset"}
	default:
		return []string{"string"}
	}
}

func (x *examination) meaning(key string) meaning {
	prefix := x.opts.Prefix + ":"
	switch rest, own := strings.CutPrefix(key, prefix); {
	case own && tagged(key) && strings.HasSuffix(rest, ":waiters"):
		return queue
	case own && tagged(key) && (strings.HasSuffix(rest, ":fencing") || strings.HasSuffix(rest, "}:registry")):
		return record
	case own && strings.Contains(rest, ":rwlock_timeout:"):
		return reader
	case own:
		return lock
	case strings.HasPrefix(key, "{"+prefix) && strings.Contains(key, "}:") && strings.Contains(key, ":rwlock_timeout:"):
		return reader
	case strings.HasPrefix(key, "redisson_lock_token:{"+prefix), strings.HasPrefix(key, "redisson_lock_token:"+prefix):
		return counter
	}
	return foreign
}

// tagged tells whether a part of a key is in braces.
func tagged(key string) bool {
	_, rest, open := strings.Cut(key, "{")
	return open && strings.Index(rest, "}") > 0
}
