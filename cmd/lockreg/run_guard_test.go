//go:build linux

package main_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// Lockreg dies without a word. Nobody renews the lock, and the command, child included, does not go on.
func TestRunKilled(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	p := prepare(s.url, "run", "--lease", "1m", "shop", "a", "--", "sh", "-c", stubborn).begin(t)
	eventually(t, "both run", func() bool { return len(lines(p.out.String(), "pid")) == 2 })
	require.NoError(t, p.Process.Kill())
	<-p.done
	for _, pid := range lines(p.out.String(), "pid") {
		eventually(t, "it is gone", func() bool { return !alive(pid) })
	}
	assert.True(t, s.has(t, "shop:a"), "nobody has it before the lease is over")
}

// No process is left when all is well, the guard included.
func TestRunLeavesNothing(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	dir := t.TempDir()
	p := prepare(s.url, "run", "shop", "a", "--", "true")
	mark := "LOCKREG_TEST=" + dir
	p.Env = append(p.Env, mark)
	assert.Zero(t, p.begin(t).code(t))
	eventually(t, "the guard has ended", func() bool {
		found, err := exec.Command("grep", "-lsza", mark, "-r", "/proc", "--include=environ").Output()
		return err != nil && len(found) == 0
	})
}

// guards are the processes that lockreg has started as guards.
func guards(t *testing.T, p *program) (pids []int) {
	t.Helper()
	for _, pid := range childrenOf(t, p.Process.Pid) {
		if commandLine(pid) == "process-group-guard" {
			pids = append(pids, pid)
		}
	}
	return pids
}

// childrenOf are the processes that a process has started, by whichever of its threads.
func childrenOf(t *testing.T, pid int) (pids []int) {
	t.Helper()
	files, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
	require.NoError(t, err)
	for _, file := range files {
		text, _ := os.ReadFile(file) // a thread may have ended
		for word := range strings.FieldsSeq(string(text)) {
			child, err := strconv.Atoi(word)
			require.NoError(t, err)
			pids = append(pids, child)
		}
	}
	return pids
}

// commandLine is what pkill -f compares with its pattern.
func commandLine(pid int) string {
	text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	return strings.TrimRight(strings.ReplaceAll(string(text), "\x00", " "), " ")
}

// The guard is killed, or stopped. Lockreg notices, so its own end is noticed, too.
func TestRunGuardIsReplaced(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	p := prepare(s.url, "run", "--lease", "1m", "shop", "a", "--", "sh", "-c", stubborn).begin(t)
	eventually(t, "both run", func() bool { return len(lines(p.out.String(), "pid")) == 2 })
	for i, sig := range []syscall.Signal{syscall.SIGKILL, syscall.SIGKILL, syscall.SIGSTOP} {
		before := guards(t, p)
		require.Len(t, before, 1)
		require.NoError(t, syscall.Kill(before[0], sig))
		eventually(t, "another guard, which knows the group", func() bool {
			return strings.Count(p.err.String(), "the guard of the command was gone") == i+1
		})
		require.NotEqual(t, before, guards(t, p))
	}
	for _, pid := range lines(p.out.String(), "pid") {
		require.True(t, alive(pid))
	}
	require.NoError(t, p.Process.Kill())
	<-p.done
	for _, pid := range lines(p.out.String(), "pid") {
		eventually(t, "it is gone", func() bool { return !alive(pid) })
	}
}

// All that a pattern for lockreg finds is killed at once, as pkill does it.
func TestRunKilledByName(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	p := prepare(s.url, "run", "--lease", "1m", "shop", "a", "--", "sh", "-c", stubborn).begin(t)
	eventually(t, "both run", func() bool { return len(lines(p.out.String(), "pid")) == 2 })
	found := []int{p.Process.Pid}
	require.Contains(t, commandLine(p.Process.Pid), "lockreg")
	for _, pid := range childrenOf(t, p.Process.Pid) {
		comm, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid))
		require.NoError(t, err)
		if strings.Contains(commandLine(pid)+string(comm), "lockreg") {
			found = append(found, pid)
		}
	}
	for _, pid := range found {
		require.NoError(t, syscall.Kill(pid, syscall.SIGKILL))
	}
	<-p.done
	for _, pid := range lines(p.out.String(), "pid") {
		eventually(t, "it is gone", func() bool { return !alive(pid) })
	}
}

// The guard is killed with lockreg. The command itself ends all the same, by the kernel.
func TestRunKilledWithItsGuard(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	const alone = `echo "pid $$"; while :; do sleep 0.05; done`
	p := prepare(s.url, "run", "--lease", "1m", "shop", "a", "--", "sh", "-c", alone).begin(t)
	p.says(t, "pid")
	guard := guards(t, p)
	require.Len(t, guard, 1)
	require.NoError(t, p.Process.Signal(syscall.SIGSTOP)) // it cannot start another guard
	require.NoError(t, syscall.Kill(guard[0], syscall.SIGKILL))
	require.NoError(t, p.Process.Kill())
	<-p.done
	eventually(t, "it is gone", func() bool { return !alive(lines(p.out.String(), "pid")[0]) })
}
