package torture

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry"
	"github.com/lockregistry/lockregistry/internal/netfault"
)

// When the outcome of an operation is unknown, the other holds of the path must not be harmed, and nobody must wait for a hold
// that nobody has.

// breakage is a way to lose a reply, and perhaps the command with it.
type breakage struct {
	name     string
	fate     netfault.Fate
	answered bool // the caller learns the outcome all the same
}

var breakages = []breakage{
	{name: "cut before the command", fate: netfault.Fate{Cut: netfault.CutRequest(0)}},
	{name: "cut after the first byte of the command", fate: netfault.Fate{Cut: netfault.CutRequest(1)}},
	{name: "cut before the last byte of the command", fate: netfault.Fate{Cut: netfault.CutRequest(-1)}},
	{name: "cut after the command", fate: netfault.Fate{Cut: netfault.CutRequest(netfault.End)}},
	{name: "cut before the reply", fate: netfault.Fate{Cut: netfault.CutReply(0)}},
	{name: "cut after the first byte of the reply", fate: netfault.Fate{Cut: netfault.CutReply(1)}},
	{name: "cut before the last byte of the reply", fate: netfault.Fate{Cut: netfault.CutReply(-1)}},
	{name: "cut after the reply", fate: netfault.Fate{Cut: netfault.CutReply(netfault.End)}, answered: true},
	{name: "silence instead of the reply", fate: netfault.Fate{Mute: true}},
}

func (b breakage) mute() bool { return b.fate.Mute }

// context returns the context of a call, with a limit if no reply will ever come.
func (b breakage) context(ctx context.Context, s *stage) context.Context {
	if !b.mute() {
		return s.soon(ctx)
	}
	ctx, cancel := context.WithTimeout(ctx, 2*poll)
	s.Cleanup(cancel)
	return ctx
}

// outcome checks the error of a call whose reply was lost.
func (b breakage) outcome(s *stage, err error) {
	s.Helper()
	switch {
	case b.answered:
		s.is(err, nil)
	case b.mute():
		s.is(err, context.DeadlineExceeded)
	default:
		s.fromNetwork(err)
	}
	if b.mute() {
		s.proxy.CutAll() // the network is back
	}
}

func brokenScenes() (scenes []scene) {
	for _, b := range breakages {
		scenes = append(
			scenes,
			scene{name: "obtain/" + b.name, play: b.obtain},
			scene{name: "obtain again/" + b.name, play: b.obtainAgain},
			scene{name: "renew/" + b.name, play: b.renew},
			scene{name: "re-entry/" + b.name, play: b.reenter},
			scene{name: "release/" + b.name, play: b.release},
			scene{name: "release and lock/" + b.name, play: b.releaseAndLock},
		)
	}
	return scenes
}

func (b breakage) obtain(s *stage) {
	s.proxy.Next(netfault.Match{Name: "obtain"}, b.fate)
	ctx := s.owner()
	ok, err := s.a.lock(b.context(ctx, s), s.path, -1, 0)
	b.outcome(s, err)
	if ok != b.answered {
		s.violatedf("locked: %v", ok)
	}
	if ok {
		s.unlocksOnDying(ctx, s.a)
	}
	s.free()
}

// obtainAgain breaks the try that gets the lock after a wait.
func (b breakage) obtainAgain(s *stage) {
	holder, ctx := s.owner(), s.owner()
	s.must(holder, s.b, 0)
	fate := b.fate
	fate.Held = netfault.Hold(false)
	s.proxy.Next(netfault.Match{Name: "obtain"}, netfault.Fate{})
	s.proxy.Next(netfault.Match{Name: "obtain"}, fate)
	got := make(chan error, 1)
	go func() {
		_, err := s.a.lock(s.soon(ctx), s.path, -1, 0)
		got <- err
	}()
	arrives(s, "the second try", fate.Held.Arrived())
	s.unlocks(holder, s.b)
	fate.Held.Release()
	if err := arrives(s, "the lock", got); err != nil {
		s.violatedf("a transient failure ended the wait: %v", err)
		return
	}
	if !s.a.held(s.path) {
		s.violatedf("not held")
	}
	s.unlocksOnDying(ctx, s.a)
	s.free()
}

func (b breakage) renew(s *stage) {
	ctx := s.owner()
	s.must(ctx, s.a, 0)
	alive := s.a.context(ctx, s.path)
	value := s.do("DUMP", keyOf(s.path))
	s.proxy.Next(netfault.Match{Name: "renew"}, b.fate)
	b.outcome(s, s.a.renew(b.context(ctx, s), s.path, longer))
	if !s.a.held(s.path) || alive.Err() != nil {
		s.violatedf("the hold is given up, though its lease is not over")
	}
	if got := s.do("DUMP", keyOf(s.path)); got != value {
		s.violatedf("the key is %q, not %q", got, value)
	}
	s.unlocksOnDying(ctx, s.a)
	s.free()
}

func (b breakage) reenter(s *stage) {
	if !s.system.ours {
		return // the naive lock has no re-entry
	}
	ctx := s.owner()
	s.must(ctx, s.a, 0)
	s.proxy.Next(netfault.Match{Name: "renew"}, b.fate)
	ok, err := s.a.lock(b.context(ctx, s), s.path, -1, 0)
	b.outcome(s, err)
	if ok {
		s.unlocks(ctx, s.a)
	}
	if !s.a.held(s.path) {
		s.violatedf("the outer hold is gone")
	}
	s.unlocksOnDying(ctx, s.a)
	s.free()
}

func (b breakage) release(s *stage) {
	ctx := s.owner()
	s.must(ctx, s.a, 0)
	s.proxy.Next(netfault.Match{Name: "release"}, b.fate)
	b.released(s, s.a.unlock(b.context(ctx, s), s.path))
	s.free()
}

// releaseAndLock is release, followed by a call of the same process that wants the lock.
func (b breakage) releaseAndLock(s *stage) {
	ctx, next := s.owner(), s.owner()
	s.must(ctx, s.a, 0)
	s.proxy.Next(netfault.Match{Name: "release"}, b.fate)
	b.released(s, s.a.unlock(b.context(ctx, s), s.path))
	s.must(next, s.a, longer)
	check := s.unharmed()
	s.do("PING")
	check()
	s.unlocksOnDying(next, s.a)
	s.free()
}

func (b breakage) released(s *stage, err error) {
	if s.system.ours {
		s.released(err)
		if b.mute() {
			s.proxy.CutAll()
		}
		return
	}
	b.outcome(s, err)
}

// delay is a command that arrives after a later hold of its path has begun.
type delay struct {
	cut  bool // the caller does not learn the outcome because its connection breaks, or because it gives up
	same bool // the later hold is of this process, or of another one
	gone bool // the later hold has ended, too
}

func (d delay) String() string {
	choose := func(c bool, yes, no string) string {
		if c {
			return yes
		}
		return no
	}
	return choose(d.gone, "past the end of ", "into ") + "the next hold of " +
		choose(d.same, "the same process", "another process") + ", " + choose(d.cut, "connection cut", "caller gave up")
}

func delayedScenes() (scenes []scene) {
	for i := range 8 {
		d := delay{cut: i&1 != 0, same: i&2 != 0, gone: i&4 != 0}
		scenes = append(
			scenes,
			scene{name: fmt.Sprint("late obtain/", d), play: d.obtain},
			scene{name: fmt.Sprint("late second obtain/", d), play: d.obtainAgain},
			scene{name: fmt.Sprint("late renewal/", d), play: d.renew},
			scene{name: fmt.Sprint("late re-entry/", d), play: d.reenter},
			scene{name: fmt.Sprint("late release/", d), play: d.release},
			scene{name: fmt.Sprint("late second release/", d), play: d.releaseAgain},
		)
	}
	return scenes
}

// lose makes a call whose command the network holds back until the caller knows that there will be no reply.
func (d delay) lose(ctx context.Context, s *stage, h *netfault.Held, call func(ctx context.Context) error) error {
	ctx, cancel := context.WithCancel(s.soon(ctx))
	defer cancel()
	result := make(chan error, 1)
	go func() { result <- call(ctx) }()
	arrives(s, "the command", h.Arrived())
	if !d.cut {
		cancel()
	}
	err := arrives(s, "the end of a call that was cut or cancelled", result)
	s.proxy.CutAll()
	return err
}

// next begins the later hold, delivers the late command, and checks that it does no harm.
func (d delay) next(s *stage, h *netfault.Held) {
	p, ctx := s.b, s.owner()
	if d.same {
		p = s.a
	}
	s.must(ctx, p, longer)
	if d.gone {
		s.unlocks(ctx, p)
		s.deliver(h)
		s.free()
		return
	}
	check := s.unharmed()
	s.deliver(h)
	check()
	s.unlocks(ctx, p)
	s.free()
}

func (s *stage) deliver(h *netfault.Held) {
	s.Helper()
	if reply := h.Deliver(); reply == "" || strings.HasPrefix(reply, "-") {
		s.Fatalf("the late command was not executed: %q", reply)
	}
}

func (d delay) unanswered(s *stage, err error) {
	if d.cut {
		s.fromNetwork(err)
	} else {
		s.is(err, context.Canceled)
	}
}

func (d delay) obtain(s *stage) {
	h := netfault.Hold(d.cut)
	s.proxy.Next(netfault.Match{Name: "obtain"}, netfault.Fate{Held: h})
	d.unanswered(s, d.lose(s.owner(), s, h, func(ctx context.Context) error {
		_, err := s.a.lock(ctx, s.path, -1, 0)
		return err
	}))
	d.next(s, h)
}

func (d delay) obtainAgain(s *stage) {
	holder := s.owner()
	s.must(holder, s.b, 0)
	h := netfault.Hold(d.cut)
	s.proxy.Next(netfault.Match{Name: "obtain"}, netfault.Fate{})
	s.proxy.Next(netfault.Match{Name: "obtain"}, netfault.Fate{Held: h})
	ctx, cancel := context.WithCancel(s.owner())
	defer cancel()
	err := delay{}.lose(ctx, s, h, func(ctx context.Context) error {
		_, err := s.a.lock(ctx, s.path, -1, 0)
		return err
	})
	s.is(err, context.Canceled)
	s.unlocks(holder, s.b)
	d.next(s, h)
}

func (d delay) renew(s *stage) {
	ctx := s.owner()
	s.must(ctx, s.a, 0)
	h := netfault.Hold(d.cut)
	s.proxy.Next(netfault.Match{Name: "renew"}, netfault.Fate{Held: h})
	d.unanswered(s, d.lose(ctx, s, h, func(ctx context.Context) error { return s.a.renew(ctx, s.path, lease/2) }))
	s.unlocksOnDying(ctx, s.a)
	d.next(s, h)
}

func (d delay) reenter(s *stage) {
	if !s.system.ours {
		return // the naive lock has no re-entry
	}
	ctx := s.owner()
	s.must(ctx, s.a, 0)
	h := netfault.Hold(d.cut)
	s.proxy.Next(netfault.Match{Name: "renew"}, netfault.Fate{Held: h})
	d.unanswered(s, d.lose(ctx, s, h, func(ctx context.Context) error {
		_, err := s.a.lock(ctx, s.path, -1, 0)
		return err
	}))
	s.unlocksOnDying(ctx, s.a)
	d.next(s, h)
}

func (d delay) lost(s *stage, err error) {
	if s.system.ours {
		s.released(err)
		return
	}
	d.unanswered(s, err)
}

func (d delay) release(s *stage) {
	ctx := s.owner()
	s.must(ctx, s.a, 0)
	h := netfault.Hold(d.cut)
	s.proxy.Next(netfault.Match{Name: "release"}, netfault.Fate{Held: h})
	d.lost(s, d.lose(ctx, s, h, func(ctx context.Context) error { return s.a.unlock(ctx, s.path) }))
	d.next(s, h)
}

// releaseAgain delays the retry of the removal in the background, too.
func (d delay) releaseAgain(s *stage) {
	if !s.system.ours {
		return // the naive lock tries once
	}
	ctx := s.owner()
	s.must(ctx, s.a, 0)
	first, second := netfault.Hold(d.cut), netfault.Hold(true)
	s.proxy.Next(netfault.Match{Name: "release"}, netfault.Fate{Held: first})
	s.proxy.Next(netfault.Match{Name: "release"}, netfault.Fate{Held: second})
	d.lost(s, d.lose(ctx, s, first, func(ctx context.Context) error { return s.a.unlock(ctx, s.path) }))
	arrives(s, "the second removal", second.Arrived())
	s.must(ctx, s.a, longer)
	check := s.unharmed()
	s.deliver(second)
	check()
	s.unlocks(ctx, s.a)
	d.next(s, first)
}

// untilKnown expects that no other owner in the process gets the lock until a removal has succeeded.
func untilKnown(s *stage) {
	if !s.system.ours {
		return // the naive lock does not care
	}
	ctx, next := s.owner(), s.owner()
	s.must(ctx, s.a, 0)
	s.proxy.All(netfault.Match{Name: "release"}, netfault.Fate{Cut: netfault.CutRequest(0)})
	s.fromNetwork(s.a.unlock(s.soon(ctx), s.path))
	s.await("several removals", func() bool { return len(s.proxy.Seen(netfault.Match{Name: "release"})) >= 3 })
	if ok, err := s.a.lock(s.soon(next), s.path, 0, 0); ok || !errors.Is(err, lockregistry.ErrUnavailable) {
		s.violatedf("locked: %v, %v, though the key may still be there, and nobody knows", ok, err)
	}
	s.proxy.Heal()
	s.must(next, s.a, 0)
	s.unlocks(next, s.a)
	s.free()
}

func allScenes() []scene {
	scenes := append(brokenScenes(), delayedScenes()...)
	return append(scenes, scene{name: "the next owner waits for the removal", play: untilKnown})
}

func TestUnknownOutcomes(t *testing.T) {
	t.Parallel()
	performAll(t, allScenes, library, redisson, sharing)
}

// TestUnknownOutcomesFindFault expects the scenes to fail for a lock whose holds carry only the id of their process.
func TestUnknownOutcomesFindFault(t *testing.T) {
	t.Parallel()
	// Its abandoned grants block the path, and its late commands harm the next hold of the same process.
	names := []string{"obtain/cut before the reply", "obtain/silence instead of the reply"}
	for _, cut := range []bool{true, false} {
		into := delay{same: true, cut: cut}
		for _, op := range []string{"late obtain/", "late renewal/", "late release/"} {
			names = append(names, op+into.String())
		}
		for _, same := range []bool{true, false} {
			names = append(names, "late obtain/"+delay{same: same, cut: cut, gone: true}.String())
		}
	}
	scenes := slices.DeleteFunc(allScenes(), func(s scene) bool { return !slices.Contains(names, s.name) })
	require.Len(t, scenes, len(names))
	perform(t, naive, scenes, func(t *testing.T, _ string, found []string) {
		t.Helper()
		require.NotEmpty(t, found)
	})
}
