package main_test

import (
	"context"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry"
)

// fill makes keys that have nothing to do with locks.
func (s server) fill(t *testing.T, keys int) {
	t.Helper()
	const script = "for i = ARGV[1], ARGV[1] + 99999 do redis.call('SET', 'other:' .. i, '1') end"
	for i := 0; i < keys; i += 100_000 {
		s.Command(t, "EVAL", script, "0", strconv.Itoa(i))
	}
}

// Among a million other keys, what records know is there at once; a list that is interrupted then says that it is not complete.
func TestLsAmongManyKeys(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	s.fill(t, 1_000_000)
	acquire(t, s.registry(t, "shop", lockregistry.WithName("billing")).Obtain("held"))
	eventually(t, "there is a record", func() bool { return s.has(t, "shop:{registries}:registry") })

	for _, args := range [][]string{
		{"ls", "shop"}, {"ls", "--dead", "shop"}, {"ls", "--json", "shop"}, {"ls", "--sort", "path", "shop"},
	} {
		p := prepare(s.url, args...).begin(t)
		if len(args) == 2 {
			p.says(t, "held ")
		} else {
			eventually(t, "it reads", func() bool { return s.reads(t) })
		}
		require.NoError(t, p.Process.Signal(os.Interrupt))
		assert.Equal(t, 130, p.code(t))
		assert.Equal(t, "lockreg: interrupted: the list is not complete\n", p.err.String())
		if len(args) == 2 {
			assert.Regexp(t, `(?m)^PATH .*\nheld .*\n\nnot complete: 1 locks(, in \d\d? % of the keys)?\n$`, p.out.String())
		} else {
			assert.Empty(t, p.out.String(), "part of it would look complete")
		}
	}
}

// reads reports whether a client of lockreg is connected.
func (s server) reads(t *testing.T) bool {
	t.Helper()
	return strings.Contains(s.Command(t, "CLIENT", "LIST"), "name=lockreg ")
}

// A reader that has seen enough ends the list, without a word.
func TestLsIntoHead(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	s.Command(t, "EVAL", "for i = 1, 5000 do redis.call('SET', 'shop:' .. i, ARGV[1]) end", "0",
		"0b6e4bd7-6a8e-4f6e-9f0a-6a2f6d0f4c55")
	sh := exec.Command("sh", "-c", `"$0" ls shop | head -n 2`, binary)
	sh.Env = append(os.Environ(), "REDIS_URL="+s.url)
	out, err := sh.CombinedOutput()
	require.NoError(t, err)
	assert.Regexp(t, `^PATH .*\n1 +lock .*\n$`, string(out))
}

// The paths of a deadlock are marked.
func TestLsMarksDeadlocks(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	one, two := s.registry(t, "shop"), s.registry(t, "shop")
	acquire(t, one.Obtain("other"))
	ctx, cancel := context.WithCancel(t.Context())
	var all, first sync.WaitGroup
	first.Add(2)
	for r, paths := range map[*lockregistry.Registry][2]string{one: {"a", "b"}, two: {"b", "a"}} {
		all.Go(func() {
			_ = r.Do(ctx, paths[0], func(ctx context.Context) error {
				first.Done()
				first.Wait()
				return r.Do(ctx, paths[1], func(context.Context) error { return nil })
			})
		})
	}
	defer all.Wait()
	defer cancel()
	out := ""
	eventually(t, "they are marked", func() bool {
		_, out, _ = lockreg(t, s.url, "ls", "shop")
		return strings.Count(out, "  deadlock: 1\n") == 2
	})
	assert.Regexp(t, `(?m)^a .*  deadlock: 1\nb .*  deadlock: 1\nother .*  0$`, out)
	_, out, _ = lockreg(t, s.url, "ls", "--json", "shop")
	assert.Equal(t, 2, strings.Count(out, `"deadlocked": true`))
	assert.Equal(t, 1, strings.Count(out, `"deadlocked": false`))
}
