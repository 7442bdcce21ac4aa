package torture

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/lockregistry/lockregistry"
)

// Fencing tokens grow with each grant of a path, and no two grants have the same one. That holds whatever is lost, late or
// doubled, whether the lock was handed over in the process, granted in the queue or obtained with others, and across restarts
// of the server.

// misfenced finds holds of a path whose tokens do not grow. A hold that a restarted server has forgotten may be handed on with
// smaller tokens than those of its successor; but no two holds may share a token even then.
func misfenced(path int, of []section, restarted []span) (wrong []string) {
	complain := func(what string, s ...section) {
		wrong = append(wrong, fmt.Sprintf("path %d: %s: %+v", path, what, s))
	}
	of = slices.DeleteFunc(slices.Clone(of), func(s section) bool {
		if s.Fence == 0 && s.Until >= s.Granted {
			complain("a hold has no token", s)
		}
		return s.Fence == 0
	})
	slices.SortFunc(of, func(a, b section) int { return int(a.Granted - b.Granted) })
	owners := map[uint64]section{}
	for i, s := range of {
		if other, taken := owners[s.Fence]; taken {
			complain("two holds have the same token", other, s)
		}
		owners[s.Fence] = s
		forgotten := func(r span) bool { return r.from < s.Granted && r.to > s.Called-int64(forgetful) }
		if slices.ContainsFunc(restarted, forgotten) {
			continue
		}
		for _, earlier := range of[:i] {
			if earlier.Fence > s.Fence && earlier.before(s) {
				complain("a later hold has a smaller token", earlier, s)
				break
			}
		}
	}
	return wrong
}

// before reports whether a hold certainly began before another one, whose call returned later.
func (s section) before(later section) bool {
	return s.Granted < later.Called || s.Until > s.Granted && later.Until > later.Granted
}

// onceOrTogether locks one path or several.
func (w *worker) onceOrTogether() {
	if w.chance(90) {
		w.once()
		return
	}
	paths := w.random.Perm(w.Paths)[:min(w.Paths, 2+w.random.IntN(2))]
	var names []string
	for _, path := range paths {
		names = append(names, strconv.Itoa(path))
	}
	ctx, cancel := context.WithTimeout(context.Background(), w.patience())
	defer cancel()
	called := now()
	h, err := w.process.(libraryProcess).registry.AcquireAll(ctx, names)
	granted := now()
	if err != nil {
		w.vain++
		w.pause(w.some(w.Of.Poll))
		return
	}
	first := w.to(valueProcess{w.process, h}, paths[0])
	first.Called, first.Granted, first.Until = called, granted, granted-1
	first.Fenced, first.alive = true, h.Context(context.Background())
	w.inside(first)
	if w.chance(10) {
		cancel()
	}
	_ = h.Release(ctx)
	first.Ended = now()
	for i, path := range paths {
		s := first.section
		if i > 0 { // only the first path was counted
			s.Path, s.Hold = path, w.holds.Add(1)
			s.Looked, s.Token, s.Wrote, s.Changed, s.Acted = false, 0, false, false, false
		}
		s.Fence = h.TokenOf(names[i])
		w.seen = append(w.seen, s)
	}
}

// patience is how long a call waits.
func (w *worker) patience() time.Duration {
	if w.chance(15) {
		return w.some(w.Of.Lease / 2)
	}
	return 10 * w.Of.Lease
}

// valueProcess knows of one hold.
type valueProcess struct {
	process
	hold *lockregistry.Hold
}

func (p valueProcess) held(string) bool { return p.hold.Remaining() > 0 }

func TestTokensGrow(t *testing.T) { //nolint:tparallel // beside each other, but not beside all other tests
	first := firstSeed()
	for i, w := range []weather{
		{system: library, restarts: true},
		{system: redisson, mild: true},
		{system: sharing},
	} {
		w.seed, w.lasts, w.outside, w.fenced = first+uint64(i), 3*time.Second, 1, true
		t.Run(w.system.name, func(t *testing.T) {
			t.Parallel()
			weathered(t, w)
		})
	}
}
