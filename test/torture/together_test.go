package torture

import (
	"context"
	"errors"
	"math/rand/v2"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry"
	"github.com/lockregistry/lockregistry/internal/netfault"
)

// AcquireAll gets all paths or none, whatever happens to its commands, and no two callers wait for each other.

// obtainAll is the script that obtains several paths at once.
var obtainAll = netfault.Match{Name: "all"}

// together is a scene with three paths. Process b may hold the middle one.
type together struct {
	*stage
	paths []string // in the order in which they are waited for
}

func gather(s *stage) together {
	return together{s, []string{s.path + "a", s.path + "b", s.path + "c"}}
}

// acquire has process a ask for all three, in another order.
func (s together) acquire(ctx context.Context, opts ...lockregistry.AcquireOption) (*lockregistry.Hold, error) {
	paths := []string{s.paths[2], s.paths[0], s.paths[1]}
	return s.a.(libraryProcess).registry.AcquireAll(ctx, paths, opts...)
}

// at is the scene with one of the paths.
func (s together) at(i int) *stage {
	s.path = s.paths[i]
	return s.stage
}

// ends releases what was acquired, if anything, and checks that all paths are free soon, though leases are long.
func (s together) ends(h *lockregistry.Hold) {
	s.Helper()
	if h != nil {
		if err := h.Release(s.soon(s.Context())); err != nil && !errors.Is(err, lockregistry.ErrUnavailable) {
			s.violatedf("release: %v", err)
		}
	}
	for i := range s.paths {
		s.at(i).free()
	}
}

// atOnce breaks the command for all paths. If the connection ends right after its reply, the readings of the keys, which follow
// in the same pipeline, are lost: then the call fails, too.
func (b breakage) atOnce(s *stage) {
	all := gather(s)
	s.proxy.Next(obtainAll, b.fate)
	h, err := all.acquire(b.context(s.Context(), s))
	switch {
	case !b.answered && err == nil:
		s.violatedf("acquired although nothing was answered")
	case err != nil && !b.mute() && !errors.Is(err, lockregistry.ErrUnavailable):
		s.violatedf("an error of the network is taken for another: %v", err)
	}
	if b.mute() {
		s.proxy.CutAll()
	}
	all.ends(h)
}

// inTurn breaks the try that gets the second path, while the call holds the first one.
func (b breakage) inTurn(s *stage) {
	all, holder := gather(s), s.owner()
	s.must(holder, all.at(1).b, 0)
	got := make(chan *lockregistry.Hold, 1)
	go func() {
		h, err := all.acquire(s.soon(s.Context()))
		if err != nil {
			s.Error("the wait ended: ", err)
		}
		got <- h
	}()
	second := netfault.Match{Name: "obtain", Key: keyOf(all.paths[1])}
	s.await("the second path is waited for", func() bool { return s.times(second) > 0 })
	s.proxy.Next(second, b.fate)
	s.passes(holder, s.b)
	if b.mute() {
		wait(2 * poll)
		s.proxy.CutAll()
	}
	all.ends(arrives(s, "all paths", got))
}

// abandoned ends a call that holds the first path and waits for the second, and breaks the release of the first.
func (b breakage) abandoned(s *stage) {
	all, holder := gather(s), s.owner()
	s.must(holder, all.at(1).b, 0)
	ctx, cancel := context.WithCancel(s.soon(s.Context()))
	defer cancel()
	result := make(chan error, 1)
	go func() {
		_, err := all.acquire(ctx)
		result <- err
	}()
	s.await("the call has the first path", func() bool { return s.do("EXISTS", keyOf(all.paths[0])) == "1" })
	s.await("the second path is waited for", func() bool { return s.hasTicket(s.a) })
	s.proxy.Next(netfault.Match{Name: "release", Key: keyOf(all.paths[0])}, b.fate)
	cancel()
	if err := arrives(s, "the end of the wait", result); !errors.Is(err, context.Canceled) {
		s.violatedf("the wait ended: %v", err)
	}
	if b.mute() {
		s.proxy.CutAll()
	}
	for _, i := range []int{0, 2} {
		all.at(i).free()
	}
	s.unlocks(holder, all.at(1).b)
	all.ends(nil)
}

// atOnce delays the command for all paths until a later hold of one of them.
func (d delay) atOnce(s *stage) {
	all, h := gather(s), netfault.Hold(d.cut)
	s.proxy.Next(obtainAll, netfault.Fate{Held: h})
	err := d.lose(s.Context(), s, h, func(ctx context.Context) error {
		_, err := all.acquire(ctx)
		return err
	})
	if err == nil {
		s.violatedf("acquired, though nobody knows the outcome")
	}
	d.next(all.at(1), h)
	all.ends(nil)
}

// oneIsTaken: another process has one of the paths.
func oneIsTaken(s *stage) {
	all, holder := gather(s), s.owner()
	s.must(holder, all.at(1).b, 0)
	for _, opts := range [][]lockregistry.AcquireOption{{lockregistry.NoWait()}, {lockregistry.Wait(4 * poll)}} {
		if _, err := all.acquire(s.soon(s.Context()), opts...); !errors.Is(err, lockregistry.ErrTaken) {
			s.violatedf("acquired: %v", err)
		}
		for _, i := range []int{0, 2} {
			all.at(i).free()
		}
	}
	s.unlocks(holder, all.at(1).b)
	all.ends(nil)
}

func togetherScenes() []scene {
	scenes := []scene{{name: "one is taken", play: oneIsTaken}}
	for _, b := range breakages {
		scenes = append(
			scenes,
			scene{name: "at once/" + b.name, play: b.atOnce},
			scene{name: "in turn/" + b.name, play: b.inTurn},
			scene{name: "abandoned/" + b.name, play: b.abandoned},
		)
	}
	for i := range 8 {
		d := delay{cut: i&1 != 0, same: i&2 != 0, gone: i&4 != 0}
		scenes = append(scenes, scene{name: "late/" + d.String(), play: d.atOnce})
	}
	return scenes
}

func TestAllOrNone(t *testing.T) {
	t.Parallel()
	performAll(t, togetherScenes, library, redisson)
}

// TestNobodyWaitsForEachOther has all callers want several of a few paths, in any order, with leases too long to end in the
// test.
func TestNobodyWaitsForEachOther(t *testing.T) {
	t.Parallel()
	const few, lasts, most = 4, 2 * time.Second, 20 * time.Second
	server := serve(t)
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var times atomic.Int64
	var running sync.WaitGroup
	first, began := firstSeed(), time.Now()
	t.Logf("repeat with -seed %d", first)
	for i := range 3 {
		p := start(t, library, calm, server.Addr(), settings{Lease: time.Hour, Poll: poll, Handoff: -1})
		r := p.(libraryProcess).registry
		for k := range 4 {
			random := rand.New(rand.NewPCG(first, uint64(4*i+k)))
			running.Go(func() {
				for time.Since(began) < lasts {
					var paths []string
					for _, path := range random.Perm(few)[:2+random.IntN(2)] {
						paths = append(paths, strconv.Itoa(path))
					}
					h, err := r.AcquireAll(ctx, paths)
					if err != nil {
						t.Error(err)
						return
					}
					wait(time.Duration(random.Int64N(int64(2 * time.Millisecond))))
					if err := h.Release(context.Background()); err != nil {
						t.Error(err)
					}
					times.Add(1)
				}
			})
		}
	}
	all := make(chan struct{})
	go func() {
		running.Wait()
		close(all)
	}()
	select {
	case <-all:
	case <-time.After(lasts + most):
		t.Errorf("calls wait for each other, after %d that did not", times.Load())
	}
	stop()
	<-all
	t.Logf("%d calls got their paths", times.Load())
	for i := range few { // calls that were cancelled release what they had in the background
		require.Eventually(t, func() bool {
			return server.Command(t, "EXISTS", keyOf(strconv.Itoa(i))) == "0"
		}, 20*time.Second, time.Millisecond)
	}
}
