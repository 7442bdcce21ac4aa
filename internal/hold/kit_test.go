package hold

import (
	"context"
	"encoding/binary"
	"log/slog"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/rueidis"

	"github.com/lockregistry/lockregistry/internal/clock"
	"github.com/lockregistry/lockregistry/internal/fault"
	"github.com/lockregistry/lockregistry/internal/lease"
	"github.com/lockregistry/lockregistry/internal/owner"
	"github.com/lockregistry/lockregistry/internal/protocol"
	"github.com/lockregistry/lockregistry/internal/scheduler"
	"github.com/lockregistry/lockregistry/internal/transport"
)

const (
	anna owner.ID = iota + 1
	bert
	team = owner.Made | 1
)

// roundTrip is how long each reply takes.
const roundTrip = 5 * time.Millisecond

// loss is a loss as the lock was told of it.
type loss struct {
	why     fault.Loss
	held    time.Duration
	awaited bool
}

// answer is what happens to a command.
type answer struct {
	n    int64
	err  error
	late bool
	wait time.Duration // how long the reply takes, if longer
}

// world is a lock, a server and a schedule, all of them made up, and the holds of one path between them.
type world struct {
	*testing.T
	path     *Path
	schedule *Schedule
	stall    func()                       // nothing that is due is looked at any more
	busy     chan struct{}                // the log waits until it is closed; nil: it does not
	reply    func(c protocol.Call) answer // nil: all is the hold's

	mu      sync.Mutex
	owners  int64
	losses  []loss
	cleared []Remains
	sent    []protocol.Call
	logged  []string
	looks   int // how often the schedule asked for a look
	left    map[owner.ID]bool

	meanwhile func() // what happens just after the next answer about who has the hold
}

// fake runs a test in fake time.
func fake(t *testing.T, test func(w *world)) {
	synctest.Test(t, func(t *testing.T) {
		w := &world{T: t, owners: 1}
		c := clock.New()
		var s *scheduler.Scheduler
		w.schedule = NewSchedule(func(due clock.Instant) {
			w.locked(func() { w.looks++ })
			s.Soon(due)
		}, w.work)
		s = scheduler.New(c, func(now clock.Instant) clock.Instant {
			next, _ := w.schedule.Turn(now)
			return next
		})
		w.stall = s.Close
		w.path = &Path{
			Kind: &Kind{
				Format: protocol.NewSpring(protocol.Config{Prefix: "orders", Remove: func() string { return "UNLINK" }}),
				Env: &Env{
					Clock: c, Server: w, Schedule: w.schedule, NumberAt: len("me:"),
					Demand:      func(*protocol.Call) {},
					Log:         w.log,
					Unreachable: func(func()) {},
				},
			},
			Key:   "orders:42",
			Above: w,
		}
		defer func() {
			s.Close()
			w.schedule.Close()
			s.Wait()
			w.schedule.Wait()
		}()
		test(w)
	})
}

// pass lets time pass.
func pass(d time.Duration) { <-time.After(d) }

func (w *world) locked(do func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	do()
}

func (w *world) log(_ slog.Level, message string, _ ...slog.Attr) {
	if w.busy != nil {
		<-w.busy
	}
	w.locked(func() { w.logged = append(w.logged, message) })
}

func (w *world) Lost(why fault.Loss, held Held, awaited bool) {
	w.locked(func() { w.losses = append(w.losses, loss{why, held.Owned, awaited}) })
}

func (w *world) Clear(r Remains) { w.locked(func() { w.cleared = append(w.cleared, r) }) }

func (w *world) Count() (n int64) {
	w.locked(func() { n = w.owners })
	return n
}

// Owners returns anna and, if there are two, bert, except those that have left.
func (w *world) Owners() (all []owner.ID) {
	w.locked(func() {
		for _, o := range []owner.ID{anna, bert}[:w.owners] {
			if !w.left[o] {
				all = append(all, o)
			}
		}
	})
	return all
}

func (w *world) Delegated(owner.ID) bool { return false }

// answered returns what happens to a command that is sent now.
func (w *world) answered(c protocol.Call) (a answer, reply transport.Reply) {
	a = answer{n: 1}
	reply.Sent = w.path.Clock.Now()
	var decide func(protocol.Call) answer
	w.locked(func() { w.sent, decide = append(w.sent, c), w.reply })
	if decide != nil {
		a = decide(c)
	}
	pass(max(a.wait, roundTrip))
	reply.Came, reply.Late = w.path.Clock.Now(), a.late
	return a, reply
}

func (w *world) Do(_ *transport.Wait, c *protocol.Call) transport.Reply {
	a, reply := w.answered(*c)
	reply.RedisResult = rueidis.NewResult(number(a.n), a.err)
	return reply
}

// number is a reply, as rueidis keeps it in its cache: 7 bytes about that, the type, and the value.
func number(n int64) (m rueidis.RedisMessage) {
	if err := m.CacheUnmarshalView(binary.BigEndian.AppendUint64([]byte("\x00\x00\x00\x00\x00\x00\x00:"), uint64(n))); err != nil {
		panic(err)
	}
	return m
}

func (w *world) RoundTrip(string) transport.RoundTrip { return transport.RoundTrip{Known: true} }

// work sends the schedule's tasks.
func (w *world) work(tasks []Task) {
	for _, t := range tasks {
		if t.Wanted() {
			a, reply := w.answered(t.Call())
			t.Done(reply, a.n, a.err)
		}
	}
}

// all makes a the answer to every command from now on.
func (w *world) all(a answer) {
	w.locked(func() { w.reply = func(protocol.Call) answer { return a } })
}

// lost returns the losses that the lock was told about.
func (w *world) lost() (all []loss) {
	w.Helper()
	synctest.Wait()
	w.locked(func() { all = append(all, w.losses...) })
	return all
}

// removals returns what the lock was told to remove.
func (w *world) removals() (all []Remains) {
	synctest.Wait()
	w.locked(func() { all = append(all, w.cleared...) })
	return all
}

// commands returns how many commands were sent.
func (w *world) commands() (n int) {
	synctest.Wait()
	w.locked(func() { n = len(w.sent) })
	return n
}

// terms are those of a lease.
func terms(length time.Duration) Terms { return Terms{Lease: lease.NewTerm(length)} }

// renewed returns terms with renewal.
func renewed(length time.Duration) Terms {
	t := terms(length)
	t.Renewed = true
	return t
}

// granted returns a hold that has just been granted.
func (w *world) granted(t Terms) *Hold {
	w.Helper()
	h := New(w.path, "me:7", t)
	now := w.path.Clock.Now()
	if !h.Grant(now, now) {
		w.Fatal("the grant came too late")
	}
	return h
}

// context returns a context of a hold for an owner.
func (w *world) context(h *Hold, o owner.ID) context.Context {
	w.Helper()
	ctx, err := within(w.Context(), h, o)
	if err != nil {
		w.Fatal(err)
	}
	return ctx
}

// within returns a context of a hold for an owner, made from another context.
func within(parent context.Context, h *Hold, o owner.ID) (context.Context, error) {
	around, _ := parent.Value(Key{}).(*Carrier)
	return h.Context(parent, o, nil, around)
}

// wait returns how long a call waits for its reply.
func (w *world) wait() *transport.Wait { return &transport.Wait{Ctx: w.Context(), Limit: time.Second} }

// Has reports false of the owners that have left.
func (w *world) Has(_ string, o owner.ID) (has bool) {
	var meanwhile func()
	w.locked(func() {
		has = !w.left[o]
		meanwhile, w.meanwhile = w.meanwhile, nil
	})
	if meanwhile != nil {
		meanwhile()
	}
	return has
}
