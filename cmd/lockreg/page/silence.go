package page

import (
	"bytes"
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/redis/rueidis"

	"github.com/lockregistry/lockregistry"
	"github.com/lockregistry/lockregistry/inspect"
	"github.com/lockregistry/lockregistry/internal/fault"
	"github.com/lockregistry/lockregistry/internal/topology"
)

// inspector is a source that can be asked something small, as an Inspector can. A pass may take long although Redis answers.
type inspector interface {
	Inspect(ctx context.Context, path string) (inspect.Lock, error)
}

const (
	probePath  = "lockreg"
	probeEach  = 500 * time.Millisecond
	probeLimit = 800 * time.Millisecond // with the pause it is less than two seconds until streams are told
)

// silence is what does not answer.
type silence struct {
	Since   int64    `json:"since"`             // Unix ms; 0: all of Redis answers
	Servers []string `json:"servers,omitempty"` // of a cluster the masters that do not; empty: all of Redis
}

func (s silence) event() []byte {
	var out bytes.Buffer
	event(&out, "silence", s)
	return out.Bytes()
}

// asker returns what asks something small: it reports for each server whether that has answered before its context ended. A
// server without a name is all of Redis. It is nil if the source can only be asked for everything.
func (f *feed) asker() func(ctx context.Context) map[string]bool {
	if f.client != nil && f.client.Mode() == rueidis.ClientModeCluster {
		return (&masters{client: f.client, pending: map[string]bool{}, asks: &f.watchers}).ask
	}
	// One of them is enough: they have the same client, or the page cannot know of all.
	at := slices.IndexFunc(f.prefixes, func(p prefix) bool {
		_, asks := p.source.(inspector)
		return asks
	})
	if at < 0 {
		return nil
	}
	source, _ := f.prefixes[at].source.(inspector)
	return func(ctx context.Context) map[string]bool {
		_, err := source.Inspect(ctx, probePath)
		return map[string]bool{"": answered(err)}
	}
}

// answered reports whether a server has answered: an error of Redis is an answer.
func answered(err error) bool {
	return !errors.Is(err, lockregistry.ErrUnavailable) && !errors.Is(err, context.DeadlineExceeded)
}

// masters are those of a cluster. Each node is asked which they are: so all that answer are known, and by any of them also the
// others. Replicas may be silent.
type masters struct {
	client rueidis.Client
	asks   *sync.WaitGroup

	mu      sync.Mutex
	pending map[string]bool // nodes that owe an answer: a client may connect to a frozen one for longer than a context lasts
}

// said is the answer of a node.
type said struct {
	node  string
	slots topology.Map
	err   error
}

func (m *masters) ask(ctx context.Context) map[string]bool {
	nodes := m.client.Nodes()
	came := make(chan said, len(nodes))
	asked := 0
	for address, node := range nodes {
		m.mu.Lock()
		skip := m.pending[address]
		m.pending[address] = true
		m.mu.Unlock()
		if skip {
			continue
		}
		asked++
		m.asks.Go(func() {
			slots, err := topology.Ask(ctx, node, address)
			m.mu.Lock()
			delete(m.pending, address)
			m.mu.Unlock()
			came <- said{address, slots, err}
		})
	}
	answers := map[string]bool{}
	var slots topology.Map
	for ; asked > 0; asked-- {
		select {
		case one := <-came:
			answers[one.node] = fault.Answered(one.err)
			if len(slots) == 0 {
				slots = one.slots
			}
		case <-ctx.Done():
			asked = 1
		}
	}
	return byMaster(slots, answers)
}

// byMaster reports which masters have answered; all of Redis has not if none has said who they are.
func byMaster(slots topology.Map, answers map[string]bool) map[string]bool {
	if len(slots) == 0 {
		return map[string]bool{"": slices.Contains(slices.Collect(maps.Values(answers)), true)}
	}
	all := map[string]bool{}
	for _, part := range slots {
		all[part.Address] = answers[part.Address]
	}
	return all
}

// watch asks something small again and again while there are streams, and tells them when there is no answer.
func (f *feed) watch(over <-chan struct{}) {
	if f.ask == nil {
		return
	}
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	f.watchers.Go(func() {
		select {
		case <-over:
			stop()
		case <-ctx.Done():
		}
	})
	seen := map[string]time.Time{} // when each server has answered last, or was asked first
	for ctx.Err() == nil {
		if f.watched() {
			began := time.Now()
			asking, cancel := context.WithTimeout(ctx, probeLimit)
			answers := f.ask(asking)
			cancel()
			if ctx.Err() == nil {
				f.silence(silent(answers, seen, began))
			}
		} else { // nobody is told
			f.silence(silence{})
			clear(seen)
		}
		select {
		case <-time.After(probeEach):
		case <-ctx.Done():
		}
	}
	f.silence(silence{})
}

// silent returns what has not answered, and notes in seen what has. Began is when they were asked.
func silent(answers map[string]bool, seen map[string]time.Time, began time.Time) (s silence) {
	for server, answered := range answers {
		if _, known := seen[server]; !known {
			seen[server] = began
		}
		if answered {
			seen[server] = time.Now()
			continue
		}
		if since := seen[server].UnixMilli(); s.Since == 0 || since < s.Since {
			s.Since = since
		}
		s.Servers = append(s.Servers, server)
	}
	if len(s.Servers) == len(answers) { // all
		s.Servers = nil
	}
	slices.Sort(s.Servers)
	return s
}

// silence tells the streams what does not answer.
func (f *feed) silence(now silence) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.silent.Since == now.Since && slices.Equal(f.silent.Servers, now.Servers) {
		return
	}
	f.silent = now
	if now.Since == 0 && f.skip != nil {
		f.skip() // the shown state is old
	}
	text := now.event()
	for s := range f.streams {
		if s.stale && f.now != nil { // take tells it
			continue
		}
		s.queue = append(s.queue, text)
		s.queued += len(text)
		s.warned = true
		select {
		case s.wake <- struct{}{}:
		default:
		}
	}
}
