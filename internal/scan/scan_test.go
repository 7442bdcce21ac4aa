package scan

import (
	"errors"
	"slices"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry/internal/clock"
)

// pages is a server with so many keys on each page of a SCAN that takes some time.
func pages(took time.Duration, name string, sizes ...int) func(cursor string, count int) (Step, error) {
	return func(cursor string, _ int) (s Step, err error) {
		<-time.After(took)
		page, err := strconv.Atoi(cursor)
		for i := range sizes[page] {
			s.Keys = append(s.Keys, name+cursor+"."+strconv.Itoa(i))
		}
		s.Cursor = strconv.Itoa((page + 1) % len(sizes))
		return s, err
	}
}

func newPass(servers ...func(cursor string, count int) (Step, error)) (p *Pass, read *[]string) {
	read = new([]string)
	return &Pass{
		Clock:   clock.New(),
		Pause:   func(d time.Duration) error { <-time.After(d); return nil },
		Servers: servers,
		Pick:    func(key string) (string, bool) { return key, true },
		Read:    func(found []string) error { *read = append(*read, found...); return nil },
		Batch:   3,
	}, read
}

func TestPass_ReadsAllInBatches(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, _ := newPass(pages(0, "a", 2, 0, 5), pages(0, "b", 1))
		var got [][]string
		told := 0
		p.Pick = func(key string) (string, bool) { return "found " + key, key != "a2.3" }
		p.Read = func(found []string) error { got = append(got, slices.Clone(found)); return nil }
		p.Tell = func() error { told++; return nil }
		require.NoError(t, p.Run())
		require.Equal(t, [][]string{
			{"found a0.0", "found a0.1", "found a2.0"}, {"found a2.1", "found a2.2", "found a2.4"}, {"found b0.0"},
		}, got)
		require.Equal(t, 3, told)
	})
}

// Another server has its keys in another order, so the cursor of the one before would skip some.
func TestPass_AnotherServerTakesOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		before, after, steps := pages(0, "a", 1, 1, 1), pages(0, "b", 1, 1), 0
		p, read := newPass(func(cursor string, count int) (s Step, err error) {
			if steps++; steps == 1 {
				return before(cursor, count)
			}
			s, err = after(cursor, count)
			s.Anew = steps == 2
			return s, err
		})
		require.NoError(t, p.Run())
		require.Equal(t, []string{"a0.0", "b1.0", "b0.0", "b1.0"}, *read)
	})
}

// The pass of another server that has taken over counts from its beginning, whatever the cursor was that it was asked with.
func TestPass_ProgressOfAnotherServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, then := range []string{"0", "1"} {
			steps := []Step{{Cursor: "2"}, {Cursor: then, Anew: true}, {Cursor: "2"}, {Cursor: "1"}, {Cursor: "0"}}
			p, _ := newPass(func(string, int) (s Step, err error) {
				s, steps = steps[0], steps[1:]
				return s, nil
			})
			var parts []float64
			p.Watch = func(is Progress) { parts = append(parts, is.Part) }
			require.NoError(t, p.Run())
			require.Equal(t, []float64{0.25, 0, 0.25, 0.5, 1}, parts)
		}
	})
}

// What was found is reported soon, even if it is little.
func TestPass_ReadsLittleAfterHalfASecond(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, _ := newPass(pages(100*time.Millisecond, "a", 1, 0, 0, 0, 0, 0, 0, 0))
		began := time.Now()
		var after time.Duration
		p.Read = func(found []string) error {
			require.Equal(t, []string{"a0.0"}, found)
			after = time.Since(began)
			return nil
		}
		require.NoError(t, p.Run())
		require.Equal(t, readEach, after)
	})
}

func TestPass_TellsOfNamesThatAreTooLong(t *testing.T) {
	var long []string
	p, read := newPass(func(string, int) (Step, error) {
		return Step{Cursor: "0", Keys: []string{"k"}, TooLong: []string{"l"}}, nil
	})
	require.NoError(t, p.Run(), "nobody asks for them")
	p.TooLong = func(names []string) error { long = append(long, names...); return nil }
	require.NoError(t, p.Run())
	require.Equal(t, []string{"l"}, long)
	require.Equal(t, []string{"k", "k"}, *read)
}

func TestPass_EndsWithAnError(t *testing.T) {
	failure := errors.New("enough")
	fails := func() error { return failure }
	for name, set := range map[string]func(p *Pass){
		"Pause":   func(p *Pass) { p.Pause = func(time.Duration) error { return failure } },
		"Read":    func(p *Pass) { p.Read = func([]string) error { return failure } },
		"Tell":    func(p *Pass) { p.Tell = fails },
		"TooLong": func(p *Pass) { p.TooLong = func([]string) error { return failure } },
		"Servers": func(p *Pass) { p.Servers[0] = func(string, int) (Step, error) { return Step{}, failure } },
	} {
		t.Run(name, func(t *testing.T) {
			p, _ := newPass(func(string, int) (Step, error) {
				return Step{Cursor: "0", Keys: []string{"k"}, TooLong: []string{"l"}}, nil
			}, func(string, int) (Step, error) {
				t.Error("the pass has ended")
				return Step{Cursor: "0"}, nil
			})
			p.Batch = 1
			set(p)
			require.ErrorIs(t, p.Run(), failure)
		})
	}
}

// What the first calls have cost is not made up for, whatever it was: each call after them is followed by a pause that depends
// only on that call.
func TestPass_PaceHasNoDebt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, _ := newPass()
		var paused time.Duration
		p.Pause = func(d time.Duration) error {
			paused = d
			<-time.After(d)
			return nil
		}
		took := 4 * time.Millisecond
		call := func() {
			require.NoError(t, p.ask(func() (time.Duration, error) { <-time.After(took); return 0, nil }))
		}
		for range 2000 {
			call()
			require.Zero(t, paused)
		}
		p.looks = unpaced
		call()
		for range 10 {
			call()
			require.Equal(t, 36*time.Millisecond, paused, "it takes a tenth")
		}
		// A call that took long was mostly on its way, or this process was not running: that is not the server's time.
		took = time.Minute
		call()
		call()
		require.Equal(t, (shareOf-1)*mostBusy, paused)
	})
}

// The pace goes by the server's own time, however long the round trip is, and no call keeps the server busy for long. So the
// pass is as quick as a tenth of a core allows.
func TestPass_TakesATenthOfACore(t *testing.T) {
	for name, c := range map[string]struct{ trip, perKey time.Duration }{
		"near": {50 * time.Microsecond, 750 * time.Nanosecond}, "far": {20 * time.Millisecond, 750 * time.Nanosecond},
		"slow server": {time.Millisecond, 10 * time.Microsecond}, "farthest": {100 * time.Millisecond, 500 * time.Nanosecond},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var busy, longest time.Duration
				calls, left := 0, 2_000_000
				p, _ := newPass(func(_ string, count int) (Step, error) {
					took := time.Duration(count) * c.perKey
					<-time.After(c.trip + took)
					busy, longest, calls = busy+took, max(longest, took), calls+1
					if left -= count; left <= 0 {
						return Step{Cursor: "0", Took: took}, nil
					}
					return Step{Cursor: "1", Took: took}, nil
				})
				began := time.Now()
				require.NoError(t, p.Run())
				took := time.Since(began)
				t.Logf("%s for 2 million keys in %d calls, the longest of %s", took, calls, longest)
				least := 10 * (busy - unpaced*c.perKey)
				require.GreaterOrEqual(t, took, least-10*longest)
				require.LessOrEqual(t, longest, max(2*longCall, fewest*c.perKey))
				if c.trip <= time.Millisecond {
					require.Less(t, took, least*11/10, "it is no slower either")
				}
				require.LessOrEqual(t, took, least+unpaced/fewest*c.trip+time.Duration(calls)*c.trip)
				if c.trip >= 20*time.Millisecond {
					require.Less(t, calls, 250+(2_000_000-unpaced)/1900, "it looks at more keys at a time")
				}
			})
		})
	}
}

// What is known before is read, and reported, before the first call of SCAN.
func TestPass_BeginsWithWhatIsKnown(t *testing.T) {
	p, read := newPass()
	p.Known = []string{"k1", "k2", "k3", "k4"}
	told := 0
	p.Tell = func() error { told++; return nil }
	p.Servers = append(p.Servers, func(string, int) (Step, error) {
		require.Equal(t, p.Known, *read)
		require.Equal(t, 2, told)
		return Step{Cursor: "0", Keys: []string{"a"}}, nil
	})
	require.NoError(t, p.Run())
	require.Equal(t, []string{"k1", "k2", "k3", "k4", "a"}, *read)
}

// The progress of a pass shows in the cursors, whose bits count up in reverse; where they do not, only in the number of
// servers.
func TestPass_Watch(t *testing.T) {
	server := func(cursors ...string) func(string, int) (Step, error) {
		return func(string, int) (s Step, err error) {
			s.Cursor, cursors = cursors[0], cursors[1:]
			return s, nil
		}
	}
	parts := func(servers ...func(string, int) (Step, error)) (all []float64) {
		p, _ := newPass(servers...)
		p.Watch = func(now Progress) {
			require.Positive(t, now.Keys)
			all = append(all, now.Part)
		}
		require.NoError(t, p.Run())
		return all
	}
	require.Equal(t, []float64{0.25, 0.5, 0.625, 1}, parts(server("2", "1", "5", "0")))
	require.Equal(t, []float64{0.25, 0.5, 0.75, 1}, parts(server("1", "0"), server("1", "0")))
	require.Equal(t, []float64{0.25, 0, 0, 0.5, 1}, parts(server("1", "2", "7", "0"), server("0")), "no cursor of Redis")
	require.Equal(t, []float64{0, 1}, parts(server("x", "0")))

	var told []Progress
	watched := Watched(t.Context(), func(now Progress) { told = append(told, now) })
	WatcherOf(watched)(Progress{Keys: 1})
	require.Equal(t, []Progress{{Keys: 1}}, told)
	require.Nil(t, WatcherOf(t.Context()))
}

func TestLiteral(t *testing.T) {
	for text, want := range map[string]string{
		"orders": "orders", "a*b?": `a\*b\?`, "[a^]": `\[a\^\]`, `a\b`: `a\\b`, "{a}:b": "{a}:b",
	} {
		require.Equal(t, want, Literal(text))
	}
}
