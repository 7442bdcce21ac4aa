package doctor

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/redis/rueidis"

	"github.com/lockregistry/lockregistry/internal/scan"
	"github.com/lockregistry/lockregistry/observe"
)

// Modes returns the names of the permissions that a user can have:
//
//	lock       plain locks in the layout
//	readwrite  read-write locks
//	queue      a place in the queue of a lock, instead of polling
//	quiet      seeing that nobody polls, so that no handoff waits for that
//	tracking   waking when the key changes, but WithPolling
//	pubsub     waking when Java publishes a release, and telling it, but WithPolling
//	fencing    WithFencing
//	replicas   WithReplicas
//	atleast    AtLeast
//	record     saying which host and process a registry belongs to
//	list       entering that record in the list of records, for those who look in a database with many other keys
//	inspect    Inspect, Locks, Deadlocks: lockreg ls, show, deadlocks and serve
//	release    ForceUnlock, ForceUnlockHolder, Inspect: lockreg release
func Modes() []string {
	return []string{
		"lock", "readwrite", "queue", "quiet", "tracking", "pubsub", "fencing", "replicas", "atleast", "record", "list",
		"inspect", "release",
	}
}

// area is a part of a mode's needs: rules for commands, and the pattern of their keys or channels.
type area struct {
	rules   []string
	pattern string // as in an access list; empty: keys and channels do not matter
	name    string // a key or channel within it
}

// mode is a set of permissions with a name.
type mode struct {
	name  string
	title string
	why   string // it matters
	minor bool   // without it nothing fails
	areas []area
}

const queueRules = "+exists +pexpire +zadd +zrem +zrange +zrevrange +zrangebyscore +zscore +zrank"

func (x *examination) modes() []mode {
	prefix, path := x.opts.Prefix, x.scratch
	pattern, key := scan.Literal(prefix), prefix+":"+path
	redisson, clustered := x.opts.Layout == observe.LayoutRedisson, x.client.Mode() == rueidis.ClientModeCluster
	sharded := clustered && x.atLeast(7)

	keys := func(rules string) area { return area{strings.Fields(rules), "~" + pattern + ":*", key} }
	readers := func(rules string) area {
		return area{strings.Fields(rules), "~{" + pattern + ":*", "{" + key + "}:rwlock_timeout"}
	}
	channels := func(rules string) area {
		return area{strings.Fields(rules), "&" + pattern + "-channel*", prefix + "-channel@" + path}
	}
	redissons := func(kind, rules string) area {
		if sharded {
			rules = strings.ReplaceAll(rules, "+publish", "+publish +spublish")
		}
		return area{strings.Fields(rules), "&" + kind + ":{" + pattern + ":*", kind + ":{" + key + "}"}
	}
	anywhere := func(rules string) area { return area{rules: strings.Fields(rules)} }
	look := []area{
		keys("+evalsha/+evalsha_ro +eval/+eval_ro +type +get +strlen +pttl +hlen +hget +hgetall +hscan +zcount +zscore +zrangebyscore"),
		anywhere("+time"),
		readers("+pttl"),
		{[]string{"+type", "+get"}, "~redisson_lock_token:{" + pattern + ":*", "redisson_lock_token:{" + key + "}"},
	}

	lock := []area{keys("+get +set +pttl +pexpire +unlink/+del +evalsha +eval")}
	fencing := []area{keys("+get +set +evalsha +eval"), anywhere("+time")}
	atLeast := []area{keys("+set +evalsha +eval")}
	pubsub := []area{channels("+publish +subscribe +unsubscribe")}
	if redisson {
		lock = []area{keys("+exists +hexists +hkeys +hset +del +pexpire +pttl +evalsha +eval")}
		fencing = []area{{
			[]string{"+incrby", "+persist"}, "~redisson_lock_token:{" + pattern + ":*", "redisson_lock_token:{" + key + "}",
		}}
		atLeast = []area{keys("+hset +hdel +pexpire +evalsha +eval")}
		pubsub = []area{redissons("redisson_lock__channel", "+publish +subscribe +unsubscribe")}
	}
	if slices.Contains(x.opts.Need, "readwrite") {
		pubsub = append(pubsub, redissons("redisson_rwlock", "+publish +subscribe +unsubscribe"))
	}
	queue := []area{keys(queueRules), channels("+publish +subscribe +unsubscribe"), anywhere("+time +pubsub|numsub")}
	if sharded {
		queue = []area{
			keys(queueRules), channels("+publish +subscribe +unsubscribe +spublish +ssubscribe +sunsubscribe"),
			anywhere("+time +pubsub|numsub +pubsub|shardnumsub"),
		}
	}
	return []mode{
		{name: "lock", title: "plain locks", why: "Locking fails, or holds are not renewed.", areas: lock},
		{
			name: "readwrite", title: "read-write locks", why: "Locking them fails.", areas: []area{
				keys("+exists +hget +hgetall +hexists +hkeys +hset +hmset +hdel +hlen +set +del +pexpire +pttl +evalsha +eval"),
				readers("+set +del +pexpire +pttl"),
			},
		},
		{
			name: "queue", title: "the queue of a lock", minor: true, areas: queue,
			why: "There is no queue: waiting calls are woken by chance, or poll, and are not served in order.",
		},
		{
			name: "quiet", title: "seeing that nobody polls", minor: true, areas: []area{anywhere("+script|exists")},
			why: "A lock that calls wait for is left free for 110 ms every 1.7 s, even if no Java process polls for it.",
		},
		{
			name: "tracking", title: "waking by tracking", minor: true, areas: []area{anywhere("+client|tracking")},
			why: "Waiting calls do not learn when a lock expires, or when Java releases it. Messages wake them, or they poll.",
		},
		{
			name: "pubsub", title: "waking by messages", minor: true, areas: pubsub,
			why: "Waiting calls do not receive the messages of Java's releases, and Java does not receive those of Go.",
		},
		{name: "fencing", title: "fencing tokens", why: "Locking with WithFencing fails.", areas: fencing},
		{name: "replicas", title: "waiting for replicas", why: "Locking with WithReplicas fails.", areas: []area{anywhere("+wait")}},
		{name: "atleast", title: "paths that stay taken", why: "Unlocking after AtLeast fails.", areas: atLeast},
		{
			name: "record", title: "the record of a registry", minor: true,
			why:   "lockreg does not show which host and process holds a lock or waits for it.",
			areas: []area{{[]string{"+set"}, "~" + pattern + ":*", prefix + ":{" + path + "}:registry"}},
		},
		{
			name: "list", title: "the list of records", minor: true,
			why:   "If there are many other keys, lockreg ls and serve show locks late, after a SCAN of all keys.",
			areas: []area{keys("+zadd +zrem +zrangebyscore +pexpire +evalsha +eval"), anywhere("+time")},
		},
		{
			name: "inspect", title: "looking at locks",
			why:   "Deadlocks across processes are not reported, and lockreg ls, show, deadlocks and serve fail.",
			areas: slices.Concat(look, []area{anywhere("+scan")}),
		},
		{ // which shows the holder first
			name: "release", title: "releasing by force", why: "lockreg release fails.", areas: slices.Concat(look, []area{
				keys("+type +get +pttl +hgetall +hdel +hset +pexpire +unlink/+del +evalsha +eval"), readers("+pttl +unlink/+del"),
				keys("+exists +zadd +zrem +zcard +zrange"), anywhere("+pubsub|numsub"), // of permits
			}),
		},
	}
}

// probe is a command that needs a rule, and that changes nothing: the key does not exist, nobody hears the channel, or the
// server refuses the command once it has judged the permission. The server judges the command first, then keys, then channels.
func probe(rule, name string) []string {
	with := map[string][]string{
		"+set":                {"SET", name, "v", "lockreg"},                   // a syntax error
		"+hset":               {"HSET", name, "f", "v", "f"},                   // a field without a value
		"+hmset":              {"HMSET", name, "f", "v", "f"},                  // likewise
		"+incrby":             {"INCRBY", name, "lockreg"},                     // no number
		"+zadd":               {"ZADD", name, "XX", "1", "m"},                  // changes members only that are there
		"+evalsha":            {"EVALSHA", strings.Repeat("f", 40), "1", name}, // no such script
		"+evalsha_ro":         {"EVALSHA_RO", strings.Repeat("f", 40), "1", name},
		"+eval":               {"EVAL", "return 1", "1", name},
		"+eval_ro":            {"EVAL_RO", "return 1", "1", name},
		"+hscan":              {"HSCAN", name, "0"},
		"+pexpire":            {"PEXPIRE", name, "1"},
		"+publish":            {"PUBLISH", name, "lockreg"},
		"+spublish":           {"SPUBLISH", name, "lockreg"},
		"+zrange":             {"ZRANGE", name, "0", "0"},
		"+zrevrange":          {"ZREVRANGE", name, "0", "0"},
		"+zrangebyscore":      {"ZRANGEBYSCORE", name, "0", "0"},
		"+zcount":             {"ZCOUNT", name, "0", "0"},
		"+time":               {"TIME"},
		"+wait":               {"WAIT", "0", "0"},
		"+scan":               {"SCAN", "0", "COUNT", "0"}, // a syntax error: it would send a name, of any length
		"+client|tracking":    {"CLIENT", "TRACKING", "OFF"},
		"+script|exists":      {"SCRIPT", "EXISTS", strings.Repeat("f", 40)},
		"+pubsub|numsub":      {"PUBSUB", "NUMSUB", "lockreg"},
		"+pubsub|shardnumsub": {"PUBSUB", "SHARDNUMSUB", "lockreg"},
	}
	if command, ok := with[rule]; ok {
		return command
	}
	command := []string{strings.ToUpper(rule[1:]), name}
	if slices.Contains([]string{"+zrem", "+zscore", "+zrank", "+hexists", "+hget", "+hdel"}, rule) {
		command = append(command, "m")
	}
	return command
}

// outcome is the server's reply to a probe.
type outcome int

const (
	unclear   outcome = iota // no answer
	permitted                // or refused for another reason than permissions
	noCommand                // the user may not run it
	noName                   // the user may run it, but not with this key or channel
	unknown                  // the server does not know the command
)

// try finds out whether a user may do something. On a cluster, and on a replica, the server judges permissions before it says
// that the key is elsewhere.
func (n *node) try(ctx context.Context, rule, name string) outcome {
	id := rule + " " + name
	if o, tried := n.tried[id]; tried {
		return o
	}
	ctx, cancel := context.WithTimeout(ctx, answerLimit)
	defer cancel()
	own, release := n.client.Dedicate()
	defer release()
	var command rueidis.Completed
	if strings.Contains(rule, "subscribe") || rule == "+client|tracking" {
		defer own.Close() // its state makes it useless for others
	}
	if strings.Contains(rule, "unsubscribe") {
		// Rueidis sends a PING behind it, and panics if the reply to that is unexpected. A server that cannot write to its disk
		// refuses PING.
		if err := own.Do(ctx, own.B().Ping().Build()).Error(); err != nil && judge(err) != noCommand {
			return unclear
		}
	}
	switch b := own.B(); rule {
	case "+subscribe":
		command = b.Subscribe().Channel(name).Build()
	case "+unsubscribe":
		command = b.Unsubscribe().Channel(name).Build()
	case "+ssubscribe":
		command = b.Ssubscribe().Channel(name).Build()
	case "+sunsubscribe":
		command = b.Sunsubscribe().Channel(name).Build()
	default:
		command = b.Arbitrary(probe(rule, name)...).Build()
	}
	o := judge(own.Do(ctx, command).Error())
	n.tried[id] = o
	return o
}

// tryAll makes in one round trip those attempts that need no connection of their own.
func (n *node) tryAll(ctx context.Context, modes []mode) {
	ctx, cancel := context.WithTimeout(ctx, answerLimit)
	defer cancel()
	var ids []string
	var commands rueidis.Commands
	for _, m := range modes {
		for _, a := range m.areas {
			for rule := range strings.SplitSeq(strings.Join(a.rules, "/"), "/") {
				id := rule + " " + a.name
				if strings.Contains(rule, "subscribe") || rule == "+client|tracking" || slices.Contains(ids, id) {
					continue
				}
				ids, commands = append(ids, id), append(commands, n.client.B().Arbitrary(probe(rule, a.name)...).Build())
			}
		}
	}
	for i, result := range n.client.DoMulti(ctx, commands...) {
		if o := judge(result.Error()); o != unclear {
			n.tried[ids[i]] = o
		}
	}
}

func judge(err error) outcome {
	if err == nil || rueidis.IsRedisNil(err) {
		return permitted
	}
	reply, ok := rueidis.IsRedisErr(err)
	if !ok {
		return unclear
	}
	text := strings.ToLower(reply.Error())
	switch {
	case strings.Contains(text, "unknown command"), strings.Contains(text, "unknown subcommand"):
		return unknown
	case !strings.HasPrefix(text, "noperm"):
		return permitted
	// Redis 6: "this user has no permissions to run the 'get' command or its subcommand", "... to access one of the keys used as
	// arguments". From 7.0 on: "User app has no permissions to run the 'get' command", "No permissions to access a key".
	case strings.Contains(text, "to run the"):
		return noCommand
	default:
		return noName
	}
}

// lack has the permissions that a user lacks for a mode.
type lack struct {
	rules    []string
	patterns []string
	unproven []string // patterns that could not be tried, since no command with them is permitted
	unknown  []string // commands that the server does not know
}

func (n *node) lacks(ctx context.Context, areas []area) (l lack) {
	add := func(to *[]string, what string) {
		if what != "" && !slices.Contains(*to, what) {
			*to = append(*to, what)
		}
	}
	for _, a := range areas {
		proven := false
		for _, rule := range a.rules {
			first, second, either := strings.Cut(rule, "/")
			o := n.try(ctx, first, a.name)
			if o != permitted && either {
				if other := n.try(ctx, second, a.name); other == permitted || o == noCommand && other == noName {
					o = other
				}
			}
			switch o {
			case permitted:
				proven = proven || !strings.Contains(rule, "unsubscribe") // unsubscribing needs no channel
			case noCommand:
				add(&l.rules, first)
			case noName:
				add(&l.patterns, a.pattern)
				proven = true
			case unknown:
				add(&l.unknown, strings.ToUpper(strings.ReplaceAll(first[1:], "|", " ")))
			case unclear:
			}
		}
		if !proven && a.pattern != "" {
			switch n.reaches(ctx, a) {
			case permitted:
			case noName:
				add(&l.patterns, a.pattern)
			default:
				add(&l.unproven, a.pattern)
			}
		}
	}
	l.unproven = slices.DeleteFunc(l.unproven, func(p string) bool { return slices.Contains(l.patterns, p) })
	return l
}

// reaches reports whether a user has a pattern, by trying commands outside of the area.
func (n *node) reaches(ctx context.Context, a area) outcome {
	rules := []string{"+exists", "+get", "+type", "+pttl", "+del", "+unlink", "+eval"}
	if a.pattern[0] == '&' {
		rules = []string{"+publish", "+subscribe"}
	}
	for _, rule := range rules {
		if o := n.try(ctx, rule, a.name); o == permitted || o == noName {
			return o
		}
	}
	return unclear
}

func (x *examination) permissions(ctx context.Context) {
	modes := x.modes()
	for _, n := range x.nodes {
		n.tryAll(ctx, modes)
	}
	for _, m := range modes {
		id, needed := "permission-"+m.name, slices.Contains(x.opts.Need, m.name)
		severity := Info
		switch {
		case needed && m.minor:
			severity = Warning
		case needed:
			severity = Error
		}
		x.found(Finding{ID: id, Severity: OK, Seen: fmt.Sprintf("user %s has all permissions for %s", x.user, m.title)})
		for _, n := range x.nodes {
			l := n.lacks(ctx, m.areas)
			if len(l.unknown) > 0 {
				x.found(Finding{
					ID: id, Severity: severity, Nodes: []string{n.address},
					Seen: "the server does not know " + strings.Join(l.unknown, ", "),
					Why:  m.why,
					Do:   "Use a newer server. If rename-command in its redis.conf or the provider has disabled the command, enable it again.",
				})
			}
			if len(l.rules)+len(l.patterns) == 0 {
				continue
			}
			grant := slices.Concat([]string{"SETUSER", x.user}, l.rules, l.patterns)
			commands := []string{line("ACL", grant...)}
			do := "Permit it. To make that permanent, use ACL SAVE if the server has an ACL file, else CONFIG REWRITE."
			for _, pattern := range l.unproven { // a line each: the server refuses a whole line with a redundant rule
				commands = append(commands, line("ACL", "SETUSER", x.user, pattern))
			}
			if len(l.unproven) > 0 {
				do += " The server refuses a pattern if the user may already use all keys or channels. Then the pattern is not needed."
			}
			x.found(Finding{
				ID: id, Severity: severity, Nodes: []string{n.address},
				Seen: fmt.Sprintf("user %s lacks permissions for %s: %s",
					x.user, m.title, strings.Join(slices.Concat(l.rules, l.patterns), " ")),
				Why: m.why, Do: do, Commands: commands,
			})
		}
	}
}
