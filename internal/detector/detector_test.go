package detector

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry/internal/clock"
	"github.com/lockregistry/lockregistry/internal/deadlock"
	"github.com/lockregistry/lockregistry/internal/fault"
	"github.com/lockregistry/lockregistry/internal/owner"
	"github.com/lockregistry/lockregistry/internal/presence"
)

// world is what is in Redis: who holds a path, and the records of registries.
type world struct {
	mu      sync.Mutex
	holders map[string][]string
	records map[string]string
}

// process is a registry of a world, in a process of its own.
type process struct {
	*Detector

	world *world
	graph deadlock.Graph
	clock clock.Clock
	held  []Held

	failure  error // of what is asked
	asked    int   // how often Redis was asked for holders
	read     int   // how many records were read
	reported []Cycle
}

func newWorld() *world { return &world{holders: map[string][]string{}, records: map[string]string{}} }

func (w *world) processes(n int) (all []*process) {
	for i := range n {
		p := &process{world: w, clock: clock.New()}
		p.Detector = New(p, presence.Identity{Registry: "registry " + strconv.Itoa(i), PID: i + 1}, &p.graph, p.clock)
		all = append(all, p)
	}
	return all
}

// lock is one of a process, for the graph.
type lock struct {
	deadlock.Lock

	of   *process
	path string
}

func (*lock) Delegated(owner.ID) bool { return false }

func (p *process) Mine(c *deadlock.Call) bool { return c.Lock.(*lock).of == p }

func (p *process) Subject(c *deadlock.Call) (path, kind string) {
	if path = c.Lock.(*lock).path; strings.HasPrefix(path, "seat") {
		return path, presence.Permits
	}
	return path, "lock"
}

func (p *process) Held() iter.Seq[Held] { return slices.Values(p.held) }

func (p *process) Holders(_ context.Context, paths []string) (all [][]string, err error) {
	p.world.mu.Lock()
	defer p.world.mu.Unlock()
	p.asked++
	for _, path := range paths {
		all = append(all, slices.Clone(p.world.holders[path]))
	}
	return all, p.failure
}

func (p *process) Records(
	_ context.Context, registries []string, each func(i int, r presence.Record, from presence.Identity),
) error {
	p.world.mu.Lock()
	defer p.world.mu.Unlock()
	p.read += len(registries)
	for i, registry := range registries {
		r, from := presence.Parse(registry, p.world.records[registry])
		each(i, r, from)
	}
	return p.failure
}

func (p *process) registries(context.Context) (all []string, err error) {
	p.world.mu.Lock()
	defer p.world.mu.Unlock()
	for registry := range p.world.records {
		all = append(all, registry, registry) // SCAN may return a key twice
	}
	return all, p.failure
}

func (p *process) Report(c Cycle) { p.reported = append(p.reported, c) }

// holds makes an owner of the process hold a path.
func (p *process) holds(path string, o owner.ID) {
	p.held = append(p.held, Held{path, strings.HasPrefix(path, "seat"), &lock{of: p, path: path}, o})
	p.world.holders[path] = append(p.world.holders[path], p.own.Registry)
}

// waits makes a goroutine of the process wait for a path.
func (p *process) waits(path string, o owner.ID) *deadlock.Call {
	c := &deadlock.Call{Lock: &lock{of: p, path: path}, Goroutine: o, Owner: o, Since: p.clock.Now()}
	_ = p.graph.Enter(c) // it has no place in a local queue, so it closes no cycle
	return c
}

// record makes each process write its record.
func (w *world) record(t *testing.T, all []*process) {
	t.Helper()
	for _, p := range all {
		text, err := json.Marshal(presence.Record{PID: p.own.PID, Waits: p.Waits()})
		require.NoError(t, err)
		w.records[p.own.Registry] = string(text)
	}
}

func path(i, n int) string { return string(rune('a' + i%n)) }

// paths returns what the calls of a cycle wait for.
func (c Cycle) paths() (all []string) {
	for _, w := range c {
		all = append(all, w.Path)
	}
	slices.Sort(all)
	return all
}

// ring is a ring of owners in some processes, each of which holds a path and waits for that of the next one, for a second.
func ring(t *testing.T, owners, processes int) (w *world, all []*process, calls []*deadlock.Call) {
	t.Helper()
	w = newWorld()
	all = w.processes(processes)
	for i := range owners {
		all[i%processes].holds(path(i, owners), owner.ID(i+1))
	}
	for i := range owners {
		calls = append(calls, all[i%processes].waits(path(i+1, owners), owner.ID(i+1)))
	}
	<-time.After(presence.Lasting)
	w.record(t, all)
	return w, all, calls
}

// Each process that has a call in the cycle reports it, once. Others find it, too.
func TestDetector_FindsCyclesOverProcesses(t *testing.T) {
	for name, c := range map[string]struct{ owners, processes int }{"two": {2, 2}, "five": {5, 5}, "five in two": {5, 2}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w, all, calls := ring(t, c.owners, c.processes)
				var want []string
				for i := range c.owners {
					want = append(want, path(i, c.owners))
				}
				for _, p := range all {
					for range 2 {
						p.Look(t.Context())
						require.Len(t, p.reported, 1)
					}
					found := p.reported[0]
					require.Equal(t, want, found.paths())
					for i, wait := range found {
						require.Contains(t, found[(i+1)%len(found)].Holds, wait.Path)
						require.NotZero(t, wait.From.PID)
						require.Regexp(t, `^goroutine \d$`, wait.Owner)
						require.WithinDuration(t, time.Now(), time.UnixMicro(wait.Since), time.Minute)
					}
				}
				bystander := w.processes(c.processes + 1)[c.processes]
				bystander.Look(t.Context())
				require.Zero(t, bystander.asked, "who waits for nobody asks nobody")
				found, err := bystander.All(t.Context(), bystander.registries)
				require.NoError(t, err)
				require.Len(t, found, 1)
				require.Equal(t, want, found[0].paths())
				require.Equal(t, 2*c.processes, bystander.read, "each of them in two looks")
				all[1].read = 0
				own, err := all[1].All(t.Context(), all[1].registries)
				require.NoError(t, err)
				require.Equal(t, 2*(c.processes-1), all[1].read, "its own needs no reading")
				require.Equal(t, found[0].name(), own[0].name(), "wherever it begins")

				all[0].graph.Leave(calls[0])
				w.record(t, all)
				found, err = bystander.All(t.Context(), bystander.registries)
				require.NoError(t, err)
				require.Empty(t, found)
			})
		})
	}
}

// An owner may hold many paths, as AcquireAll does. Whichever of them the cycle is about, it is found.
func TestDetector_AnOwnerHoldsManyPaths(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		all := w.processes(2)
		for i := range 100 {
			all[0].holds(fmt.Sprintf("many %02d", i), 1)
		}
		all[1].holds("one", 2)
		all[0].waits("one", 1)
		all[1].waits("many 99", 2)
		<-time.After(presence.Lasting)
		w.record(t, all)
		for _, p := range all {
			p.Look(t.Context())
			require.Len(t, p.reported, 1)
		}
	})
}

// A cycle counts if it lasts for half a second with the same calls.
func TestDetector_LooksTwice(t *testing.T) {
	for name, c := range map[string]struct {
		happens func(w *world, all []*process, calls []*deadlock.Call)
		want    int
	}{
		"nothing":       {func(*world, []*process, []*deadlock.Call) {}, 1},
		"the call ends": {func(_ *world, all []*process, calls []*deadlock.Call) { all[0].graph.Leave(calls[0]) }, 0},
		"the other one ends": {func(w *world, _ []*process, _ []*deadlock.Call) {
			w.records["registry 1"] = `{"pid": 2}`
		}, 0},
		"the other one comes again": {func(w *world, _ []*process, _ []*deadlock.Call) {
			w.records["registry 1"] = strings.Replace(w.records["registry 1"], `"since":`, `"since":1`, 1)
		}, 0},
		"another process gets the path": {func(w *world, _ []*process, _ []*deadlock.Call) {
			w.holders["b"] = []string{"registry 2"}
		}, 0},
	} {
		for how, find := range map[string]func(t *testing.T, p *process) []Cycle{
			"Look": func(t *testing.T, p *process) []Cycle {
				t.Helper()
				p.Look(t.Context())
				return p.reported
			},
			"All": func(t *testing.T, p *process) []Cycle {
				t.Helper()
				found, err := p.All(t.Context(), p.registries)
				require.NoError(t, err)
				return found
			},
		} {
			t.Run(name+"/"+how, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					w, all, calls := ring(t, 2, 2)
					time.AfterFunc(deadlock.SecondLook/2, func() {
						w.mu.Lock()
						defer w.mu.Unlock()
						c.happens(w, all, calls)
					})
					began := time.Now()
					require.Len(t, find(t, all[0]), c.want)
					require.Equal(t, deadlock.SecondLook, time.Since(began))
				})
			})
		}
	}
}

// There is no second look when the context has ended, as it does when the registry is closed.
func TestDetector_EndsAtClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, all, _ := ring(t, 2, 2)
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		all[0].Look(ctx)
		require.Empty(t, all[0].reported)
		require.Equal(t, 2, all[0].asked, "for each of the two paths")
	})
}

// A chain ends at a holder without a record, such as Java, and at a registry whose record cannot be read.
func TestDetector_ChainsEndAtUnknownHolders(t *testing.T) {
	for _, text := range []string{"", "no record", `{"pid": 2, "waits": [{"path": "a", "holds": ["c"]}]}`} {
		synctest.Test(t, func(t *testing.T) {
			w, all, _ := ring(t, 2, 2)
			w.records["registry 1"] = text
			all[0].Look(t.Context())
			require.Empty(t, all[0].reported)
			require.Equal(t, 1, all[0].asked)
		})
	}
}

// A call that has waited for less than a second, or whose owner holds nothing, is not in the record.
func TestDetector_TellsOfLastingWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newWorld().processes(1)[0]
		p.holds("a", 1)
		p.holds("c", 2)
		p.holds("b", 2)
		p.holds("b", 2) // both sides of it
		calls := []*deadlock.Call{p.waits("b", 1), nil, p.waits("a", 3)}
		<-time.After(presence.Lasting / 2)
		calls[1] = p.waits("a", 2)
		require.Empty(t, p.Waits())
		<-time.After(presence.Lasting / 2)
		require.Len(t, p.Waits(), 1)
		<-time.After(presence.Lasting / 2)
		waits := p.Waits()
		require.Len(t, waits, 2, "the third one holds nothing")
		require.Equal(t, "b", waits[0].Path, "the oldest one first")
		require.Equal(t, []string{"a"}, waits[0].Holds)
		require.Equal(t, "goroutine 2", waits[1].Owner)
		require.Equal(t, []string{"b", "c"}, waits[1].Holds)
		require.True(t, p.graph.Leave(calls[0]), "it was recorded")
		require.False(t, p.graph.Leave(calls[2]))

		other := &process{}
		for _, h := range p.held {
			h.Lock.(*lock).of = other
		}
		calls[1].Lock = &lock{of: other}
		require.Empty(t, p.Waits(), "it is another registry's")
	})
}

func TestDetector_TellsOfNotTooMany(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newWorld().processes(1)[0]
		for i := range presence.MostWaits + 50 {
			o := owner.ID(i + 1)
			p.holds(fmt.Sprint("held ", i), o)
			p.waits("a", o)
			<-time.After(time.Millisecond)
		}
		for i := range 2 * mostHolds {
			p.holds(fmt.Sprint("more ", i), 1)
		}
		<-time.After(presence.Lasting)
		waits := p.Waits()
		require.Len(t, waits, presence.MostWaits)
		require.Equal(t, "goroutine 1", waits[0].Owner)
		require.Len(t, waits[0].Holds, mostHolds)
	})
}

// One look reads no more than about a thousand calls, however long the chain is.
func TestDetector_ReadsNotTooMuch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		p := w.processes(1)[0]
		p.holds("0", 1)
		p.waits("1", 1)
		for i := 1; i < 2*mostSeen; i++ {
			registry := fmt.Sprint("other ", i)
			w.holders[strconv.Itoa(i)] = []string{registry}
			w.records[registry] = fmt.Sprintf(`{"pid": 1, "waits": [{"path": "%d", "holds": ["%d"]}]}`, i+1, i)
		}
		<-time.After(presence.Lasting)
		p.Look(t.Context())
		require.Equal(t, mostSeen, p.asked)
	})
}

// A call that is in two cycles is reported with one of them.
func TestDetector_TwoCyclesOfACall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		all := w.processes(3)
		for i, p := range all {
			p.holds(path(i, 3), owner.ID(i+1))
		}
		all[2].holds("b", 3) // readers of b
		all[0].waits("b", 1)
		all[1].waits("a", 2)
		all[2].waits("a", 3)
		<-time.After(presence.Lasting)
		w.record(t, all)
		for _, p := range all {
			p.Look(t.Context())
			require.Len(t, p.reported, 1)
			require.Equal(t, []string{"a", "b"}, p.reported[0].paths())
		}
		found, err := all[0].All(t.Context(), all[0].registries)
		require.NoError(t, err)
		require.Len(t, found, 2)
	})
}

// Each holder of a semaphore may end a wait for it. So a cycle counts only when all of them are in such cycles.
func TestDetector_Semaphores(t *testing.T) {
	for name, c := range map[string]struct {
		happens func(w *world, all []*process)
		found   bool
	}{
		"each holder waits":           {func(*world, []*process) {}, true},
		"a holder does not wait":      {func(_ *world, all []*process) { all[1].holds("seat", 9) }, false},
		"one that waits for others":   {func(_ *world, all []*process) { all[2].holds("seat", 8); all[2].waits("free", 8) }, false},
		"a process without a record":  {func(w *world, _ []*process) { w.holders["seat"] = append(w.holders["seat"], "java") }, false},
		"more holders than are named": {func(w *world, _ []*process) { w.holders["seat"] = append(w.holders["seat"], "") }, false},
		"a hold that blocks two calls": {func(_ *world, all []*process) {
			all[0].holds("seat", 9) // not in a call
			all[0].waits("door", 1) // with the context of the first hold
		}, false},
		"two holds of a call":   {func(_ *world, all []*process) { all[0].holds("seat", 1) }, true},
		"the semaphore is free": {func(w *world, _ []*process) { w.holders["seat"] = nil }, false},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld()
				all := w.processes(3)
				all[0].holds("seat", 1)
				all[1].holds("seat", 2)
				all[2].holds("door", 3)
				all[0].waits("door", 1)
				all[1].waits("seat", 2)
				all[2].waits("seat", 3)
				c.happens(w, all)
				<-time.After(presence.Lasting)
				w.record(t, all)
				for i, p := range all {
					p.Look(t.Context())
					found, err := p.All(t.Context(), p.registries)
					require.NoError(t, err)
					if !c.found {
						require.Empty(t, found)
						require.Empty(t, p.reported)
						continue
					}
					require.NotEmpty(t, found)
					require.Len(t, p.reported, 1)
					require.Contains(t, p.reported[0].paths(), "seat")
					require.True(t, i == 1 || slices.Contains(p.reported[0].paths(), "door"), "who has a seat, and waits for one, is in it")
				}
			})
		})
	}
}

// After an error that does not pass, such as a missing permission, ten minutes go by before the next look: each attempt leaves a
// line in the server's log.
func TestDetector_Errors(t *testing.T) {
	for name, c := range map[string]struct {
		failure error
		pause   time.Duration
	}{
		"transient": {fault.AsUnavailable(errors.New("LOADING")), 0},
		"lasting":   {fault.Join(fault.Lasting, errors.New("NOPERM")), presence.Denied},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				_, all, _ := ring(t, 2, 2)
				p := all[0]
				p.failure = c.failure
				p.Look(t.Context())
				require.Empty(t, p.reported)
				_, err := p.All(t.Context(), p.registries)
				require.ErrorIs(t, err, c.failure)
				p.failure, p.asked = nil, 0
				if c.pause > 0 {
					<-time.After(c.pause - 1)
					p.Look(t.Context())
					require.Zero(t, p.asked)
					<-time.After(1)
				}
				p.Look(t.Context())
				require.Len(t, p.reported, 1)
			})
		})
	}
}
