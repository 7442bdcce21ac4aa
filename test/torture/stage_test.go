package torture

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry"
	"github.com/lockregistry/lockregistry/internal/fault"
	"github.com/lockregistry/lockregistry/internal/netfault"
	"github.com/lockregistry/lockregistry/internal/redistest"
)

const (
	// lease is so long that nothing here waits for it to end.
	lease = 20 * time.Second
	// longer is a lease that a late command with the shorter one would cut.
	longer = 2 * lease
	poll   = 50 * time.Millisecond
	// allowance is what a busy machine may add to a promised time; far below the lease.
	allowance = 4 * time.Second
	// brief is an allowance for the naive lock, which keeps everybody waiting for the whole lease.
	brief = 500 * time.Millisecond
)

// stage is where a scene is played: process a behind a network that fails, process b on one that does not, and a path of their
// own.
type stage struct {
	*testing.T
	system system
	server *redistest.Server
	proxy  *netfault.Proxy
	a, b   process
	path   string
	of     settings      // of both processes
	limit  time.Duration // what a busy machine may add to a promised time
	found  []string      // what happened and must not
}

var paths atomic.Int64

// serve starts a server that knows all scripts, so that one call is one command, the first time too.
func serve(tb testing.TB) *redistest.Server {
	tb.Helper()
	server := redistest.Start(tb)
	for body := range scripts() {
		server.Command(tb, "SCRIPT", "LOAD", body)
	}
	return server
}

func newStage(t *testing.T, s system, server *redistest.Server, of settings) *stage {
	t.Helper()
	proxy := listen(t, server.Addr())
	limit := allowance
	if !s.ours {
		limit = brief
	}
	return &stage{
		limit:  limit,
		of:     of,
		T:      t,
		system: s,
		server: server,
		proxy:  proxy,
		a:      start(t, s, single, proxy.Addr(), of),
		b:      start(t, s, single, server.Addr(), of),
		path:   strconv.FormatInt(paths.Add(1), 10),
	}
}

// violatedf records that something happened that must not. It does not end the test: the same scenes are played with a lock
// that is expected to be at fault.
func (s *stage) violatedf(format string, args ...any) {
	s.found = append(s.found, fmt.Sprintf(format, args...))
}

func (s *stage) do(args ...string) string {
	s.Helper()
	return s.server.Command(s.T, args...)
}

func (s *stage) owner() context.Context { return lockregistry.ContextWithOwner(s.Context()) }

// soon is a context for calls that must end by themselves; a test in which they do not fails.
func (s *stage) soon(ctx context.Context) context.Context {
	ctx, cancel := context.WithTimeout(ctx, 4*allowance)
	s.Cleanup(cancel)
	return ctx
}

// must gets the lock, within the allowance.
func (s *stage) must(ctx context.Context, p process, of time.Duration) {
	s.Helper()
	began := time.Now()
	for range 8 {
		ok, err := p.lock(ctx, s.path, s.limit, of)
		if ok {
			return
		}
		if err == nil || time.Since(began) > poll+s.limit {
			left, _ := s.server.Do("PTTL", keyOf(s.path))
			s.violatedf("the path is blocked: %v, %v after %v; its key lives for another %s ms", ok, err, time.Since(began), left)
			s.do("DEL", keyOf(s.path))
			began = time.Now()
		}
	}
	s.Fatalf("no lock, whatever becomes of its key")
}

// free checks that the other process gets the lock soon.
func (s *stage) free() {
	s.Helper()
	ctx := s.owner()
	s.must(ctx, s.b, longer)
	s.unlocks(ctx, s.b)
}

// unlocks checks that a hold is still there when its owner releases it. On a busy machine the reply may be late.
func (s *stage) unlocks(ctx context.Context, p process) {
	s.Helper()
	if err := p.unlock(ctx, s.path); err != nil && !errors.Is(err, fault.NoAnswer) && !errors.Is(err, fault.Late) {
		s.violatedf("unlock: %v", err)
	}
}

// unlocksOnDying is unlocks for a process whose connection may be breaking right now.
func (s *stage) unlocksOnDying(ctx context.Context, p process) {
	s.Helper()
	if err := p.unlock(ctx, s.path); err != nil {
		s.fromNetwork(err)
	}
}

// unharmed returns a check that the key is as it is now, except for the time that has passed. A hold that was granted in a
// queue has a short lease at first, so unharmed waits until it is lengthened.
func (s *stage) unharmed() (check func()) {
	s.Helper()
	look := func() (string, time.Duration) {
		ms, err := strconv.Atoi(s.do("PTTL", keyOf(s.path)))
		require.NoError(s, err)
		return s.do("DUMP", keyOf(s.path)), time.Duration(ms) * time.Millisecond
	}
	var value string
	var left time.Duration
	began := time.Now()
	s.await("a whole lease", func() bool {
		began = time.Now()
		value, left = look()
		return left > provisional
	})
	return func() {
		s.Helper()
		nowValue, nowLeft := look()
		passed := time.Since(began) + 2*time.Millisecond // whole milliseconds, twice
		if nowValue != value || nowLeft > longer || nowLeft < left-passed {
			s.violatedf("the key was %q for %v, and %v later it is %q for %v", value, left, passed, nowValue, nowLeft)
		}
	}
}

var documented = []error{
	lockregistry.ErrNotOwner, lockregistry.ErrLockLost, lockregistry.ErrTaken, lockregistry.ErrClosed, lockregistry.ErrCapacity,
}

// fromNetwork checks that an error came from the network, and is no other that a caller would act on.
func (s *stage) fromNetwork(err error) {
	s.Helper()
	if err == nil {
		s.violatedf("no error, though nobody knows the outcome")
		return
	}
	s.wrapped(err)
	for _, other := range append(documented, context.Canceled, context.DeadlineExceeded) {
		if errors.Is(err, other) {
			s.violatedf("an error of the network is taken for another: %v", err)
		}
	}
}

// released checks the error of an unlock whose command was lost: nil if the registry has made sure meanwhile, otherwise one
// that says that the outcome is unknown.
func (s *stage) released(err error) {
	s.Helper()
	if err == nil {
		return
	}
	s.is(err, lockregistry.ErrUnavailable)
	for _, other := range append(documented, context.Canceled, context.DeadlineExceeded) {
		if errors.Is(err, other) {
			s.violatedf("an outcome that nobody knows is taken for another: %v", err)
		}
	}
}

// is checks that an error is, or wraps, another one.
func (s *stage) is(err, wanted error) {
	s.Helper()
	if !errors.Is(err, wanted) {
		s.violatedf("the error is %v, not %v", err, wanted)
	}
	if wanted != nil {
		s.wrapped(err)
	}
}

func (s *stage) wrapped(err error) {
	s.Helper()
	var failed *lockregistry.LockError
	if s.system.ours && (!errors.As(err, &failed) || failed.Key != keyOf(s.path)) {
		s.violatedf("not wrapped with its operation and key: %v", err)
	}
}

// await waits until something that the test caused has happened.
func (s *stage) await(what string, happened func() bool) {
	s.Helper()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for began := time.Now(); !happened(); <-tick.C {
		if time.Since(began) > 4*allowance {
			s.Fatalf("not within %v: %s", 4*allowance, what)
		}
	}
}

func arrives[T any](s *stage, what string, from <-chan T) T {
	s.Helper()
	select {
	case got := <-from:
		return got
	case <-time.After(4 * allowance):
		s.Fatalf("not within %v: %s", 4*allowance, what)
		panic("unreachable")
	}
}

// scene is one way for one operation to fail.
type scene struct {
	name string
	of   settings // only what differs from the usual
	play func(s *stage)
}

func (c scene) settings() settings {
	of := c.of
	if of.Lease == 0 {
		of.Lease = lease
	}
	if of.Poll == 0 {
		of.Poll = poll
	}
	of.Handoff = -1
	return of
}

// perform plays scenes with a system, and has judge look at what each of them found.
func perform(t *testing.T, s system, scenes []scene, judge func(t *testing.T, name string, found []string)) {
	t.Helper()
	server := serve(t)
	for _, c := range scenes {
		t.Run(strings.ReplaceAll(c.name, " ", "_"), func(t *testing.T) {
			t.Parallel()
			stage := newStage(t, s, server, c.settings())
			c.play(stage)
			judge(t, c.name, stage.found)
		})
	}
}

// performAll plays scenes with each system, and fails for anything that they find.
func performAll(t *testing.T, scenes func() []scene, systems ...system) {
	t.Helper()
	for _, s := range systems {
		t.Run(s.name, func(t *testing.T) {
			t.Parallel()
			perform(t, s, scenes(), func(t *testing.T, _ string, found []string) {
				t.Helper()
				for _, f := range found {
					t.Error(f)
				}
			})
		})
	}
}
