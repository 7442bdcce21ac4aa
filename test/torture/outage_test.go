package torture

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry"
	"github.com/lockregistry/lockregistry/internal/fault"
	"github.com/lockregistry/lockregistry/internal/netfault"
	"github.com/lockregistry/lockregistry/internal/redistest"
)

// A failover as Sentinel makes it: the master freezes, a replica becomes the master, and the old master comes back before
// anybody has told it. For some seconds it executes and answers everything on the connections that it has: first what was
// queued for it, then what arrives.
//
//	        calm        frozen                    deposed                 dead
//	old  ───────────┤ silent      ├────────────────────────────────────┤ (its connections break)
//	new  (replica)    ├─ promoted: new connections lead here ───────────────────────────────────▶
//
// Asynchronous replication may lose the last writes that the old master acknowledged: then the new one grants a lock that has
// an owner. No client can help that, so the test rules it out: the old master stops taking writes a moment before it freezes,
// until the replica has all of them. So no pair of owners is excused.
//
// A process is helpless, too, if it sends nothing from the freeze to the return of the old master, over connections that it
// keeps: nothing tells it that there was a failover. The processes here are never idle for so long.
type outage struct {
	system   system
	seed     uint64
	promoted time.Duration // when the replica becomes the master, counted from the freeze, as are the next two
	thawed   time.Duration // when the old master resumes
	dead     time.Duration // when it is stopped
	lasts    time.Duration // how long the processes continue after that
}

const (
	outageLease      = time.Minute
	outageGoroutines = 4
	outagePaths      = 4
	outageCalm       = 600 * time.Millisecond // before the freeze
	outageFree       = 5 * time.Second        // this long after the last unlock no path is blocked, and somebody has got each one
	outagePile       = 100 * time.Millisecond // nothing gets through for this long before the freeze
	writesPaused     = time.Second            // longer than the replica needs, shorter than any freeze here
)

// usual is the failover of an ordinary run.
func usual(s system, seed uint64) outage {
	return outage{
		system: s, seed: seed,
		promoted: 1500 * time.Millisecond, thawed: 4 * time.Second, dead: 14 * time.Second, lasts: 2 * time.Second,
	}
}

// another is a failover at a different pace, which shows what the usual one does not.
func another(s system, seed uint64) outage {
	random := rand.New(rand.NewPCG(seed, 2))
	some := func(least, most time.Duration) time.Duration {
		return least + time.Duration(random.Int64N(int64(most-least)))
	}
	o := outage{system: s, seed: seed, lasts: 2 * time.Second}
	o.promoted = some(200*time.Millisecond, 6*time.Second)
	o.thawed = o.promoted + some(2500*time.Millisecond, 4*time.Second)
	o.dead = o.thawed + 10*time.Second
	return o
}

// visitor is one goroutine that locks.
type visitor struct {
	number   int // of its process
	process  process
	random   *rand.Rand
	seen     []section
	granted  []atomic.Int64 // by path: when somebody last got it
	failures int
	wrong    []string
}

// play runs the failover under some processes, and returns what was wrong with it.
func (o outage) play(t *testing.T) (wrong []string) {
	t.Helper()
	random := rand.New(rand.NewPCG(o.seed, 1))
	older, newer := replicated(t)
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var proxies []*netfault.Proxy
	var visitors []*visitor
	granted := make([]atomic.Int64, outagePaths)
	var processes []process
	var running sync.WaitGroup
	for i, of := range o.processes() {
		proxy := listen(t, older.Addr())
		proxies = append(proxies, proxy)
		p := start(t, o.system, calm, proxy.Addr(), of)
		processes = append(processes, p)
		for range outageGoroutines {
			v := &visitor{number: i, process: p, granted: granted, random: rand.New(rand.NewPCG(random.Uint64(), 0))}
			visitors = append(visitors, v)
			running.Go(func() { v.run(ctx) })
		}
	}

	wait(outageCalm)
	piled := time.Now()
	for _, p := range proxies { // so that many commands are in flight
		p.Freeze()
	}
	wait(outagePile)
	o.freeze(t, older, newer)
	for _, p := range proxies {
		p.Thaw()
	}
	began := time.Now()
	at := func(since time.Duration) { wait(time.Until(began.Add(since))) }
	frozen := now()
	at(o.promoted)
	promote(t, newer, proxies...)
	proxies[0].CutAll() // at least one process is connected to the new master from the start
	at(o.thawed)
	thawed := now()
	older.Thaw()
	at(o.dead)
	dead := now()
	served := told(t, older, "total_commands_processed")
	older.Stop()
	at(o.dead + o.lasts)
	// An owner may stay that long, and a busy machine needs longer for the next one.
	for began := time.Now(); missed(granted, dead) && time.Since(began) < outageFree; {
		wait(20 * time.Millisecond)
	}
	stop()
	stopped := now()
	running.Wait()

	var all []section
	failures := 0
	for _, v := range visitors {
		all, wrong, failures = append(all, v.seen...), append(wrong, v.wrong...), failures+v.failures
	}
	wrong = append(wrong, doubles(all, frozen)...)
	wrong = append(wrong, o.blocked(newer, all, dead, stopped)...)
	phases := make([]int, 4)
	for _, x := range all {
		n, _ := slices.BinarySearch([]int64{frozen, thawed, dead}, x.Granted)
		phases[n]++
	}
	t.Logf("seed %d, the replica promoted after %v, the old master back after %v, gone after %v: "+
		"holds before, while it was frozen, while it answered, and later: %v; %d calls failed; it executed %s commands",
		o.seed, o.promoted, o.thawed, o.dead, phases, failures, served)
	if o.system.ours {
		for i, n := range phases {
			if n == 0 {
				wrong = append(wrong, fmt.Sprintf("nobody got a lock in phase %d", i))
			}
		}
	}
	for i, p := range proxies[1:] { // otherwise the process cannot know
		vain := func(c netfault.Command) bool {
			asks := c.Key != "" || strings.HasPrefix(c.Name, "EVAL") // as a process that only waits does, with a script of another name
			return asks && !c.Pushed && c.Sent.After(piled) && c.Sent.Before(began.Add(o.thawed))
		}
		assert.True(t, slices.ContainsFunc(p.Seen(netfault.Match{}), vain), "process %d was idle while the old master was frozen", i+1)
	}
	for _, p := range processes {
		p.close()
	}
	return wrong
}

// missed reports whether there is a path that nobody has got since some time.
func missed(granted []atomic.Int64, since int64) bool {
	for i := range granted {
		if granted[i].Load() <= since {
			return true
		}
	}
	return false
}

func (o outage) check(t *testing.T) {
	t.Helper()
	for _, x := range o.play(t) {
		t.Error(x)
	}
}

// processes returns settings that differ in how a process learns that a lock is free, and that a hold goes on.
func (o outage) processes() []settings {
	all := []settings{
		{Wakeup: "auto", Handoff: -1},
		{Wakeup: "poll", Handoff: 0},
		{Wakeup: "pubsub", Handoff: 0, Renewal: true},
		{Wakeup: "tracking", Handoff: 20 * time.Millisecond, Renewal: true},
	}
	for i := range all {
		all[i].Lease, all[i].Poll = outageLease, 50*time.Millisecond
	}
	return all
}

// freeze stops the old master once the new one has everything that the old one has acknowledged.
func (o outage) freeze(t *testing.T, older, newer *redistest.Server) {
	t.Helper()
	offset := func(s *redistest.Server, name string) int {
		n, err := strconv.Atoi(told(t, s, name))
		require.NoError(t, err)
		return n
	}
	for {
		until := time.Now().Add(writesPaused)
		older.Command(t, "CLIENT", "PAUSE", strconv.Itoa(int(writesPaused.Milliseconds())), "WRITE")
		all := offset(older, "master_repl_offset")
		require.Eventually(t, func() bool { return offset(newer, "slave_repl_offset") >= all }, 20*time.Second, time.Millisecond)
		older.Freeze()
		if time.Now().Before(until) {
			return
		}
		older.Thaw() // the machine is so busy that the pause had ended before the freeze
	}
}

// replicated starts a master and its replica.
func replicated(t *testing.T) (older, newer *redistest.Server) {
	t.Helper()
	older = redistest.Start(t, "--repl-diskless-sync", "yes", "--repl-diskless-sync-delay", "0")
	host, port, err := net.SplitHostPort(older.Addr())
	require.NoError(t, err)
	newer = redistest.Start(t, "--replicaof", host+" "+port)
	require.Eventually(t, func() bool { return told(t, newer, "master_link_status") == "up" }, 20*time.Second, 10*time.Millisecond)
	return older, newer
}

// promote makes the replica the master to which new connections lead.
func promote(t *testing.T, newer *redistest.Server, proxies ...*netfault.Proxy) {
	t.Helper()
	if told(t, newer, "role") == "slave" {
		newer.Command(t, "REPLICAOF", "NO", "ONE")
	}
	for _, p := range proxies {
		p.Lead(newer.Addr())
	}
}

// told returns what a server says about itself in a field of INFO.
func told(t *testing.T, s *redistest.Server, field string) string {
	t.Helper()
	for line := range strings.Lines(s.Command(t, "INFO")) {
		if name, value, _ := strings.Cut(strings.TrimSpace(line), ":"); name == field {
			return value
		}
	}
	t.Fatalf("%s does not tell %s", s.Addr(), field)
	return ""
}

func wait(d time.Duration) { <-time.After(d) }

// run locks and unlocks until ctx ends.
func (v *visitor) run(ctx context.Context) {
	for ctx.Err() == nil {
		v.once(ctx)
		wait(time.Duration(v.random.Int64N(int64(10 * time.Millisecond))))
	}
}

func (v *visitor) once(ctx context.Context) {
	at := v.random.IntN(outagePaths)
	path, owner := strconv.Itoa(at), lockregistry.ContextWithOwner(context.Background())
	waits, limit := time.Duration(-1), ctx
	switch n := v.random.IntN(10); {
	case n < 2:
		waits = 0
	case n < 5:
		waits = time.Duration(v.random.Int64N(int64(3 * time.Second)))
	}
	asked, cancel := context.WithCancel(owner)
	defer cancel()
	defer context.AfterFunc(limit, cancel)()
	x := section{Process: v.number, Path: at, Called: now()}
	ok, err := v.process.lock(asked, path, waits, 0)
	x.Granted = now()
	if !ok {
		if err != nil {
			v.failures++
			wait(20 * time.Millisecond)
		}
		return
	}
	v.granted[at].Store(x.Granted)
	alive := v.process.context(owner, path)
	stay := time.Duration(v.random.Int64N(int64(5 * time.Millisecond)))
	if v.random.IntN(20) == 0 { // perhaps across a failover
		stay = time.Duration(v.random.Int64N(int64(2 * time.Second)))
	}
	x.Until = x.Granted - 1
	for end := time.Now().Add(stay); ; wait(min(2*time.Millisecond, time.Until(end))) {
		at := now() // before the look: what is believed after this moment was believed at it, too
		if alive.Err() != nil || !v.process.held(path) {
			x.Lost = true
			break
		}
		x.Until = at
		if !time.Now().Before(end) {
			break
		}
	}
	err = v.process.unlock(owner, path)
	x.Ended = now()
	switch {
	case err == nil:
	case errors.Is(err, lockregistry.ErrNotOwner):
		v.wrong = append(v.wrong, fmt.Sprintf("path %d: unlocking a lock that was held: %v", at, err))
	default:
		v.failures++
	}
	v.seen = append(v.seen, x)
}

// doubles finds pairs of owners that were inside at once.
func doubles(all []section, frozen int64) (found []string) {
	all = slices.DeleteFunc(slices.Clone(all), func(x section) bool { return x.Until < x.Granted })
	slices.SortFunc(all, func(x, y section) int { return cmp.Or(cmp.Compare(x.Path, y.Path), cmp.Compare(x.Granted, y.Granted)) })
	since := func(at int64) time.Duration { return time.Duration(at - frozen).Round(time.Millisecond) }
	var last section // the one of this path that ended last
	for i, x := range all {
		if i > 0 && x.Path == last.Path && x.Granted < last.Until {
			found = append(found, fmt.Sprintf(
				"path %d: process %d locked from %v to %v (called at %v), process %d from %v to %v (called at %v), counted from the freeze",
				x.Path, last.Process, since(last.Granted), since(last.Until), since(last.Called),
				x.Process, since(x.Granted), since(x.Until), since(x.Called)))
		}
		if i == 0 || x.Path != last.Path || x.Until > last.Until {
			last = x
		}
	}
	return found
}

// blocked finds the paths that are not free although nobody holds them: an unlock, or a call that gave up, has left a key
// with the new master.
func (o outage) blocked(newer *redistest.Server, all []section, dead, stopped int64) (found []string) {
	for path := range outagePaths {
		if !slices.ContainsFunc(all, func(x section) bool { return x.Path == path && x.Granted > dead && x.Granted < stopped }) {
			found = append(found, fmt.Sprintf("path %d: nobody got it once the old master was gone", path))
		}
		left := "?"
		for began := time.Now(); left != "0" && time.Since(began) < outageFree; wait(20 * time.Millisecond) {
			left, _ = newer.Do("EXISTS", keyOf(strconv.Itoa(path)))
		}
		if left != "0" {
			ms, _ := newer.Do("PTTL", keyOf(strconv.Itoa(path)))
			key, _ := newer.Do("DUMP", keyOf(strconv.Itoa(path)))
			found = append(found, fmt.Sprintf("path %d: blocked for another %s ms, and nobody holds it: %q", path, ms, key))
		}
	}
	return found
}

func TestOutage(t *testing.T) {
	t.Parallel()
	first := firstSeed()
	for _, s := range []system{library, redisson} {
		t.Run(s.name, func(t *testing.T) {
			t.Parallel()
			usual(s, first).check(t)
		})
	}
}

// tardy is longer than a reply that is believed may take (half a second and two round trips, which a busy machine makes long),
// and shorter than Unlock waits for a reply.
const tardy = 900 * time.Millisecond

// late makes a call whose command the old master executes only after the new one has taken over. The old one answers nothing
// meanwhile. So elsewhere, if not nil, by which the same process locks another path, succeeds once the process doubts the old
// master: on a busy machine it may find out late.
func late(
	t *testing.T, p *netfault.Proxy, newer *redistest.Server, command string, call func() error, meanwhile func(),
	elsewhere func(ctx context.Context) error,
) error {
	t.Helper()
	h := netfault.Hold(false)
	p.Next(netfault.Match{Name: command}, netfault.Fate{Held: h})
	result := make(chan error, 1)
	go func() { result <- call() }()
	select {
	case <-h.Arrived():
	case err := <-result:
		t.Fatal("it was not sent: ", err)
	}
	promote(t, newer, p)
	old := p.Links()
	p.Decide(func(c netfault.Command) netfault.Fate {
		if c.Pushed || !slices.Contains(old, c.Over) {
			return netfault.Fate{}
		}
		return netfault.Fate{Held: h}
	})
	meanwhile()
	began := time.Now()
	for limit := 100 * time.Millisecond; elsewhere != nil; limit += 20 * time.Millisecond {
		ctx, cancel := context.WithTimeout(lockregistry.ContextWithOwner(t.Context()), limit)
		err := elsewhere(ctx)
		cancel()
		if err == nil {
			break
		}
		require.ErrorIs(t, err, lockregistry.ErrUnavailable)
		require.Less(t, time.Since(began), 4*time.Second) // a call is given up after 5 s
	}
	wait(tardy - time.Since(began))
	h.Release()
	return <-result
}

// unlessLate returns the error of a call that unlocks, or nil if it says only that the reply was late, as on a busy machine: the
// key is removed all the same.
func unlessLate(err error) error {
	if errors.Is(err, fault.NoAnswer) || errors.Is(err, fault.NotSent) || errors.Is(err, fault.Late) {
		return nil
	}
	return err
}

// TestDeposed expects that the late replies of a deposed master are not believed, one command at a time.
func TestDeposed(t *testing.T) {
	t.Parallel()
	const path = "one"
	of := settings{Lease: outageLease, Poll: poll, Handoff: -1}
	open := func(t *testing.T, s system) (p process, proxy *netfault.Proxy, newer *redistest.Server) {
		t.Helper()
		older, newer := replicated(t)
		for body := range scripts() {
			older.Command(t, "SCRIPT", "LOAD", body)
		}
		proxy = listen(t, older.Addr())
		p = start(t, s, calm, proxy.Addr(), of)
		// Which reply is late depends on the round trip, which is measured, and on whether all connections have been made, which 32
		// replies show.
		for i := 0; i < 20 && s.ours; i++ {
			owner := lockregistry.ContextWithOwner(t.Context())
			ok, err := p.lock(owner, "measured", time.Minute, 0)
			require.NoError(t, err)
			require.True(t, ok)
			require.NoError(t, unlessLate(p.unlock(owner, "measured")))
		}
		return p, proxy, newer
	}
	free := func(t *testing.T, newer *redistest.Server, within time.Duration) {
		t.Helper()
		require.Eventually(t, func() bool { return newer.Command(t, "EXISTS", keyOf(path)) == "0" }, within, time.Millisecond)
	}
	elsewhere := func(p process) func(context.Context) error {
		return func(ctx context.Context) error {
			_, err := p.lock(ctx, "elsewhere", -1, 0)
			return err
		}
	}
	t.Run("grant", func(t *testing.T) {
		t.Parallel()
		p, proxy, newer := open(t, library)
		other := start(t, library, calm, newer.Addr(), of)
		owner, another := lockregistry.ContextWithOwner(t.Context()), lockregistry.ContextWithOwner(t.Context())
		err := late(t, proxy, newer, "obtain", func() error {
			_, err := p.lock(owner, path, 0, 0)
			return err
		}, func() {
			ok, err := other.lock(another, path, time.Minute, 0)
			require.NoError(t, err)
			require.True(t, ok)
		}, elsewhere(p))
		require.ErrorIs(t, err, lockregistry.ErrUnavailable)
		require.NoError(t, unlessLate(other.unlock(another, path)))
		free(t, newer, outageFree)
	})
	t.Run("grant, believed", func(t *testing.T) { // by a lock that believes every reply
		t.Parallel()
		p, proxy, newer := open(t, naive)
		require.NoError(t, late(t, proxy, newer, "obtain", func() error {
			_, err := p.lock(t.Context(), path, outageFree, 0)
			return err
		}, func() {}, nil))
		require.True(t, p.held(path))
		free(t, newer, outageFree) // another owner would get it, and be inside at once
	})
	t.Run("unlock", func(t *testing.T) {
		t.Parallel()
		p, proxy, newer := open(t, library)
		owner := lockregistry.ContextWithOwner(t.Context())
		ok, err := p.lock(owner, path, time.Minute, 0)
		require.NoError(t, err)
		require.True(t, ok)
		require.Eventually(t, func() bool { return newer.Command(t, "EXISTS", keyOf(path)) == "1" }, outageFree, time.Millisecond)
		err = late(t, proxy, newer, "release", func() error { return p.unlock(owner, path) }, func() {}, elsewhere(p))
		if err == nil { // the registry has made sure
			assert.Equal(t, "0", newer.Command(t, "EXISTS", keyOf(path)))
		} else {
			require.ErrorIs(t, err, lockregistry.ErrUnavailable)
		}
		free(t, newer, outageFree)
	})
}

// TestDoubles tests the referee itself.
func TestDoubles(t *testing.T) {
	inside := func(path int, granted, until int64) section {
		return section{Path: path, Granted: granted, Until: until}
	}
	require.Empty(t, doubles([]section{inside(0, 1, 3), inside(0, 4, 6), inside(1, 2, 5)}, 0))
	require.Empty(t, doubles([]section{inside(0, 1, 9), inside(0, 5, 4)}, 0), "who never believed in a hold was not inside")
	require.Len(t, doubles([]section{inside(0, 4, 6), inside(0, 1, 5)}, 0), 1)
	require.Len(t, doubles([]section{inside(0, 1, 9), inside(0, 2, 3), inside(0, 7, 8)}, 0), 2)
}
