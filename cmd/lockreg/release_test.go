//go:build linux

package main_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/user"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry"
	"github.com/lockregistry/lockregistry/internal/seam"
)

func TestRelease(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	r := s.registry(t, "shop")
	me, err := user.Current()
	require.NoError(t, err)
	host, err := os.Hostname()
	require.NoError(t, err)

	// Without a terminal it needs --yes.
	h := acquire(t, r.Obtain("a"))
	value := s.Command(t, "GET", "shop:a")
	code, out, text := lockreg(t, s.url, "release", "shop", "a")
	assert.Equal(t, 64, code)
	assert.Contains(t, text, "give --yes")
	assert.Empty(t, out)
	assert.Equal(t, value, s.Command(t, "GET", "shop:a"))

	code, out, text = lockreg(t, s.url, "release", "shop", "a", "--yes", "--reason", "gone\n"+evil)
	assert.Zero(t, code, text)
	assert.Contains(t, out, "shop:a is released")
	assert.False(t, s.has(t, "shop:a"))
	require.Equal(t, 1, strings.Count(text, "msg=release"), text) // on a busy machine it also tells when the holder was alive
	for _, part := range []string{
		"time=", "msg=release", "caller=" + me.Username + "@" + host, "path=a", "key=shop:a", "holder=" + value,
		`reason="gone\n\x1b[2Jx\u202e\u009b2J\n\t"`, "result=freed",
	} {
		assert.Contains(t, text, part)
	}
	require.Error(t, h.Release(context.Background()))

	// It is free.
	code, out, text = lockreg(t, s.url, "release", "shop", "a", "--yes")
	assert.Equal(t, 1, code)
	assert.Empty(t, out)
	assert.Contains(t, text, "nobody holds it: nothing was changed")

	// A lock in the other format is not touched.
	s.Command(t, "HSET", "shop:java", "0b6e4bd7-6a8e-4f6e-9f0a-6a2f6d0f4c55:1", "1")
	code, _, text = lockreg(t, s.url, "release", "shop", "java", "--yes")
	assert.Equal(t, 64, code)
	assert.Equal(t, "lockreg: shop:java is a lock in another format: pass --layout redisson\n", text)
	code, _, text = lockreg(t, s.url, "release", "shop", "java", "--yes", "--layout", "redisson")
	assert.Zero(t, code, text)

	// As JSON, in which nothing acts on a terminal either.
	s.Command(t, "SET", "shop:"+evil, evil, "PX", "60000")
	code, out, text = lockreg(t, s.url, "release", "shop", evil, "--yes", "--json")
	assert.Zero(t, code, text)
	for _, line := range []string{out, text} {
		var fields map[string]any
		require.NoError(t, json.Unmarshal([]byte(line), &fields))
		assert.Equal(t, evil, fields["holder"])
		assert.NotContains(t, line, "\u202e")
		assert.NotContains(t, line, "\u009b")
	}
}

func TestReleaseOneOfSeveral(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	one, two := s.registry(t, "shop"), s.registry(t, "shop")
	acquire(t, one.ReadWrite("a").Reader())
	stays := acquire(t, two.ReadWrite("a").Reader())
	code, _, text := lockreg(t, s.url, "release", "shop", "a", "--yes")
	assert.Equal(t, 64, code)
	assert.Regexp(t, `2 readers hold it: .* under IN REDIS: lockreg release shop a --holder [-0-9a-f]{36}:\d+\n$`, text)
	var holder string
	for field := range strings.FieldsSeq(text) {
		if strings.HasPrefix(field, seam.Lockregistry.Parts(one).Label.Registry+":") {
			holder = field
		}
	}
	require.NotEmpty(t, holder, text)
	code, _, text = lockreg(t, s.url, "release", "shop", "a", "--yes", "--holder", "nobody:1")
	assert.Equal(t, 1, code)
	assert.Regexp(t, `^lockreg: shop:a: no holder "nobody:1": give the whole text under IN REDIS, such as `+
		`--holder [-0-9a-f]{36}:\d+\n$`, text)
	code, out, text := lockreg(t, s.url, "release", "shop", "a", "--yes", "--holder", holder)
	assert.Zero(t, code, text)
	assert.Contains(t, out, "one reader's part of shop:a is released; it was held by ")
	require.NoError(t, stays.Release(context.Background()), "another reader's part stays")
}

func TestReleaseOfASemaphore(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	semaphore := s.registry(t, "shop").Semaphore("partner", 3)
	goes, err := semaphore.Acquire(t.Context())
	require.NoError(t, err)
	stays, err := semaphore.Acquire(t.Context(), lockregistry.Permits(2))
	require.NoError(t, err)
	code, out, text := lockreg(t, s.url, "ls", "shop")
	assert.Zero(t, code, text)
	assert.Contains(t, out, "semaphore of 3")
	assert.Contains(t, out, "2 holders")
	code, out, text = lockreg(t, s.url, "show", "shop", "partner")
	assert.Zero(t, code, text)
	assert.Contains(t, out, "2 permits")

	code, _, text = lockreg(t, s.url, "release", "shop", "partner", "--yes")
	assert.Equal(t, 64, code)
	assert.Contains(t, text, "2 holders hold it")
	holder := s.Command(t, "ZRANGEBYSCORE", "shop:partner", "0", "+inf", "LIMIT", "0", "1")
	code, out, text = lockreg(t, s.url, "release", "shop", "partner", "--yes", "--holder", holder)
	assert.Zero(t, code, text)
	assert.Contains(t, out, "a permit of shop:partner is released; it was held by ")
	require.ErrorIs(t, goes.Release(context.Background()), lockregistry.ErrLockLost)
	require.NoError(t, stays.Release(context.Background()))

	dead, err := semaphore.Acquire(t.Context(), lockregistry.Permits(2))
	require.NoError(t, err)
	holder = s.Command(t, "ZRANGEBYSCORE", "shop:partner", "0", "+inf", "LIMIT", "0", "1")
	code, out, text = lockreg(t, s.url, "release", "shop", "partner", "--yes", "--holder", holder)
	assert.Zero(t, code, text)
	assert.Contains(t, out, "2 permits of shop:partner are released; they were held by ")
	require.ErrorIs(t, dead.Release(context.Background()), lockregistry.ErrLockLost)
}

// A semaphore has one format, whatever --layout says. What Redisson's semaphores have at the path's key is another object, which
// each command names and leaves as it is.
func TestReleaseOfASemaphoreInEitherLayout(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	s.Command(t, "SET", "shop:java", "3")
	for _, layout := range []string{"spring", "redisson"} {
		held, err := s.registry(t, "shop").Semaphore("partner", 3).Acquire(t.Context())
		require.NoError(t, err)
		code, out, text := lockreg(t, s.url, "ls", "shop", "--layout", layout)
		assert.Zero(t, code, text)
		assert.Regexp(t, `partner +semaphore of 3 `, out)
		assert.NotContains(t, out, "redisson")
		assert.NotContains(t, out, "java")
		code, out, text = lockreg(t, s.url, "release", "shop", "partner", "--yes", "--layout", layout)
		assert.Zero(t, code, text)
		assert.Contains(t, out, "a permit of shop:partner is released; it was held by ")
		require.ErrorIs(t, held.Release(context.Background()), lockregistry.ErrLockLost)

		for _, args := range [][]string{{"show", "shop", "java"}, {"release", "shop", "java", "--yes"}} {
			code, out, text = lockreg(t, s.url, append(args, "--layout", layout)...)
			assert.NotZero(t, code)
			assert.Empty(t, out)
			assert.Contains(t, text, "a number, as Redisson's RSemaphore and RPermitExpirableSemaphore keep there")
		}
		assert.Equal(t, "3", s.Command(t, "GET", "shop:java"))
	}
}

// A holder of which nothing is known has the same name everywhere, and is not called Java's if it is not.
func TestReleaseOfWhatHasNoRecord(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	const id = "0b6e4bd7-6a8e-4f6e-9f0a-6a2f6d0f4c55"
	value := fmt.Sprintf("%s:%d", id, time.Now().Add(-10*time.Minute).UnixMicro())
	s.Command(t, "SET", "shop:a", value, "PX", "600000")
	s.Command(t, "SET", "shop:java", id, "PX", "600000")
	code, out, text := lockreg(t, s.url, "ls", "shop")
	require.Zero(t, code, text)
	assert.Regexp(t, `a Go process, not known .* no record: probably dead`, out)
	assert.Equal(t, 1, strings.Count(out, "no record: "), "of Java's nothing is said")
	assert.NotContains(t, out, "perhaps dead", "it may be fine, and not permitted to write one")
	_, out, _ = lockreg(t, s.url, "show", "shop", "a")
	assert.Contains(t, out, "\na Go process, not known: no record of its process: ")
	assert.Equal(t, 1, strings.Count(out, "no record"), "once")
	_, out, _ = lockreg(t, s.url, "show", "shop", "java")
	assert.NotContains(t, out, "record")
	assert.Regexp(t, `\nJava \(Spring\): whether it is alive is not known; if it is dead, its lease ends in \S+\n`, out)
	shell := startSession(t, s.url)
	shell.after(t, "$LOCKREG release shop a\n", "[y/N]")
	assert.Regexp(t, `is held by a Go process, not known, which asked for it 1[0-4]m\d`, shell.out.String())
	assert.Regexp(t, `no record of its process: it is dead or frozen, or may not write one; its lease is (20m0|1[5-9]m[0-5])\ds if`,
		shell.out.String())
	assert.NotContains(t, shell.out.String(), "next:")
	shell.after(t, "y\n", "shop:a is released; it was held by a Go process, not known")
	assert.Contains(t, shell.out.String(), `label="a Go process, not known"`)
	assert.NotContains(t, shell.out.String(), "Java")
	_, _, text = lockreg(t, s.url, "release", "shop", "java", "--yes")
	assert.Contains(t, text, `label="Java (Spring)"`)
}

// On a terminal it says whether the holder is alive, as far as is known, and who is next.
func TestReleaseSaysWhoIsNext(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	one := s.registry(t, "shop", lockregistry.WithName("billing"), lockregistry.WithRenewal())
	defer runtime.KeepAlive(acquire(t, one.Obtain("a")))
	queue(t, s, "shop", s.registry(t, "shop", lockregistry.WithName("mailer")).Obtain("a"))
	eventually(t, "labels are known", func() bool {
		_, out, _ := lockreg(t, s.url, "show", "shop", "a")
		return !strings.Contains(out, "not known")
	})
	shell := startSession(t, s.url)
	shell.after(t, "$LOCKREG release shop a\n", "[y/N]")
	assert.Regexp(t, `granted or renewed \S+s ago: its process was alive then; if it has died since, this shows within \S+s\r\n`,
		shell.out.String())
	assert.Contains(t, shell.out.String(), "waiting: 1\r\nnext: mailer on ")
	assert.NotContains(t, shell.out.String(), "dead")
}

// Calls that wait within the holder's process are told of before the release, and after it, when Redis knows nothing of them.
func TestReleaseOfALockWithWaitersInItsProcess(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	r := s.registry(t, "shop", lockregistry.WithName("billing"), lockregistry.WithLease(10*time.Minute))
	defer runtime.KeepAlive(acquire(t, r.Obtain("a")))
	ctx, cancel := context.WithCancel(context.Background())
	var waiting sync.WaitGroup
	defer waiting.Wait()
	defer cancel()
	for range 3 {
		waiting.Go(func() { _, _ = r.Acquire(ctx, "a") })
	}
	eventually(t, "the record has them", func() bool {
		_, out, _ := lockreg(t, s.url, "show", "shop", "a")
		return strings.Contains(out, "3 more wait in billing")
	})
	_, out, _ := lockreg(t, s.url, "show", "shop", "a")
	assert.Contains(t, out, "\nnobody waits in Redis\n")
	shell := startSession(t, s.url)
	shell.after(t, "$LOCKREG release shop a\n", "[y/N]")
	const noticing = "once that process notices at its next renewal or unlock"
	assert.Contains(t, shell.out.String(), "next: one of 3 waiting in billing, "+noticing+"\r\n")
	shell.after(t, "n\n", "nothing was changed")

	code, _, text := lockreg(t, s.url, "release", "shop", "a", "--yes")
	assert.Zero(t, code, text)
	assert.Regexp(t, `level=WARN msg="the holder may be at work" alive="\S+ ago" label="billing on \S+, process \d+"\n`, text)
	const told = `3 waiting in billing on \S+, process \d+, by its record, which still has the lock: ` + noticing +
		`, the first one asks for it\n`
	_, out, _ = lockreg(t, s.url, "show", "shop", "a")
	assert.Regexp(t, `nobody holds it\nnobody waits in Redis\n`+told, out)
	code, _, text = lockreg(t, s.url, "release", "shop", "a", "--yes")
	assert.Equal(t, 1, code)
	assert.Regexp(t, `nothing was changed; `+told, text)
	code, out, text = lockreg(t, s.url, "show", "shop", "a", "--json")
	assert.Zero(t, code)
	assert.Contains(t, out, `"holders": []`)
	assert.Regexp(t, `^lockreg: `+told, text)
	_, out, _ = lockreg(t, s.url, "show", "shop", "b")
	assert.NotContains(t, out, "billing", "of another path nothing is told")
}

// On a terminal it asks.
func TestReleaseAsks(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	s.Command(t, "SET", "shop:a", "somebody", "PX", "600000")
	shell := startSession(t, s.url)
	shell.after(t, "$LOCKREG release shop a\n", "[y/N]")
	assert.Contains(t, shell.out.String(), "is held by unknown")
	shell.after(t, "\necho code-$?\n", "code-1")
	assert.True(t, s.has(t, "shop:a"))

	// The holder that is shown is the one that is meant, whoever has the lock when the answer comes.
	shell.after(t, "$LOCKREG release shop a\n", "[y/N]")
	s.Command(t, "SET", "shop:a", "another", "PX", "600000")
	shell.after(t, "y\n", "that holder no longer has it")
	assert.Equal(t, "another", s.Command(t, "GET", "shop:a"))

	shell.after(t, "$LOCKREG release shop a\n", "[y/N]")
	shell.after(t, "y\n", "shop:a is released")
	assert.False(t, s.has(t, "shop:a"))
}
