package kit

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry"
	"github.com/lockregistry/lockregistry/observe"
)

// The queue in Redis, on real servers; miniredis has none.

// Member is a process that waits in the queue of the lock of 42.
type Member struct {
	*Goroutine
	Net    *Flaky
	Reg    *lockregistry.Registry
	Lock   *lockregistry.Lock
	Result <-chan error
}

// Joins has a new process wait, at the end of the queue.
func (w *World) Joins(ctx context.Context, opts ...lockregistry.Option) *Member {
	w.Helper()
	m := &Member{Goroutine: w.Goroutine(), Net: w.Flaky()}
	m.Reg = m.Net.Registry(opts...)
	m.Lock = m.Reg.Obtain("42")
	m.Waits(ctx)
	return m
}

// Waits has the process wait again.
func (m *Member) Waits(ctx context.Context, opts ...lockregistry.LockOption) {
	m.w.Helper()
	before := m.w.Tickets()
	m.Result = m.Start(func() error { return m.Lock.Lock(ctx, opts...) })
	m.w.Await("a ticket", func() bool { return m.w.Tickets() == before+1 })
}

// Channels returns the names of the channels on which processes learn of their grants.
func (w *World) Channels() []string {
	w.Helper()
	return strings.Fields(w.Do("PUBSUB", "CHANNELS", "orders-channel@*"))
}

// JoinsOn is [World.Joins], and also returns the name of the process's channel.
func (w *World) JoinsOn(ctx context.Context, opts ...lockregistry.Option) (m *Member, channel string) {
	w.Helper()
	m = w.Joins(ctx, opts...)
	channel = "orders-channel@" + ClientID(m.Reg)
	require.Contains(w, w.Channels(), channel)
	return m, channel
}

// Watched waits until the first in the queue will be told of changes of the key.
func (w *World) Watched() {
	w.Helper()
	w.Await("the key is tracked", func() bool { return w.Tracked() == 1 })
}

// Within checks that the shortest of some durations is below a limit, and that none is far above it: on a busy machine any may
// be late. The limit is that of an idle machine, and is raised by what a bystander's commands take: a handoff takes several
// times as many steps. A waiter that nothing wakes takes at least a second, see the times of looks in internal/queue.
func (w *World) Within(limit time.Duration, all []time.Duration) {
	w.Helper()
	limit = max(limit, min(limit+30*w.Bystander(), 900*time.Millisecond))
	w.Log(all, limit)
	require.LessOrEqual(w, slices.Min(all), limit)
	require.Less(w, slices.Max(all), AtOnce)
}

// Bystander returns how long four commands take, each over a connection of its own: a few milliseconds on an idle machine.
func (w *World) Bystander() time.Duration {
	w.Helper()
	began := time.Now()
	for range 4 {
		require.Equal(w, "PONG", w.Do("PING"))
	}
	return time.Since(began)
}

// RwQueue is the queue of the read-write lock of 42.
const RwQueue = "orders:{orders:42}:waiters"

// RwTickets returns the kinds of the tickets in that queue, in order.
func (w *World) RwTickets() string {
	w.Helper()
	var kinds strings.Builder
	for member := range strings.FieldsSeq(strings.Trim(w.Do("ZRANGEBYSCORE", RwQueue, "0", "+inf"), "[]")) {
		if strings.Contains(member, "|") { // otherwise it records that a writer waits without a ticket
			kinds.WriteString(member[len(member)-1:])
		}
	}
	return kinds.String()
}

// LinesUp starts a call in a goroutine, and returns once it has its ticket.
func (w *World) LinesUp(l *lockregistry.Lock, opts ...lockregistry.LockOption) (*Goroutine, <-chan error) {
	w.Helper()
	before := len(w.RwTickets())
	g := w.Goroutine()
	got := g.Starts(l, opts...)
	w.Await("its ticket", func() bool { return len(w.RwTickets()) > before })
	return g, got
}

// Layouts are the formats in Redis, by name.
var Layouts = map[string]observe.Layout{"spring": observe.LayoutSpring, "redisson": observe.LayoutRedisson}

// Queued gives the goroutines that were started time to queue, and reports whether one has.
func (w *World) Queued(l *lockregistry.Lock) bool {
	w.Helper()
	if w.Fake {
		w.Settle()
		return true
	}
	return Contended(l)
}

// Waiting reports whether somebody listens for a path.
func (w *World) Waiting(path string) bool {
	w.Helper()
	if w.Fake {
		w.Settle()
		return true
	}
	return w.Tracked() > 0 || strings.Contains(w.Do("PUBSUB", "CHANNELS", "*"), path)
}

// PassingFaults make a server refuse something until the function that they return is called.
var PassingFaults = map[string]func(w *World) (ends func()){
	"NOREPLICAS": func(w *World) func() { return w.configured("min-replicas-to-write", "1", "0") },
	"OOM":        func(w *World) func() { return w.configured("maxmemory", "1", "0") },
	"READONLY": func(w *World) func() {
		w.Do("REPLICAOF", "127.0.0.1", "1")
		return func() { w.Do("REPLICAOF", "NO", "ONE") }
	},
	"MISCONF": (*World).withoutDisk,
}

func (w *World) configured(name, value, former string) (ends func()) {
	w.Helper()
	require.Equal(w, "OK", w.Do("CONFIG", "SET", name, value))
	return func() { require.Equal(w, "OK", w.Do("CONFIG", "SET", name, former)) }
}

// withoutDisk makes the server fail to save, because its file's name is taken by a directory.
func (w *World) withoutDisk() (ends func()) {
	w.Helper()
	setting := func(name string) string {
		_, value, _ := strings.Cut(w.Do("CONFIG", "GET", name), "\n")
		return value
	}
	file := filepath.Join(setting("dir"), setting("dbfilename"))
	require.NoError(w, os.RemoveAll(file)) // as it saved for a replica
	require.NoError(w, os.Mkdir(file, 0o700))
	ends = w.configured("save", "3600 1000000", "") // otherwise the server would not mind
	w.Await("it has saved for a replica", func() bool {
		return strings.Contains(w.Do("INFO", "persistence"), "rdb_bgsave_in_progress:0")
	})
	w.Do("BGSAVE")
	w.Await("it cannot save", func() bool { return strings.Contains(w.Do("INFO", "persistence"), "rdb_last_bgsave_status:err") })
	return ends
}

// Contend has processes lock and unlock until the test ends, with sections of this length. On a busy machine some are late.
func (w *World) Contend(processes int, section time.Duration) {
	w.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	var all sync.WaitGroup
	for range processes {
		l := w.Registry().Obtain("42")
		for range 2 {
			all.Go(func() {
				for l.Lock(ctx) == nil {
					<-time.After(section)
					if err := l.Unlock(context.WithoutCancel(ctx)); err != nil && !TookLong(err) && !LeaseOver(err) {
						w.Error(err)
					}
				}
			})
		}
	}
	w.Cleanup(func() { cancel(); all.Wait() })
	w.Await("they contend", func() bool { return w.Tickets() >= processes-1 })
}

// ContextKey is the type of a key for values in contexts.
type ContextKey struct{}
