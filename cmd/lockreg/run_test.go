//go:build linux

package main_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestRunPassesEverythingOn(t *testing.T) {
	t.Parallel()
	s := startServer(t)

	p := prepare(s.url, "run", "shop", "orders:42", "--", "cat", "-", "/no such file")
	p.Stdin = strings.NewReader("from standard input")
	assert.Equal(t, 1, p.begin(t).code(t))
	assert.Equal(t, "from standard input", p.out.String())
	assert.Contains(t, p.err.String(), "/no such file")

	// No shell looks at the arguments, and lockreg's own flags are not looked for among them.
	code, out, _ := lockreg(t, s.url, "run", "shop", "orders:42", "--", "printf", "%s\n", "$HOME; echo *", "--json", "--")
	assert.Zero(t, code)
	assert.Equal(t, "$HOME; echo *\n--json\n--\n", out)
	assert.False(t, s.has(t, "shop:orders:42"), "released")
}

func TestRunEnvironment(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	var last uint64
	for range 3 {
		_, out, _ := lockreg(t, s.url, "run", "shop", "a", "--", "sh", "-c", "echo $LOCKREG_KEY $LOCKREG_TOKEN")
		var key string
		var token uint64
		_, err := fmt.Sscan(out, &key, &token)
		require.NoError(t, err, out)
		assert.Equal(t, "shop:a", key)
		assert.Greater(t, token, last)
		last = token
	}
	secrets := []string{"env", "LOCKREG_VIEW_TOKEN=secret", "LOCKREG_RELEASE_TOKEN=secret"}
	nested := []string{"--", secrets[0], secrets[1], secrets[2], binary, "run", "--fencing=false", "shop", "b", "--", "env"}
	_, out, _ := lockreg(t, s.url, append([]string{"run", "--pass-redis-url", "shop", "a"}, nested...)...)
	assert.Contains(t, out, "LOCKREG_KEY=shop:b\n")
	assert.NotContains(t, out, "LOCKREG_KEY=shop:a")
	assert.NotContains(t, out, "LOCKREG_TOKEN", "the outer one's is not the inner one's")
	assert.NotContains(t, out, "secret", "the tokens of lockreg serve are not for the command")
	assert.NotContains(t, out, "REDIS_URL", "it may have a password in it, and was asked for by the outer one alone")
	_, out, _ = lockreg(t, s.url, "run", "--pass-redis-url", "shop", "a", "--", "env")
	assert.Contains(t, out, "REDIS_URL="+s.url+"\n")

	// Redisson's counter would stay for ever.
	_, out, _ = lockreg(t, s.url, "run", "--layout", "redisson", "r", "a", "--", "sh", "-c", "echo -$LOCKREG_TOKEN-")
	assert.Equal(t, "--\n", out)
	assert.Empty(t, s.Command(t, "KEYS", "redisson_lock_token*"))
	_, out, _ = lockreg(t, s.url, "run", "--layout", "redisson", "--fencing", "r", "a", "--", "sh", "-c", "echo -$LOCKREG_TOKEN-")
	assert.Equal(t, "-1-\n", out)
}

func TestRunExitCodes(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	s.Command(t, "SET", "shop:taken", "somebody", "PX", "600000")
	s.Command(t, "SADD", "shop:set", "member")
	dir := t.TempDir()
	file := func(name, content string, mode os.FileMode) string {
		path := filepath.Join(dir, name)
		require.NoError(t, os.WriteFile(path, []byte(content), mode))
		return path
	}
	plain := file("plain", "#!/bin/sh\n", 0o600)
	broken := file("broken", "#!/no/such/interpreter\n", 0o700)
	garbage := file("garbage", "\x7fnothing", 0o700)

	const conflict = "not obtained: shop:taken is held by unknown"
	for _, c := range []struct {
		code int
		says string
		args []string
	}{
		{0, "", []string{"run", "shop", "a", "--", "true"}},
		{1, "", []string{"run", "shop", "a", "--", "false"}},
		{42, "", []string{"run", "shop", "a", "--", "sh", "-c", "exit 42"}},
		{137, "", []string{"run", "shop", "a", "--", "sh", "-c", "kill -KILL $$"}},
		{143, "", []string{"run", "shop", "a", "--", "sh", "-c", "kill -TERM $$"}},
		{75, conflict, []string{"run", "--no-wait", "shop", "taken", "--", "true"}},
		{75, conflict, []string{"run", "--wait", "6s", "shop", "taken", "--", "true"}},
		{3, conflict, []string{"run", "--no-wait", "--conflict-code", "3", "shop", "taken", "--", "true"}},
		{0, "", []string{"run", "--no-wait", "-q", "--conflict-code", "0", "shop", "taken", "--", "false"}},
		{64, "shop:set is not a plain lock in the format of --layout spring", []string{"run", "shop", "set", "--", "true"}},
		{64, "shop:set is not a read-write lock: ", []string{"run", "--shared", "shop", "set", "--", "true"}},
		{64, "write: lockreg run PREFIX PATH", []string{"run", "shop", "a"}},
		{64, "write: lockreg run PREFIX PATH", []string{"run", "shop", "a", "--"}},
		{64, "unknown flag: --frob", []string{"run", "--frob", "shop", "a", "--", "true"}},
		{64, "must be 1s at least", []string{"run", "--lease", "10ms", "shop", "a", "--", "true"}},
		{64, "less than half of the lease", []string{"run", "--lease", "10s", "--grace", "5s", "shop", "a", "--", "true"}},
		{64, "exclude each other", []string{"run", "--wait", "1s", "--no-wait", "shop", "a", "--", "true"}},
		{64, "exclude each other", []string{"run", "--shared", "--exclusive", "shop", "a", "--", "true"}},
		{64, "must be positive", []string{"run", "--wait", "0s", "shop", "a", "--", "true"}},
		{64, "--once does not wait", []string{"run", "--wait", "1s", "--once", "10m", "shop", "a", "--", "true"}},
		{64, "must be 1s at least", []string{"run", "--once", "0s", "shop", "a", "--", "true"}},
		{64, "from 0 to 255", []string{"run", "--conflict-code", "256", "shop", "a", "--", "true"}},
		{64, "it is spring or redisson", []string{"run", "--layout", "java", "shop", "a", "--", "true"}},
		{64, "unknown scheme", []string{"run", "--url", "http://:secret@host", "shop", "a", "--", "true"}},
		{69, "nothing listens there", []string{"run", "--url", "redis://:secret@127.0.0.1:1", "shop", "a", "--", "true"}},
		{127, "no-such-command: command not found", []string{"run", "shop", "taken", "--", "no-such-command"}},
		{127, "command not found", []string{"run", "shop", "taken", "--", "/no/such/command"}},
		{126, "cannot be run", []string{"run", "shop", "taken", "--", plain}},
		{127, "cannot run", []string{"run", "shop", "a", "--", broken}},
		{126, "cannot run", []string{"run", "shop", "a", "--", garbage}},
	} {
		code, _, text := lockreg(t, s.url, c.args...)
		assert.Equal(t, c.code, code, "%v: %s", c.args, text)
		if c.says == "" {
			assert.Empty(t, text)
		} else {
			assert.Contains(t, text, c.says)
		}
		assert.NotContains(t, text, "secret")
		assert.False(t, s.has(t, "shop:a"), "%v leaves the lock", c.args)
	}

	p := prepare("", "run", "shop", "a", "--", "true").begin(t)
	assert.Equal(t, 64, p.code(t))
	assert.Contains(t, p.err.String(), "give --url, or set REDIS_URL")
}

func TestRunWithoutPermission(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	s.Command(t, "ACL", "SETUSER", "weak", "on", ">secret", "~other:*", "&*", "+@all")
	code, _, text := lockreg(t, "redis://weak:secret@"+s.Addr(), "run", "shop", "a", "--", "true")
	assert.Equal(t, 69, code)
	assert.Contains(t, text, "it lacks a key pattern for shop:a")
	assert.Contains(t, text, "lockreg doctor")
	assert.NotContains(t, text, "secret")
}

func TestRunWaits(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	first := prepare(s.url, "run", "shop", "a", "--", "cat")
	end, err := first.StdinPipe()
	require.NoError(t, err)
	first.begin(t)
	eventually(t, "the lock", func() bool { return s.has(t, "shop:a") })

	second := prepare(s.url, "run", "shop", "a", "--", "echo", "second").begin(t)
	third := prepare(s.url, "run", "--wait", "1m", "shop", "a", "--", "echo", "third").begin(t)
	eventually(t, "two wait", func() bool { return s.waiters(t, "shop", "a") == 2 })
	assert.Empty(t, second.out.String()+third.out.String())
	require.NoError(t, end.Close())
	for _, p := range []*program{first, second, third} {
		assert.Zero(t, p.code(t), p.err.String())
	}
	assert.Equal(t, "second\nthird\n", second.out.String()+third.out.String())
}

// A lock that a release has granted has a short lease at first. The command is not ended for that.
func TestRunGranted(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	for path, flag := range map[string]string{"a": "--fencing=false", "b": "--layout=redisson", "c": "--exclusive"} {
		start := func() (*program, func()) {
			p := prepare(s.url, "run", flag, "shop", path, "--", "sh", "-c", "echo in; cat; echo end")
			end, err := p.StdinPipe()
			require.NoError(t, err)
			return p.begin(t), func() { _ = end.Close() }
		}
		first, end1 := start()
		first.says(t, "in")
		second, end2 := start()
		eventually(t, "it waits", func() bool { return s.waiters(t, "shop", path) == 1 })
		end1()
		assert.Zero(t, first.code(t))
		second.says(t, "in")
		eventually(t, "a whole lease", func() bool {
			left, err := strconv.Atoi(s.Command(t, "PTTL", "shop:"+path))
			return err == nil && left > 15_000
		})
		end2()
		assert.Zero(t, second.code(t), second.err.String())
		assert.Equal(t, "in\nend\n", second.out.String())
		assert.Empty(t, second.err.String())
	}
}

// A signal ends the waiting, and nothing is left behind.
func TestRunSignalWhileWaiting(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	s.Command(t, "SET", "shop:a", "somebody", "PX", "600000")
	for _, sig := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT, syscall.SIGUSR1} {
		p := prepare(s.url, "run", "shop", "a", "--", "echo", "ran").begin(t)
		eventually(t, "it waits", func() bool { return s.waiters(t, "shop", "a") == 1 })
		require.NoError(t, p.Process.Signal(sig))
		if sig == syscall.SIGINT { // bash goes on with a script after an exit code
			<-p.done
			assert.Equal(t, sig, p.ProcessState.Sys().(syscall.WaitStatus).Signal())
		} else {
			assert.Equal(t, 128+int(sig), p.code(t))
		}
		assert.Empty(t, p.out.String())
		assert.Zero(t, s.waiters(t, "shop", "a"))
	}
	assert.Equal(t, "somebody", s.Command(t, "GET", "shop:a"))
}

func TestRunRenews(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	p := prepare(s.url, "run", "--lease", "12s", "shop", "a", "--", "cat")
	end, err := p.StdinPipe()
	require.NoError(t, err)
	p.begin(t)
	eventually(t, "the lock", func() bool { return s.has(t, "shop:a") })
	value := s.Command(t, "GET", "shop:a")
	last := 1 << 30
	renewals := 0
	eventually(t, "four renewals", func() bool {
		left, err := strconv.Atoi(s.Command(t, "PTTL", "shop:a"))
		require.NoError(t, err)
		assert.LessOrEqual(t, left, 12_000)
		if left > last+100 {
			renewals++
		}
		last = left
		return renewals == 4
	})
	assert.Equal(t, value, s.Command(t, "GET", "shop:a"))
	require.NoError(t, end.Close())
	assert.Zero(t, p.code(t))
}

// What is as it should be is not worth a mail of cron's each night: neither that the command has run for ten leases, nor that the
// user may not write the record of who holds the lock.
func TestRunSaysNothing(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	s.Command(t, "ACL", "SETUSER", "app", "on", ">secret", "~shop:a", "&*", "+@all")
	p := prepare("redis://app:secret@"+s.Addr(), "run", "--lease", "6s", "--fencing=false", "shop", "a", "--",
		"sh", "-c", "sleep 31; echo half; sleep 31; echo end").begin(t)
	p.says(t, "half")
	p.says(t, "end")
	assert.Zero(t, p.code(t))
	busy := regexp.MustCompile(`(?m)^.*(does not answer renewals or removals; retrying|accepts renewals and removals again).*\n`)
	assert.Empty(t, busy.ReplaceAllString(p.err.String(), ""), "but of a machine that is too busy")
}

func TestRunSharedAndExclusive(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	start := func(flag string) (*program, func()) {
		p := prepare(s.url, "run", flag, "shop", "a", "--", "sh", "-c", `echo "in -$LOCKREG_TOKEN-"; cat`)
		end, err := p.StdinPipe()
		require.NoError(t, err)
		p.begin(t)
		return p, func() { _ = end.Close() }
	}
	first, end1 := start("--shared")
	second, end2 := start("--shared")
	first.says(t, "in --")
	second.says(t, "in --")
	code, _, _ := lockreg(t, s.url, "run", "--no-wait", "--exclusive", "shop", "a", "--", "true")
	assert.Equal(t, 75, code)
	code, _, text := lockreg(t, s.url, "run", "--no-wait", "shop", "a", "--", "true")
	assert.Equal(t, 64, code, "a plain lock is another kind: %s", text)
	end1()
	end2()
	assert.Zero(t, first.code(t))
	assert.Zero(t, second.code(t))
	third, end3 := start("--exclusive")
	third.says(t, "in -1") // a token
	code, _, _ = lockreg(t, s.url, "run", "--no-wait", "--shared", "shop", "a", "--", "true")
	assert.Equal(t, 75, code)
	end3()
	assert.Zero(t, third.code(t))

	p := prepare(s.url, "run", "--layout", "redisson", "shop", "r", "--", "cat")
	end, err := p.StdinPipe()
	require.NoError(t, err)
	p.begin(t)
	eventually(t, "the lock", func() bool { return s.Command(t, "TYPE", "shop:r") == "hash" })
	require.NoError(t, end.Close())
	assert.Zero(t, p.code(t))
}

func TestRunPermits(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	semaphore := s.registry(t, "shop").Semaphore("partner", 2)
	one, err := semaphore.Acquire(t.Context())
	require.NoError(t, err)
	code, out, text := lockreg(t, s.url, "run", "--permits", "2", "shop", "partner", "--", "echo", "works")
	assert.Zero(t, code, text)
	assert.Equal(t, "works\n", out)
	two, err := semaphore.Acquire(t.Context())
	require.NoError(t, err)
	code, _, text = lockreg(t, s.url, "run", "--permits", "2", "--no-wait", "shop", "partner", "--", "echo", "works")
	assert.Equal(t, 75, code)
	assert.Contains(t, text, "not obtained: shop:partner is held by 2 holders")
	require.NoError(t, one.Release(t.Context()))
	require.NoError(t, two.Release(t.Context()))
	for _, args := range [][]string{
		{"--permits", "-1"}, {"--permits", "2", "--shared"},
	} {
		code, _, text = lockreg(t, s.url, append(append([]string{"run"}, args...), "shop", "partner", "--", "true")...)
		assert.Equal(t, 64, code, args)
		assert.Contains(t, text, "--permits")
	}
}

// A semaphore has one format, whatever --layout says; Redisson's semaphores are other objects.
func TestRunPermitsInEitherLayout(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	run := func(path, layout string) (code int, out, text string) {
		return lockreg(t, s.url, "run", "--permits", "1", "--no-wait", "--layout", layout, "shop", path, "--", "echo", "works")
	}
	s.Command(t, "SET", "shop:java", "3")
	for _, layout := range []string{"spring", "redisson"} {
		code, out, text := run("partner", layout)
		assert.Zero(t, code, text)
		assert.Equal(t, "works\n", out)
		hold, err := s.registry(t, "shop").Semaphore("partner", 1).Acquire(t.Context())
		require.NoError(t, err)
		code, out, text = run("partner", layout)
		assert.Equal(t, 75, code)
		assert.Empty(t, out)
		assert.Contains(t, text, "not obtained: shop:partner is held by ")
		require.NoError(t, hold.Release(t.Context()))
		code, out, text = run("java", layout)
		assert.Equal(t, 64, code)
		assert.Empty(t, out)
		assert.Contains(t, text, "shop:java is not a semaphore")
	}
}

func TestRunOnce(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	for _, c := range []struct{ path, command string }{{"a", "true"}, {"b", "false"}} { // a failure counts, too
		first, _, _ := lockreg(t, s.url, "run", "--once", "10m", "shop", c.path, "--", c.command)
		assert.Equal(t, map[string]int{"true": 0, "false": 1}[c.command], first)
		code, out, _ := lockreg(t, s.url, "run", "--once", "10m", "shop", c.path, "--", "echo", "again")
		assert.Equal(t, 75, code)
		assert.Empty(t, out)
		left, err := strconv.Atoi(s.Command(t, "PTTL", "shop:"+c.path))
		require.NoError(t, err)
		assert.LessOrEqual(t, left, 540_000)
		assert.Greater(t, left, 440_000)
	}
}

// Another machine may run the job when the command could not be started.
func TestRunOnceNotStarted(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	for name, c := range map[string]struct {
		content string
		code    int
	}{"broken": {"#!/no/such/interpreter\n", 127}, "garbage": {"\x7fnothing", 126}} {
		program := filepath.Join(t.TempDir(), name)
		require.NoError(t, os.WriteFile(program, []byte(c.content), 0o700))
		code, _, text := lockreg(t, s.url, "run", "--once", "10m", "shop", name, "--", program)
		assert.Equal(t, c.code, code, text)
		code, out, text := lockreg(t, s.url, "run", "--once", "10m", "shop", name, "--", "echo", "works")
		assert.Zero(t, code, text)
		assert.Equal(t, "works\n", out)
	}
}

// family is a command of two processes, which say who they are, which signals they get, and go on until TERM.
const family = `
member() {
	for s in INT HUP QUIT USR1 USR2; do trap "echo $1 $s" $s; done
	trap "echo $1 TERM; exit 0" TERM
	echo "pid $2"
	while :; do sleep 0.05; done
}
member child $$ & wait_for=$!
member parent $$
`

// stubborn is one that does not end for TERM.
const stubborn = `
trap "" TERM
sh -c 'echo "pid $$"; while :; do sleep 0.05; done' &
echo "pid $$"
while :; do sleep 0.05; done
`

func TestRunSignals(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	p := prepare(s.url, "run", "shop", "a", "--", "sh", "-c", family).begin(t)
	eventually(t, "both run", func() bool { return len(lines(p.out.String(), "pid")) == 2 })
	for name, sig := range map[string]syscall.Signal{
		"INT": syscall.SIGINT, "HUP": syscall.SIGHUP, "QUIT": syscall.SIGQUIT, "USR1": syscall.SIGUSR1, "USR2": syscall.SIGUSR2,
	} {
		if name == "INT" || name == "QUIT" { // a shell has its background processes ignore them
			require.NoError(t, p.Process.Signal(sig))
			p.says(t, "parent "+name)
			continue
		}
		require.NoError(t, p.Process.Signal(sig))
		p.says(t, "parent "+name)
		p.says(t, "child "+name)
	}
	assert.True(t, s.has(t, "shop:a"))
	require.NoError(t, p.Process.Signal(syscall.SIGTERM))
	assert.Zero(t, p.code(t), "the command's own")
	assert.Contains(t, p.out.String(), "parent TERM")
	assert.Contains(t, p.out.String(), "child TERM")
	assert.False(t, s.has(t, "shop:a"))
}

// What lockreg was started without, as by nohup, the command is without, too.
func TestRunIgnoredSignal(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	p := prepare(s.url)
	p.Path, p.Args = "/bin/sh", []string{"sh", "-c", `trap "" HUP; exec "$@"`, "sh", binary, "run", "shop", "a", "--",
		"sh", "-c", `echo ready; read x; echo end`}
	end, err := p.StdinPipe()
	require.NoError(t, err)
	p.begin(t)
	p.says(t, "ready")
	require.NoError(t, p.Process.Signal(syscall.SIGHUP))
	require.NoError(t, end.Close())
	assert.Zero(t, p.code(t))
	assert.Equal(t, "ready\nend\n", p.out.String())
}

// The lock is kept for what the command leaves behind.
func TestRunLeftBehind(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	p := prepare(s.url, "run", "--lease", "6s", "shop", "a", "--",
		"sh", "-c", `sh -c 'trap "exit 0" USR1; echo "pid $$"; while :; do sleep 0.05; done' & exit 5`).begin(t)
	p.says(t, "pid")
	eventually(t, "it says so", func() bool { return strings.Contains(p.err.String(), "left processes behind") })
	value := s.Command(t, "GET", "shop:a")
	assert.Contains(t, value, ":")
	require.NoError(t, p.Process.Signal(syscall.SIGUSR1))
	assert.Equal(t, 5, p.code(t))
	assert.False(t, s.has(t, "shop:a"))
	assert.False(t, alive(lines(p.out.String(), "pid")[0]))
}

func assertGone(t *testing.T, p *program) {
	t.Helper()
	pids := lines(p.out.String(), "pid")
	require.Len(t, pids, 2)
	for _, pid := range pids {
		assert.False(t, alive(pid), pid)
	}
}

// The lock is taken away. All get TERM, then KILL.
func TestRunLost(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	for name, take := range map[string]func(key string){
		"removed":    func(key string) { s.Command(t, "DEL", key) },
		"taken over": func(key string) { s.Command(t, "SET", key, "another", "PX", "60000") },
	} {
		for script, says := range map[string]string{family: "child TERM", stubborn: "KILL"} {
			key := "shop:" + name + says
			p := prepare(s.url, "run", "--lease", "9s", "--grace", "2s", "shop", name+says, "--", "sh", "-c", script).begin(t)
			eventually(t, "both run", func() bool { return len(lines(p.out.String(), "pid")) == 2 })
			take(key)
			assert.Equal(t, 70, p.code(t))
			assert.Contains(t, p.out.String()+p.err.String(), says)
			assert.Contains(t, p.err.String(), "the lock was lost while the command ran")
			assertGone(t, p)
			if name == "taken over" {
				assert.Equal(t, "another", s.Command(t, "GET", key))
			}
		}
	}
}

// After a standstill that has outlasted the lease another may work, so the command gets no grace.
func TestRunStandsStill(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	p := prepare(s.url, "run", "--lease", "12s", "--grace", "2s", "shop", "a", "--", "sh", "-c", family).begin(t)
	eventually(t, "both run", func() bool { return len(lines(p.out.String(), "pid")) == 2 })
	require.NoError(t, p.Process.Signal(syscall.SIGSTOP))
	eventually(t, "the lease is over", func() bool { return !s.has(t, "shop:a") })
	require.NoError(t, p.Process.Signal(syscall.SIGCONT))
	assert.Equal(t, 70, p.code(t))
	assert.NotContains(t, p.out.String(), "TERM")
	assertGone(t, p)
}

// A loss that only the release finds out counts.
func TestRunLostAtTheEnd(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	p := prepare(s.url, "run", "shop", "a", "--", "cat")
	end, err := p.StdinPipe()
	require.NoError(t, err)
	p.begin(t)
	eventually(t, "the lock", func() bool { return s.has(t, "shop:a") })
	s.Command(t, "DEL", "shop:a")
	require.NoError(t, end.Close())
	assert.Equal(t, 70, p.code(t))
}

// Redis does not answer. TERM comes while the lock is certain, KILL when it is no longer.
func TestRunFrozenServer(t *testing.T) {
	t.Parallel()
	for script, says := range map[string]string{family: "child TERM", stubborn: "KILL"} {
		s := startServer(t)
		p := prepare(s.url, "run", "--lease", "12s", "--grace", "5s", "shop", "a", "--", "sh", "-c", script).begin(t)
		eventually(t, "both run", func() bool { return len(lines(p.out.String(), "pid")) == 2 })
		s.Freeze()
		assert.Equal(t, 70, p.code(t))
		assert.Contains(t, p.out.String()+p.err.String(), says)
		assertGone(t, p)
		left := regexp.MustCompile(`cannot be renewed in time.* remaining=(\S+)`).FindStringSubmatch(p.err.String())
		require.Len(t, left, 2, p.err.String())
		remaining, err := time.ParseDuration(left[1])
		require.NoError(t, err)
		assert.Positive(t, remaining)
		assert.LessOrEqual(t, remaining, 5*time.Second)
	}
}

// The server is away for less than the lease. The command does not notice.
func TestRunServerComesBack(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	p := prepare(s.url, "run", "--lease", "30s", "--grace", "100ms", "shop", "a", "--", "cat")
	end, err := p.StdinPipe()
	require.NoError(t, err)
	p.begin(t)
	eventually(t, "the lock", func() bool { return s.has(t, "shop:a") })
	value := s.Command(t, "GET", "shop:a")
	s.Freeze()
	<-time.After(11 * time.Second) // longer than to the first renewal
	s.Thaw()
	last := 1 << 30
	eventually(t, "it is renewed", func() bool {
		left, err := strconv.Atoi(s.Command(t, "PTTL", "shop:a"))
		require.NoError(t, err)
		defer func() { last = left }()
		return left > last+100
	})
	assert.Equal(t, value, s.Command(t, "GET", "shop:a"))
	require.NoError(t, end.Close())
	assert.Zero(t, p.code(t), p.err.String())
}

// namespace has a program be process 1 of its own.
func namespace(t *testing.T) []string {
	t.Helper()
	args := []string{"unshare", "--pid", "--fork", "--mount-proc"}
	if os.Getuid() != 0 {
		args = []string{"unshare", "--user", "--map-root-user", "--pid", "--fork", "--mount-proc"}
	}
	if out, err := exec.Command(args[0], append(args[1:], "true")...).CombinedOutput(); err != nil {
		t.Fatalf("this test needs process 1 of its own, by unshare of util-linux, as root or with user namespaces: %v: %s", err, out)
	}
	return args
}

func TestRunAsProcessOne(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	outer := namespace(t)
	start := func(args ...string) *program {
		p := prepare(s.url)
		path, err := exec.LookPath(outer[0])
		require.NoError(t, err)
		p.Path, p.Args = path, append(append(append([]string{}, outer...), binary), args...)
		return p.begin(t)
	}

	// Orphans that have left the group become zombies of process 1, until it reaps them.
	p := start("run", "shop", "a", "--", "sh", "-c", `
		echo "parent $PPID"
		for i in 1 2 3 4 5; do (setsid sh -c 'echo orphan $$' &); done
		n=0
		while [ $n -lt 400 ]; do
			grep -hs State: /proc/[0-9]*/status | grep -q Z || [ $n -lt 20 ] || exit 7
			n=$((n+1)); sleep 0.05
		done
		exit 1`)
	assert.Equal(t, 7, p.code(t), p.out.String()+p.err.String())
	assert.Equal(t, []string{"1"}, lines(p.out.String(), "parent"))
	assert.Len(t, lines(p.out.String(), "orphan"), 5)
	assert.False(t, s.has(t, "shop:a"))

	// The exit code of one that a signal ends, and a signal that comes from outside.
	assert.Equal(t, 137, start("run", "shop", "a", "--", "sh", "-c", "kill -KILL $$").code(t))
	p = start("run", "shop", "a", "--", "sh", "-c", family)
	eventually(t, "both run", func() bool { return len(lines(p.out.String(), "pid")) == 2 })
	children, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", p.Process.Pid, p.Process.Pid))
	require.NoError(t, err)
	one, err := strconv.Atoi(strings.Fields(string(children))[0])
	require.NoError(t, err)
	require.NoError(t, syscall.Kill(one, syscall.SIGTERM))
	assert.Zero(t, p.code(t))
	assert.Contains(t, p.out.String(), "child TERM")
}

// TestRunSaysWhy: what is said of a lock that was not obtained.
func TestRunSaysWhy(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	r := s.registry(t, "shop")
	says := func(what string, args ...string) {
		t.Helper()
		code, _, text := lockreg(t, s.url, append([]string{"run", "--no-wait"}, args...)...)
		assert.Equal(t, 75, code, text)
		assert.Regexp(t, "^lockreg: not obtained: shop:"+what+"\n$", text)
	}
	acquire(t, r.Obtain("a"))
	says("a is held by .* for (≤ )?[0-9.]+m?s", "shop", "a", "--", "true")
	acquire(t, r.ReadWrite("read").Reader())
	acquire(t, s.registry(t, "shop").ReadWrite("read").Reader())
	says("read is held by 2 readers", "--exclusive", "shop", "read", "--", "true")
	code, _, text := lockreg(t, s.url, "run", "--once", "10m", "shop", "job", "--", "true")
	require.Zero(t, code, text)
	code, _, text = lockreg(t, s.url, "run", "--once", "10m", "shop", "job", "--", "true")
	assert.Equal(t, 75, code)
	assert.Regexp(t, `^lockreg: not obtained: shop:job stays taken after its release, for another 8m5\ds\n$`, text)
}
