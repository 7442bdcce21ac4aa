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

// What the queue in Redis promises, on real servers; miniredis has none.

// Member is one process that waits in the queue of the first lock.
type Member struct {
	*Goroutine
	Net    *Flaky
	Reg    *lockregistry.Registry
	Lock   *lockregistry.Lock
	Result <-chan error
}

// Joins has a new process wait, as the last one of the queue.
func (w *World) Joins(ctx context.Context, opts ...lockregistry.Option) *Member {
	w.Helper()
	m := &Member{Goroutine: w.Goroutine(), Net: w.Flaky()}
	m.Reg = m.Net.Registry(opts...)
	m.Lock = m.Reg.Obtain("42")
	m.Waits(ctx)
	return m
}

// Waits has the process wait once more.
func (m *Member) Waits(ctx context.Context, opts ...lockregistry.LockOption) {
	m.w.Helper()
	before := m.w.Tickets()
	m.Result = m.Start(func() error { return m.Lock.Lock(ctx, opts...) })
	m.w.Await("a ticket", func() bool { return m.w.Tickets() == before+1 })
}

// Channels returns the names of the channels on which processes are told of their grants.
func (w *World) Channels() []string {
	w.Helper()
	return strings.Fields(w.Do("PUBSUB", "CHANNELS", "orders-channel@*"))
}

// JoinsOn is [World.Joins], and returns the name of the process's channel.
func (w *World) JoinsOn(ctx context.Context, opts ...lockregistry.Option) (m *Member, channel string) {
	w.Helper()
	m = w.Joins(ctx, opts...)
	channel = "orders-channel@" + ClientID(m.Reg)
	require.Contains(w, w.Channels(), channel)
	return m, channel
}

// Watched waits until the first in the queue is told of changes of the key.
func (w *World) Watched() {
	w.Helper()
	w.Await("the key is tracked", func() bool { return w.Tracked() == 1 })
}

// Within checks that none of some durations is out of all proportion, and that the best one is below a limit: on a machine that
// is busy with other things each may be late. The limit is for an idle one; how busy it is, a bystander's commands tell: a
// handoff takes several times as many steps. What nobody wakes takes at least a second, see the times of looks in internal/queue.
func (w *World) Within(limit time.Duration, all []time.Duration) {
	w.Helper()
	limit = max(limit, min(limit+30*w.Bystander(), 900*time.Millisecond))
	w.Log(all, limit)
	require.LessOrEqual(w, slices.Min(all), limit)
	require.Less(w, slices.Max(all), AtOnce)
}

// Bystander is what four commands take, each over a connection of its own: some milliseconds on a machine that is not busy.
func (w *World) Bystander() time.Duration {
	w.Helper()
	began := time.Now()
	for range 4 {
		require.Equal(w, "PONG", w.Do("PING"))
	}
	return time.Since(began)
}

// The queue of a read-write lock. Miniredis has none.

// RwQueue is the queue of the read-write lock of 42.
const RwQueue = "orders:{orders:42}:waiters"

// RwTickets are the tickets in that queue, in their order, by their kinds.
func (w *World) RwTickets() string {
	w.Helper()
	var kinds strings.Builder
	for member := range strings.FieldsSeq(strings.Trim(w.Do("ZRANGEBYSCORE", RwQueue, "0", "+inf"), "[]")) {
		if strings.Contains(member, "|") { // else it notes that a writer waits without a ticket
			kinds.WriteString(member[len(member)-1:])
		}
	}
	return kinds.String()
}

// LinesUp starts a call in a process of its own, and returns when it has its ticket.
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

// Queued gives the goroutines that were started the time to queue.
func (w *World) Queued(l *lockregistry.Lock) bool {
	w.Helper()
	if w.Fake {
		w.Settle()
		return true
	}
	return Contended(l)
}

// Waiting tells whether somebody listens for a path.
func (w *World) Waiting(path string) bool {
	w.Helper()
	if w.Fake {
		w.Settle()
		return true
	}
	return w.Tracked() > 0 || strings.Contains(w.Do("PUBSUB", "CHANNELS", "*"), path)
}

// PassingFaults have a server refuse something for a while, until what they return is called.
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

// withoutDisk has the server fail to save, because a directory has the name of its file.
func (w *World) withoutDisk() (ends func()) {
	w.Helper()
	setting := func(name string) string {
		_, value, _ := strings.Cut(w.Do("CONFIG", "GET", name), "\n")
		return value
	}
	require.NoError(w, os.Mkdir(filepath.Join(setting("dir"), setting("dbfilename")), 0o700))
	ends = w.configured("save", "3600 1000000", "") // without it the server does not mind
	w.Do("BGSAVE")
	w.Await("it cannot save", func() bool { return strings.Contains(w.Do("INFO", "persistence"), "rdb_last_bgsave_status:err") })
	return ends
}

// Contend has processes lock and unlock, with sections that take so long, until the test ends. On a busy machine some are late.
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

// ContextKey is a key of values of contexts.
type ContextKey struct{}
