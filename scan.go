package lockregistry

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/redis/rueidis"

	"github.com/lockregistry/lockregistry/internal/clock"
	"github.com/lockregistry/lockregistry/internal/fault"
	"github.com/lockregistry/lockregistry/internal/protocol"
	"github.com/lockregistry/lockregistry/internal/topology"
)

// Locks goes through the paths under the registry's prefix that somebody holds or waits for, in no order, each once, with what
// [Registry.Inspect] tells of it. It finds them by SCAN, on each master of a cluster: one that is locked all the time is among
// them, one that is locked or released meanwhile may be. A key that has no lock's content is left out, and so is a plain lock
// whose holder is named neither as this package, nor as Spring, nor as Redisson name theirs.
//
// SCAN goes through all keys of the database, 500 in a call. The first 250 calls follow one another, enough for 100 000 keys
// in a fraction of a second. In a database with more, the further calls are spread so that they take 5 % of the server's time
// at most: docs/operations.md has figures. Locks are told as they are found. The caller should wait between passes, too. SCAN
// shows a user the names of all keys, whatever the key patterns of the user's access list.
//
// An error is the last thing that it gives, within a [*LockError]: that of ctx, [ErrUnavailable], [ErrClosed], or another one
// of Redis. To stop sooner, break out of the loop.
func (r *Registry) Locks(ctx context.Context) iter.Seq2[LockInfo, error] {
	return func(yield func(LockInfo, error) bool) {
		p := pass{reg: r, ctx: ctx, pattern: everyLock, yield: yield, yielded: map[string]bool{}, labels: map[string]Label{}}
		p.pick = func(key string) {
			if lock, ok := r.lockOf(key); ok {
				p.keys = append(p.keys, lock)
			}
		}
		if err := p.run(); err != nil && !errors.Is(err, errEnough) {
			yield(LockInfo{}, &LockError{Op: "locks", Key: r.prefix + ":*", Err: r.transport.farthest().unsupported(err)})
		}
	}
}

// pass is one time through the keys of the database.
type pass struct {
	reg     *Registry
	ctx     context.Context
	pattern string           // of the keys, after the prefix
	pick    func(key string) // takes a key
	yield   func(LockInfo, error) bool
	yielded map[string]bool  // keys
	labels  map[string]Label // by registry
	keys    []string         // yet to be inspected

	calls int           // of SCAN
	due   clock.Instant // when the next call may be sent, once the pass is a long one
	told  clock.Instant // when keys were inspected last
}

const (
	scanCount  = "500"
	unpaced    = 250                  // so many calls of SCAN follow one another
	shareOf    = 20                   // then the pass may take this part of the server's time
	mostBusy   = 5 * time.Millisecond // that a command can have taken; when it took longer, the network or this process did
	tellEach   = 500 * time.Millisecond
	everyLock  = ":*"
	waitersEnd = ":waiters"
)

var keysOf = protocol.Load("keys")

// errEnough: the caller wants no more.
var errEnough = errors.New("the loop was left")

func (p *pass) run() error {
	if p.ctx == nil {
		return errNilContext
	}
	p.told = p.reg.clock.Now()
	nodes, err := p.nodes()
	if err != nil {
		return err
	}
	for _, n := range nodes {
		if err := p.scan(n); err != nil {
			return err
		}
	}
	if len(p.keys) == 0 {
		return nil
	}
	return p.inspect()
}

// node is a server whose keys are to be gone through.
type node struct {
	lane   *lane
	client rueidis.CoreClient // nil: whichever the lane leads to
}

// nodes are the masters.
func (p *pass) nodes() (nodes []node, err error) {
	r := p.reg
	t := r.transport
	if err := (&Lock{reg: r}).stopped(p.ctx); err != nil {
		return nil, err
	}
	if !r.cluster {
		return []node{{lane: t.first}}, nil
	}
	reply, err := t.ask(func(ctx context.Context, way rueidis.CoreClient) rueidis.RedisResult {
		return way.Do(ctx, way.B().ClusterSlots().Build())
	}).ToArray()
	if err != nil {
		return nil, fault.Classify(err)
	}
	known, seen := r.client.Nodes(), map[string]bool{}
	for _, part := range topology.Parse(reply, "") {
		if seen[part.Address] {
			continue
		}
		seen[part.Address] = true
		client := known[part.Address]
		if client == nil {
			return nil, fault.AsUnavailable(fmt.Errorf("the client does not know the master %s yet", part.Address))
		}
		nodes = append(nodes, node{t.laneAt(part.Address), client})
	}
	return nodes, nil
}

// scan goes through the keys of one server.
func (p *pass) scan(n node) error {
	for cursor := "0"; ; {
		if err := p.pace(); err != nil {
			return err
		}
		var next keysStep
		err := p.timed(func() (err error) {
			next, err = p.step(n, cursor)
			return err
		})
		p.calls++
		if err != nil {
			return err
		}
		for _, key := range next.keys {
			p.pick(key)
		}
		if err := p.tellLong(next.long); err != nil {
			return err
		}
		// What was found is told soon, also when little is.
		for len(p.keys) >= inspectedAt || len(p.keys) > 0 && p.told.Until(p.reg.clock.Now()) >= tellEach {
			if err := p.inspect(); err != nil {
				return err
			}
		}
		if cursor = next.cursor; cursor == "0" {
			return nil
		}
	}
}

// keysStep is what one call of SCAN replies.
type keysStep struct {
	cursor string
	keys   []string
	long   []string // the beginnings of names that are too long
}

// step calls SCAN once, in a script, since SCAN itself would send names of any length.
func (p *pass) step(n node, cursor string) (next keysStep, err error) {
	patience := p.reg.asks(p.ctx)
	build := func(b rueidis.Builder, _ int, verb, script string) rueidis.Completed {
		return b.Arbitrary(verb, script, "0", cursor, glob(p.reg.prefix)+p.pattern, scanCount).Build()
	}
	send := func(ctx context.Context, way rueidis.CoreClient) []rueidis.RedisResult {
		if n.client != nil {
			way = n.client
		}
		return p.reg.inspection.run(ctx, way, keysOf, []int{0}, build)
	}
	rows, err := n.lane.apart(patience, n.lane.places, &sending{send: send}).result(0).ToArray()
	switch {
	case patience.cut(err):
		return next, explain(fault.Ended(p.ctx), fault.AsUnavailable(fault.NoAnswer))
	case err != nil:
		return next, fault.Classify(err)
	case len(rows) != 3:
		return next, errStrange
	}
	var err1, err2, err3 error
	next.cursor, err1 = rows[0].ToString()
	next.keys, err2 = rows[1].AsStrSlice()
	next.long, err3 = rows[2].AsStrSlice()
	if err := fault.Join(err1, err2, err3); err != nil {
		return next, fault.Join(errStrange, err)
	}
	return next, nil
}

// tellLong tells the caller of keys with names that are too long. Nothing more is known of them.
func (p *pass) tellLong(names []string) error {
	for _, key := range names {
		if p.yielded == nil || p.yielded[key] { // nobody asks for locks, or it is known
			continue
		}
		p.yielded[key] = true
		info := LockInfo{Path: strings.TrimPrefix(key, p.reg.prefix+":"), Key: key, Kind: tooLong, TooLong: []string{"key"}}
		if !p.yield(info, nil) {
			return errEnough
		}
	}
	return nil
}

// inspect tells the caller of the first keys that were found.
func (p *pass) inspect() error {
	if err := p.pace(); err != nil {
		return err
	}
	p.told = p.reg.clock.Now()
	keys := p.keys[:min(len(p.keys), inspectedAt)]
	p.keys = p.keys[len(keys):]
	var infos []LockInfo
	err := p.timed(func() error {
		found, errs := p.reg.inspectKeys(p.ctx, keys)
		for i, info := range found {
			if errs[i] != nil && !errors.Is(errs[i], ErrWrongType) {
				return errs[i]
			}
			if errs[i] == nil && info.isLock() && !p.yielded[info.Key] {
				p.yielded[info.Key] = true
				infos = append(infos, info)
			}
		}
		return p.reg.addLabels(p.ctx, infos, p.labels)
	})
	if err != nil {
		return err
	}
	for _, info := range infos {
		if !p.yield(info, nil) {
			return errEnough
		}
	}
	return nil
}

// timed notes how long the server may have worked, and when it may be asked again for that: a while later, once the pass is a
// long one. What came before that is not made up for. It would be due at once, a minute of it when many locks were found.
func (p *pass) timed(do func() error) error {
	began := p.reg.clock.Now()
	err := do()
	now := p.reg.clock.Now()
	p.due = now
	if p.calls >= unpaced {
		p.due = now.Add((shareOf - 1) * min(mostBusy, began.Until(now)))
	}
	return err
}

// pace waits until the pass has left the server alone for long enough.
func (p *pass) pace() error {
	if rest := p.reg.clock.Now().Until(p.due); rest > 0 {
		timer := time.NewTimer(rest)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-p.ctx.Done():
		case <-p.reg.closed:
		}
	}
	return (&Lock{reg: p.reg}).stopped(p.ctx)
}

// isLock tells whether somebody holds the lock or waits for it, and that it is one for certain: other strings and hashes may
// have the prefix, too.
func (i *LockInfo) isLock() bool {
	if i.WaiterCount > 0 {
		return true
	}
	certain := false
	for _, h := range i.Holders {
		if isCut(h.Holder) {
			continue
		}
		certain = true
		registry := parseName(h.Holder).registry
		if n := len(registry) - uuidLength; n < 0 || n > 0 && registry[n-1] != ':' || uuid.Validate(registry[n:]) != nil {
			return false
		}
	}
	return certain || len(i.Holders) == 0 && i.HolderCount > 0
}

const uuidLength = 36

// lockOf tells to which lock a key of the database belongs: it is the lock's, or its queue's.
func (r *Registry) lockOf(key string) (lock string, ok bool) {
	path, ok := strings.CutPrefix(key, r.prefix+":")
	switch {
	case !ok || path == "":
		return "", false
	case strings.Contains(key, ":rwlock_timeout:") && strings.Contains(key, "{"): // a reader's
		return "", false
	case !reserved(key):
		return key, true
	}
	lock, ok = strings.CutSuffix(key, waitersEnd)
	if !ok {
		return "", false
	}
	// Of a key without a hash tag, "<prefix>:{<key>}:waiters". The prefix may be that of another registry, which begins with this
	// one.
	if prefix, inner, braces := strings.Cut(strings.TrimSuffix(lock, "}"), ":{"); braces && strings.HasPrefix(inner, prefix+":") {
		lock = inner
	}
	return lock, protocol.QueueKey(r.prefix, lock) == key
}

// glob is a text as it stands in a pattern of Redis.
func glob(text string) string {
	return strings.NewReplacer(`\`, `\\`, `*`, `\*`, `?`, `\?`, `[`, `\[`, `]`, `\]`, `^`, `\^`).Replace(text)
}
