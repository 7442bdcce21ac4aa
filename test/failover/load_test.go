package failover

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry"
	"github.com/lockregistry/lockregistry/internal/fault"
	"github.com/lockregistry/lockregistry/internal/redistest"
)

const (
	prefix       = "failover"
	processes    = 4
	lease        = time.Minute
	commandLimit = time.Second
	patience     = 2 * time.Minute // longer than any outage here
	calmBefore   = 700 * time.Millisecond
	calmAfter    = 1500 * time.Millisecond
)

// variant is a way to use the library that has a row of its own in the table.
type variant struct {
	name    string
	options []lockregistry.Option
}

var variants = []variant{{}}

// client makes a client as docs/operations.md advises for a deployment whose nodes count as down after redistest.NodeTimeout.
func client(d *redistest.Deployment) (rueidis.Client, error) { return rueidis.NewClient(advised(d)) }

func advised(d *redistest.Deployment) rueidis.ClientOption {
	o := rueidis.ClientOption{
		InitAddress:      d.Addresses(),
		DisableCache:     true,
		Dialer:           net.Dialer{Timeout: time.Second, KeepAlive: time.Second},
		ConnWriteTimeout: time.Second,
	}
	if len(d.Sentinels) > 0 {
		o.Sentinel = rueidis.SentinelOption{
			MasterSet: redistest.MasterSet, Dialer: o.Dialer, TopologyRefreshInterval: 5 * time.Second,
		}
	} else {
		o.ClusterOption = rueidis.ClusterOption{ShardsRefreshInterval: time.Second}
	}
	return o
}

// fleet is some processes that lock while something happens to their servers.
//
// On each busy path every process has patient callers, which lock with Wait, and work for a few milliseconds. A hasty caller
// locks a path of its own without Wait, and so notices the first failure. On the stayed paths sections last up to two seconds.
// One process holds a kept path from before the event until after it, while another one waits; two of the processes do nothing
// else.
type fleet struct {
	*testing.T
	*referee
	deployment *redistest.Deployment
	clients    []rueidis.Client // nil: the registry has its own
	registries []*lockregistry.Registry

	busy, stayed, kept, alone []string

	ctx     context.Context
	stop    context.CancelFunc
	release chan struct{} // closed when the keepers are to unlock
	awake   chan struct{} // closed when the idle processes are to begin
	running sync.WaitGroup

	mu       sync.Mutex
	failures map[string]map[string]int // by operation and cause
	switched []time.Time               // when each client has changed to another master
	late     time.Duration             // by how much a goroutine of this process ran late, at most
}

const (
	patientLock = "Lock with Wait"
	firstTry    = "first try"
	unlocking   = "Unlock"
)

type plan struct {
	busy, stayed, kept int
	crowd              int // how many patient callers each process has on a busy path
	idle               int // how many processes lock once, and then do nothing until they are woken
	made               func(i int, options []lockregistry.Option) (*lockregistry.Registry, rueidis.Client, error)
	options            []lockregistry.Option
}

var usual = plan{busy: 4, stayed: 4, kept: 8, crowd: 1}

// unhurried is the usual plan, except that no first try fails because a process stands still for seconds, as on a busy machine.
// In long runs it is the usual plan.
func unhurried() plan {
	p := usual
	if !*long {
		p.options = []lockregistry.Option{lockregistry.WithCommandTimeout(lease / 2)}
	}
	return p
}

// start starts the processes, and returns when the calm before the event is over. Of reports whether a path may be used.
func start(t *testing.T, d *redistest.Deployment, v variant, p plan, of func(path string) bool) *fleet {
	t.Helper()
	f := &fleet{
		T: t, referee: newReferee(), deployment: d, release: make(chan struct{}),
		awake: make(chan struct{}), failures: map[string]map[string]int{}, switched: make([]time.Time, processes+3),
	}
	f.ctx, f.stop = context.WithCancel(t.Context())
	names := func(kind string, n int) (paths []string) {
		for i := 0; len(paths) < n; i++ {
			if path := fmt.Sprintf("%s%d", kind, i); of(path) {
				paths = append(paths, path)
			}
		}
		return paths
	}
	f.busy, f.stayed, f.kept = names("busy", p.busy), names("stayed", p.stayed), names("kept", p.kept)
	f.alone = names("alone", processes)
	if p.made == nil {
		p.made = func(_ int, options []lockregistry.Option) (*lockregistry.Registry, rueidis.Client, error) {
			c, err := client(d)
			if err != nil {
				return nil, nil, err
			}
			r, err := lockregistry.New(c, prefix, options...)
			return r, c, err
		}
	}
	for i := range processes + 2 {
		f.process(i, v, p)
	}
	t.Cleanup(func() { f.end() })
	for i, path := range f.kept {
		keeper := []int{processes, processes + 1, 0, 1}[i%4]
		locked := make(chan struct{})
		f.running.Go(func() { f.keep(keeper, path, locked) })
		<-locked
		f.running.Go(func() { f.patient((keeper+1)%processes, path) })
	}
	for i := range processes {
		if i < processes-p.idle {
			f.work(i, p)
			continue
		}
		f.once(i, f.alone[i], firstTry, time.Millisecond)
		f.running.Go(func() {
			select {
			case <-f.awake:
				f.work(i, p)
			case <-f.ctx.Done():
			}
		})
	}
	if len(d.Sentinels) > 0 {
		f.running.Go(f.watchClients)
	}
	wait(calmBefore)
	return f
}

// process makes a process's registry.
func (f *fleet) process(i int, v variant, p plan) {
	f.Helper()
	options := []lockregistry.Option{
		lockregistry.WithLease(lease), lockregistry.WithCommandTimeout(commandLimit),
	}
	options = append(append(options, p.options...), v.options...)
	if i == 1 || i == processes { // one process that works, and one that only keeps
		options = append(options, lockregistry.WithRenewal())
	}
	var r *lockregistry.Registry
	var c rueidis.Client
	require.Eventually(f.T, func() (ok bool) {
		var err error
		r, c, err = p.made(i, options) // on a busy machine the client's greeting may be answered late
		return err == nil
	}, time.Minute, time.Millisecond)
	if c != nil {
		f.Cleanup(c.Close)
	}
	f.Cleanup(func() { _ = r.Close() })
	f.clients, f.registries = append(f.clients, c), append(f.registries, r)
}

// work has a process lock.
func (f *fleet) work(i int, p plan) {
	for _, path := range f.busy {
		for range p.crowd {
			f.running.Go(func() { f.patient(i, path) })
		}
	}
	f.running.Go(func() { f.hasty(i) })
	for range p.stayed / 2 {
		f.running.Go(func() { f.stay(i) })
	}
}

func wait(d time.Duration) { <-time.After(d) }

// end lets all calls end, and returns when they have.
func (f *fleet) end() {
	select {
	case <-f.release:
	default:
		close(f.release)
	}
	f.stop()
	f.running.Wait()
}

// fail records that an operation failed.
func (f *fleet) fail(operation string, err error) {
	if f.ctx.Err() != nil && errors.Is(err, context.Canceled) || !*long && late(operation, err) {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.failures[operation] == nil {
		f.failures[operation] = map[string]int{}
	}
	f.failures[operation][cause(err)]++
}

// late reports whether an operation failed because the machine is busy: some process stood still for longer than a reply may
// take, or than Unlock waits.
func late(operation string, err error) bool {
	return operation != patientLock && (errors.Is(err, fault.Late) || errors.Is(err, fault.NotSent)) ||
		operation == unlocking && (errors.Is(err, fault.NoAnswer) || errors.Is(err, fault.Unproven))
}

// cause says in a few words what an error is about.
func cause(err error) string {
	text := err.Error()
	for _, known := range []string{
		"connection refused", "connection reset", "broken pipe", "i/o timeout", "EOF", "closing",
		"CLUSTERDOWN", "READONLY", "LOADING", "MOVED", "TRYAGAIN", "MASTERDOWN", "UNBLOCKED", "NOREPLICAS",
		"too few replicas", "Redis has not answered earlier commands", "Redis did not answer in time", "came too late",
	} {
		if strings.Contains(text, known) {
			return known
		}
	}
	switch {
	case errors.Is(err, lockregistry.ErrLockLost):
		return "lock lost"
	case errors.Is(err, lockregistry.ErrTaken):
		return "timeout"
	}
	return text
}

func (f *fleet) failed(operation string) (n int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, times := range f.failures[operation] {
		n += times
	}
	return n
}

// patient locks a path again and again, and works for a moment.
func (f *fleet) patient(process int, path string) {
	for f.ctx.Err() == nil {
		f.once(process, path, patientLock, time.Duration(1+rand.IntN(3))*time.Millisecond, lockregistry.Wait(patience))
		wait(time.Duration(10+rand.IntN(20)) * time.Millisecond)
	}
}

// hasty locks a free path again and again; each is a first try.
func (f *fleet) hasty(process int) {
	for f.ctx.Err() == nil {
		f.once(process, f.alone[process], firstTry, time.Millisecond)
		wait(time.Duration(10+rand.IntN(20)) * time.Millisecond)
	}
}

// stay locks paths for a long time.
func (f *fleet) stay(process int) {
	for f.ctx.Err() == nil {
		path := f.stayed[rand.IntN(len(f.stayed))]
		f.once(process, path, patientLock, time.Duration(rand.IntN(2000))*time.Millisecond, lockregistry.Wait(patience))
	}
}

func (f *fleet) keep(process int, path string, locked chan<- struct{}) {
	l, owner := f.registries[process].Obtain(path), lockregistry.ContextWithOwner(f.ctx)
	err := l.Lock(owner, lockregistry.Wait(patience))
	v := f.enter(path, process)
	close(locked)
	if err != nil {
		f.fail(patientLock, err)
		return
	}
	f.inside(owner, l, v, f.release)
}

// once runs one section.
func (f *fleet) once(process int, path, operation string, stay time.Duration, opts ...lockregistry.LockOption) {
	f.section(f.registries[process], process, path, operation, stay, opts...)
}

func (f *fleet) section(
	r *lockregistry.Registry, process int, path, operation string, stay time.Duration, opts ...lockregistry.LockOption,
) {
	l, owner := r.Obtain(path), lockregistry.ContextWithOwner(f.ctx)
	if err := l.Lock(owner, opts...); err != nil {
		f.fail(operation, err)
		return
	}
	v := f.enter(path, process)
	over := make(chan struct{})
	timer := time.AfterFunc(stay, func() { close(over) })
	defer timer.Stop()
	f.inside(owner, l, v, over)
}

func (f *fleet) inside(owner context.Context, l *lockregistry.Lock, v *visit, over <-chan struct{}) {
	owner = context.WithoutCancel(owner)
	alive := l.Context(owner)
	select {
	case <-over:
	case <-alive.Done():
	case <-f.ctx.Done():
	}
	if alive.Err() != nil {
		f.told(v)
	} else {
		f.leave(v)
	}
	switch err := l.Unlock(owner); {
	case err == nil:
	case errors.Is(err, lockregistry.ErrLockLost):
		f.refused(v)
	default:
		f.fail(unlocking, err)
	}
}

// watchClients records when each client of Sentinels changes to another master.
func (f *fleet) watchClients() {
	master := func(c rueidis.Client) (address string) {
		for address = range c.Nodes() {
			break
		}
		return address
	}
	before := make([]string, len(f.clients))
	for i, c := range f.clients {
		if c != nil {
			before[i] = master(c)
		}
	}
	const each = 2 * time.Millisecond
	for last := time.Now(); f.ctx.Err() == nil; wait(each) {
		f.mu.Lock()
		f.late = max(f.late, time.Since(last)-each)
		f.mu.Unlock()
		last = time.Now()
		for i, c := range f.clients {
			if c == nil {
				continue
			}
			if now := master(c); now != before[i] {
				before[i] = now
				f.mu.Lock()
				f.switched[i] = time.Now()
				f.mu.Unlock()
			}
		}
	}
}

// switchedAt returns when the client of a process changed to another master, zero if it did not.
func (f *fleet) switchedAt(process int) time.Time {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.switched[process]
}

// promoted returns when another server became the master in place of one that was killed or frozen: when that was seen, or when
// somebody could enter again, if that was earlier since the observer was held up.
func (f *fleet) promoted(key string, master *redistest.Server, at time.Time) time.Time {
	f.Helper()
	_, promoted := f.deployment.AwaitPromotion(key, master)
	for _, path := range f.busy {
		if again, ok := f.next(path, at.Add(redistest.NodeTimeout/2)); ok && again.Before(promoted) {
			promoted = again.Add(-time.Millisecond)
		}
	}
	return promoted
}

// awaitForgotten waits until no client knows a node without slots, up to a limit: Redis 8 still names it.
func (f *fleet) awaitForgotten(node *redistest.Server) {
	f.Helper()
	redistest.Await(20*time.Second, func() bool {
		return !slices.ContainsFunc(f.clients, func(c rueidis.Client) bool { return c.Nodes()[node.Addr()] != nil })
	})
}

// awaitServed waits until somebody has entered each busy path after a given time.
func (f *fleet) awaitServed(from time.Time) {
	f.Helper()
	require.Eventually(f.T, func() bool {
		return !slices.ContainsFunc(f.busy, func(path string) bool { _, ok := f.next(path, from); return !ok })
	}, time.Minute, 5*time.Millisecond, "some path is served no more")
}
