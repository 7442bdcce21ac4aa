package kit

import (
	"bytes"
	"context"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry"
	"github.com/lockregistry/lockregistry/observe"
)

// NamedConnection gives a client's connections a name, and has it use only one, except for connections with a single use.
func NamedConnection(name string) func(*rueidis.ClientOption) {
	return func(o *rueidis.ClientOption) { o.ClientName, o.PipelineMultiplex = name, -1 }
}

// Journal is a log that a test can read.
type Journal struct {
	mu   sync.Mutex
	text bytes.Buffer
}

// Write appends a line of the log.
func (j *Journal) Write(p []byte) (int, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.text.Write(p)
}

// Option makes a registry log to j.
func (j *Journal) Option() lockregistry.Option {
	return lockregistry.WithLogger(slog.New(slog.NewTextHandler(j, nil)))
}

// Lines returns the lines that contain all of the texts.
func (j *Journal) Lines(texts ...string) (found []string) {
	j.mu.Lock()
	defer j.mu.Unlock()
lines:
	for line := range strings.Lines(j.text.String()) {
		for _, text := range texts {
			if !strings.Contains(line, text) {
				continue lines
			}
		}
		found = append(found, line)
	}
	return found
}

// Await waits until count lines contain all of the texts, and checks that there are no more. A registry writes a line a moment
// after what it reports.
func (j *Journal) Await(w *World, count int, texts ...string) {
	w.Helper()
	w.Await("lines of the log", func() bool { return len(j.Lines(texts...)) >= count })
	require.Len(w, j.Lines(texts...), count, "%s", j.Lines())
}

// Witness is an observer that remembers events.
type Witness struct {
	W        *World
	Acquired chan observe.Acquired
	Released chan observe.Released
	Lost     chan observe.Lost
	Renewing chan observe.Renewing
}

// Witness returns a witness for the registries of a world.
func (w *World) Witness() *Witness {
	const many = 1000
	return &Witness{
		w, make(chan observe.Acquired, many), make(chan observe.Released, many),
		make(chan observe.Lost, many), make(chan observe.Renewing, many),
	}
}

// Option makes o observe a registry.
func (o *Witness) Option() lockregistry.Option {
	return lockregistry.WithObserver(observe.Observer{
		Acquired: func(_ context.Context, a observe.Acquired) { o.Acquired <- a },
		Released: func(_ context.Context, r observe.Released) { o.Released <- r },
		Lost:     func(l observe.Lost) { o.Lost <- l },
		Renewing: func(r observe.Renewing) { o.Renewing <- r },
	})
}

// Registry returns a registry that o observes.
func (o *Witness) Registry(opts ...lockregistry.Option) *lockregistry.Registry {
	return o.W.Registry(append(opts, o.Option())...)
}

// Got checks the next event: a call got the lock of 42.
func (o *Witness) Got(op string, how observe.How) observe.Acquired {
	o.W.Helper()
	a := <-o.Acquired
	require.Equal(o.W, how, a.How, a)
	require.Equal(o.W, op, a.Op)
	require.NoError(o.W, a.Err)
	require.Equal(o.W, observe.Subject{Path: "42", Key: TheKey, Kind: "lock"}, a.Subject)
	return a
}

// Alarms are the deadlocks that were reported to an observer.
type Alarms struct {
	mu  sync.Mutex
	all []observe.Deadlock
}

// Option makes a registry report deadlocks to a.
func (a *Alarms) Option() lockregistry.Option {
	return lockregistry.WithObserver(observe.Observer{Deadlocked: func(d observe.Deadlock) {
		a.mu.Lock()
		defer a.mu.Unlock()
		a.all = append(a.all, d)
	}})
}

// List returns the deadlocks so far.
func (a *Alarms) List() []observe.Deadlock {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.Clone(a.all)
}

// None checks that no deadlock is reported, within a time in which second looks are over.
func (a *Alarms) None(w *World) {
	w.Helper()
	w.Pass(3 * time.Second)
	require.Empty(w, a.List())
}

// Processes returns registries of one prefix, as several processes would have them, with the alarms of each.
func (w *World) Processes(n int, opts ...lockregistry.Option) (registries []*lockregistry.Registry, all []*Alarms) {
	w.Helper()
	for range n {
		a := &Alarms{}
		all = append(all, a)
		registries = append(registries, w.Registry(append(opts, a.Option(), lockregistry.WithRenewal())...))
	}
	return registries, all
}

// AwaitRenewal waits until less than three quarters of a lease are left, and then until more are again.
func (w *World) AwaitRenewal(key string, lease time.Duration) {
	w.Helper()
	left := func() time.Duration { return w.Pttl(key) }
	w.Await("it is not fresh", func() bool { return left() < 3*lease/4 })
	w.Await("it is renewed", func() bool { return left() > 3*lease/4 })
}

// Heard subscribes without this library, and returns what arrives as "channel message".
func (w *World) Heard(subscribe func(c rueidis.Client) rueidis.Completed, ready string, count string) <-chan string {
	w.Helper()
	heard := make(chan string, 64)
	client := w.Client()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = client.Receive(ctx, subscribe(client), func(m rueidis.PubSubMessage) { heard <- m.Channel + " " + m.Message })
	}()
	w.Cleanup(func() { cancel(); <-done })
	w.Await("a subscription by hand", func() bool {
		if ready == "" {
			return w.Do("PUBSUB", "NUMPAT") == count
		}
		return strconv.Itoa(w.Subscribers(ready)) == count
	})
	return heard
}
