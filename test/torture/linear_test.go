package torture

import (
	"encoding/json"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

var (
	seed = flag.Uint64("seed", 0, "what the storms begin with; 0: something new, which is printed")
	soak = flag.Duration("soak", 0, "how long TestSoak takes")
	full = flag.Bool("full", false, "all cases of turns and fleets")
)

// firstSeed is the seed given by -seed, or a new one.
func firstSeed() uint64 {
	if *seed != 0 {
		return *seed
	}
	return rand.Uint64()>>1 | 1
}

// weathered plays a storm and checks what was seen in it. On a busy machine most calls give up before their turn, so that too
// little is seen: then it plays another storm, after checking what the first one showed.
func weathered(t *testing.T, w weather) {
	t.Helper()
	const most = 8
	for range most {
		s := weatheredOnce(t, w)
		if s.poor == "" || t.Failed() {
			return
		}
		t.Log("another one: ", s.poor)
		w.seed += 100
	}
	t.Errorf("each of %d storms had too little to be a test", most)
}

func weatheredOnce(t *testing.T, w weather) *storm {
	t.Helper()
	t.Logf("repeat with -seed %d", w.seed)
	all, s := blow(t, w)
	began := time.Now()
	wrong := judge(all, s.restarted)
	t.Logf("checked in %v", time.Since(began))
	if len(wrong) > 0 {
		t.Errorf("the history is in %s", keep(t, w, all, s.restarted))
	}
	for _, x := range wrong {
		t.Error(x)
	}
	return s
}

// keep writes a history to a file for whoever looks into the failure.
func keep(t *testing.T, w weather, all []section, restarted []span) string {
	t.Helper()
	name := filepath.Join(os.TempDir(), fmt.Sprintf("lockregistry-history-%d.json", w.seed))
	restarts := make([][2]int64, len(restarted))
	for i, r := range restarted {
		restarts[i] = [2]int64{r.from, r.to}
	}
	text, err := json.MarshalIndent(map[string]any{"seed": w.seed, "sections": all, "restarts": restarts}, "", " ")
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(name, text, 0o600))
	return name
}

func TestLinearizable(t *testing.T) { //nolint:tparallel // beside each other, but not beside all other tests
	first := firstSeed()
	for i, w := range []weather{
		{system: library},
		{system: redisson, restarts: true},
		{system: library, mild: true}, // calls that wait in long queues
		{system: redisson, mild: true},
	} {
		w.seed, w.lasts, w.outside = first+uint64(i), 6*time.Second, 1
		t.Run(fmt.Sprintf("%s, restarts: %t, mild: %t", w.system.name, w.restarts, w.mild), func(t *testing.T) {
			t.Parallel()
			weathered(t, w)
		})
	}
}

// TestLinearizableFindsFault expects the same storm to find fault with a lock whose holds carry only the id of their process,
// and whose leases count from the reply.
func TestLinearizableFindsFault(t *testing.T) {
	first := firstSeed()
	for i := range uint64(4) {
		all, s := blow(t, weather{system: naive, seed: first + i, lasts: 2 * time.Second})
		if wrong := judge(all, s.restarted); len(wrong) > 0 {
			t.Logf("after %d storms: %s", i+1, wrong[0])
			return
		}
	}
	t.Error("nothing is wrong with the naive lock, they say")
}

// TestModel tests the model itself: which histories it must explain, and which it must not.
func TestModel(t *testing.T) {
	hold := func(called, granted, until, ended int64) section {
		return section{Called: called, Granted: granted, Until: until, Ended: ended}
	}
	counted := func(s section, token uint64, wrote bool) section {
		s.Looked, s.Token, s.Wrote, s.Changed, s.Acted = true, token, wrote, !wrote, true
		return s
	}
	reads := func(called, granted, until, ended int64) section {
		s := hold(called, granted, until, ended)
		s.Reads = true
		return s
	}
	under := func(hold uint64, s section) section {
		s.Under = hold
		return s
	}
	fenced := func(token uint64, s section) section {
		s.Fenced, s.Fence = true, token
		return s
	}
	named := func(name uint64, s section) section {
		s.Hold = name
		return s
	}
	of := func(process int, s section) section {
		s.Process = process
		return s
	}
	for name, c := range map[string]struct {
		of        []section
		restarted []span
		right     bool
	}{
		"one after the other":               {of: []section{hold(1, 2, 3, 4), hold(1, 5, 6, 7)}, right: true},
		"handed over before unlock is done": {of: []section{hold(1, 2, 4, 9), hold(1, 5, 6, 7)}, right: true},
		"at once":                           {of: []section{hold(1, 2, 6, 7), hold(1, 5, 8, 9)}},
		"one within the other":              {of: []section{hold(1, 2, 9, 10), hold(1, 5, 6, 7)}},
		"over before it was noticed":        {of: []section{hold(1, 5, 4, 6), hold(1, 2, 8, 9)}, right: true},
		"at once, across a restart": {
			of: []section{hold(1, 2, 9, 10), hold(1, 6, 7, 8)}, restarted: []span{{3, 5}}, right: true,
		},
		"at once, before a restart": {of: []section{hold(1, 2, 9, 10), hold(1, 3, 7, 8)}, restarted: []span{{4, 5}}},
		"at once, after a restart":  {of: []section{hold(6, 7, 10, 11), hold(6, 8, 9, 10)}, restarted: []span{{3, 5}}},
		"counting": {
			of: []section{counted(hold(1, 2, 3, 4), 0, true), counted(hold(1, 5, 6, 7), 1, true)}, right: true,
		},
		"reading at once":          {of: []section{reads(1, 2, 9, 10), reads(1, 3, 8, 9), reads(1, 4, 12, 13)}, right: true},
		"writing while one reads":  {of: []section{reads(1, 2, 9, 10), hold(3, 4, 5, 6)}},
		"reading while one writes": {of: []section{hold(1, 2, 9, 10), reads(3, 4, 5, 6)}},
		"writing between readers":  {of: []section{reads(1, 2, 4, 9), hold(1, 5, 6, 12), reads(3, 7, 8, 9)}, right: true},
		"writing after one of two": {of: []section{reads(1, 2, 4, 5), reads(1, 3, 8, 9), hold(1, 6, 7, 10)}},
		"reading under one's own":  {of: []section{named(1, hold(1, 2, 9, 10)), under(1, reads(3, 4, 5, 6))}, right: true},
		"reading under another's":  {of: []section{named(1, hold(1, 2, 9, 10)), of(1, under(1, reads(3, 4, 5, 6)))}},
		"reading on with others": {
			of:    []section{named(1, hold(1, 2, 5, 7)), under(1, reads(3, 4, 12, 13)), reads(3, 8, 9, 10)},
			right: true,
		},
		"reading on, not yet with others": {
			of: []section{named(1, hold(1, 2, 8, 9)), under(1, reads(3, 4, 12, 13)), reads(3, 6, 10, 11)},
		},
		"another writing while one reads on": {
			of: []section{named(1, hold(1, 2, 5, 7)), under(1, reads(3, 4, 12, 13)), hold(3, 8, 9, 10)},
		},
		"sharing what the server has forgotten": {
			of:        []section{reads(1, 2, 12, 13), of(1, hold(6, 7, 14, 15)), reads(8, 9, 10, 11)},
			restarted: []span{{3, 5}}, right: true,
		},
		"reading anew while one writes, after a restart": {
			of:        []section{reads(1, 2, 12, 13), of(1, hold(6, 7, 14, 15)), of(2, reads(8, 9, 10, 11))},
			restarted: []span{{3, 5}},
		},
		"the counter changing while one reads": {
			of: []section{counted(hold(1, 2, 9, 10), 0, true), counted(reads(1, 2, 3, 4), 0, false)},
		},
		"readers that see what one who was late has counted": {
			of: []section{counted(reads(1, 2, 9, 10), 1, true), counted(reads(1, 3, 6, 7), 0, true)}, right: true,
		},
		"tokens that grow": {of: []section{fenced(5, hold(1, 2, 3, 4)), fenced(6, hold(1, 5, 6, 7))}, right: true},
		"a smaller token":  {of: []section{fenced(6, hold(1, 2, 3, 4)), fenced(5, hold(1, 5, 6, 7))}},
		"a smaller token of a hold that was lost at once": {
			of: []section{fenced(6, hold(1, 2, 3, 4)), fenced(5, hold(1, 5, 4, 7))}, right: true,
		},
		"a smaller token of a later call, lost at once": {of: []section{fenced(6, hold(1, 2, 3, 4)), fenced(5, hold(4, 5, 4, 7))}},
		"a token of two holds":                          {of: []section{fenced(5, hold(1, 2, 3, 4)), fenced(5, hold(1, 5, 4, 7))}},
		"a hold without a token":                        {of: []section{fenced(0, hold(1, 2, 3, 4))}},
		"a hold that was lost before its token was seen": {
			of: []section{fenced(0, hold(1, 2, 1, 4))}, right: true,
		},
		"a smaller token of what the server has forgotten": {
			of:        []section{of(1, fenced(5, hold(1, 2, 8, 13))), fenced(9, hold(6, 7, 8, 9)), of(1, fenced(6, hold(8, 9, 10, 13)))},
			restarted: []span{{3, 5}}, right: true,
		},
		"a token of two holds, one of them forgotten": {
			of:        []section{of(1, fenced(5, hold(1, 2, 8, 13))), fenced(9, hold(6, 7, 8, 9)), of(1, fenced(9, hold(8, 9, 10, 13)))},
			restarted: []span{{3, 5}},
		},
		"not seeing what was counted": {of: []section{counted(hold(1, 2, 3, 4), 0, true), counted(hold(1, 5, 6, 7), 0, false)}},
	} {
		wrong := judge(c.of, c.restarted)
		require.Equal(t, c.right, len(wrong) == 0, "%s: %v", name, wrong)
	}
}

// TestReadWriteLinearizable adds readers, and writers that also read and then give up writing.
func TestReadWriteLinearizable(t *testing.T) { //nolint:tparallel // beside each other, but not beside all other tests
	first := firstSeed()
	t.Run("library", func(t *testing.T) {
		t.Parallel()
		weathered(t, weather{system: sharing, seed: first, lasts: 5 * time.Second, outside: 1})
	})
	t.Run("library with restarts", func(t *testing.T) {
		t.Parallel()
		weathered(t, weather{system: sharing, seed: first + 1, lasts: 4 * time.Second, outside: 1, restarts: true})
	})
	t.Run("a lock without a flaw", func(t *testing.T) {
		t.Parallel()
		weathered(t, weather{system: flawed(soundly), seed: first, lasts: 2 * time.Second, dense: true})
	})
	for _, flaw := range flaws {
		t.Run(flaw, func(t *testing.T) {
			t.Parallel()
			for i := range uint64(24) {
				all, s := blow(t, weather{system: flawed(flaw), seed: first + i, lasts: 2 * time.Second, dense: true})
				if wrong := judge(all, s.restarted); len(wrong) > 0 {
					t.Logf("after %d storms: %s", i+1, wrong[0])
					return
				}
			}
			t.Error("nothing is wrong, they say")
		})
	}
}

// TestSoak plays storm after storm for as long as -soak says, and now and then a failover. Each has a seed of its own, derived
// from -seed.
func TestSoak(t *testing.T) {
	next := firstSeed()
	for began := time.Now(); time.Since(began) < *soak && !t.Failed(); next++ {
		s := []system{library, sharing, redisson, sharing}[next%4]
		t.Run(fmt.Sprint("seed ", next), func(t *testing.T) {
			if next%5 == 0 {
				another(s, next).check(t)
				return
			}
			weathered(t, weather{
				system: s, seed: next, lasts: 15 * time.Second, outside: 2, restarts: next/4%2 == 0, mild: next/8%2 == 0,
				fenced: next/16%2 == 0 && (s.name != redisson.name || next/4%2 != 0), // its counter does not outlive a restart
			})
		})
	}
}
