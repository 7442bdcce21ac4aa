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
func pages(took time.Duration, name string, sizes ...int) func(cursor string) (Step, error) {
	return func(cursor string) (s Step, err error) {
		<-time.After(took)
		page, err := strconv.Atoi(cursor)
		for i := range sizes[page] {
			s.Keys = append(s.Keys, name+cursor+"."+strconv.Itoa(i))
		}
		s.Cursor = strconv.Itoa((page + 1) % len(sizes))
		return s, err
	}
}

func newPass(servers ...func(cursor string) (Step, error)) (p *Pass, read *[]string) {
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

// What was found is told soon, also when little is.
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
	p, read := newPass(func(string) (Step, error) { return Step{Cursor: "0", Keys: []string{"k"}, TooLong: []string{"l"}}, nil })
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
		"Servers": func(p *Pass) { p.Servers[0] = func(string) (Step, error) { return Step{}, failure } },
	} {
		t.Run(name, func(t *testing.T) {
			p, _ := newPass(func(string) (Step, error) {
				return Step{Cursor: "0", Keys: []string{"k"}, TooLong: []string{"l"}}, nil
			}, func(string) (Step, error) {
				t.Error("the pass has ended")
				return Step{Cursor: "0"}, nil
			})
			p.Batch = 1
			set(p)
			require.ErrorIs(t, p.Run(), failure)
		})
	}
}

// What the first calls have cost is not made up for, whatever it was: the calls after them leave the server alone for as long as
// each of them says.
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
			require.NoError(t, p.ask(func() error { <-time.After(took); return nil }))
		}
		for range 2000 {
			call()
			require.Zero(t, paused)
		}
		p.calls = unpaced
		call()
		for range 10 {
			call()
			require.Equal(t, 76*time.Millisecond, paused, "it takes a twentieth")
		}
		// One that took long was under way for long, or this process was not running: that is not the server's time.
		took = time.Minute
		call()
		call()
		require.Equal(t, (shareOf-1)*mostBusy, paused)
	})
}

func TestLiteral(t *testing.T) {
	for text, want := range map[string]string{
		"orders": "orders", "a*b?": `a\*b\?`, "[a^]": `\[a\^\]`, `a\b`: `a\\b`, "{a}:b": "{a}:b",
	} {
		require.Equal(t, want, Literal(text))
	}
}
