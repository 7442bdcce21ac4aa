//go:build unix

package main

import (
	"bytes"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry"
	"github.com/lockregistry/lockregistry/internal/redistest"
)

// The program of the tests is what a job starts as a guard or a starter.
func init() { //nolint:gochecknoinits // before the tests' own main function
	if attend(os.Args) {
		os.Exit(0)
	}
}

// Lockreg is killed after the fork: the command does not run. Lockreg goes on: it does.
func TestRunNothingRunsBeforeTheGuardKnows(t *testing.T) {
	file := filepath.Join(t.TempDir(), "ran")
	begin := func() *starter {
		s, err := prepareCommand("/usr/bin/touch", []string{"touch", file}, os.Environ(), &syscall.SysProcAttr{Setpgid: true})
		require.NoError(t, err)
		group, err := syscall.Getpgid(s.pid)
		require.NoError(t, err)
		require.Equal(t, s.pid, group, "there is a group to name")
		return s
	}
	begin().abandon()
	require.NoFileExists(t, file)
	s := begin()
	require.NoError(t, s.proceed())
	s.reap()
	require.FileExists(t, file)
}

// Lockreg is stopped between the grant and the start, until the lock is gone.
func TestRunDoesNotStartWithoutTheLock(t *testing.T) {
	server := redistest.Start(t)
	client, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{server.Addr()}, DisableCache: true})
	require.NoError(t, err)
	defer client.Close()
	registry, err := lockregistry.New(client, "shop")
	require.NoError(t, err)
	defer func() { _ = registry.Close() }()
	hold, err := registry.Acquire(t.Context(), "a")
	require.NoError(t, err)
	server.Command(t, "DEL", "shop:a")
	require.ErrorIs(t, hold.Renew(t.Context(), leastLease), lockregistry.ErrLockLost)
	require.Zero(t, hold.Remaining())

	file := filepath.Join(t.TempDir(), "ran")
	r := &runner{app: &app{}, program: "/usr/bin/touch", args: []string{"touch", file}, log: slog.New(slog.DiscardHandler)}
	j := &job{runner: r, hold: hold, terminal: terminal{fd: -1}}
	require.ErrorIs(t, j.start(), lockregistry.ErrLockLost)
	require.Zero(t, j.pid)
}

// While no guard can be started, each look tries to. That is said once, until one was started.
func TestRunWithoutAGuard(t *testing.T) {
	var said bytes.Buffer
	j := &job{
		runner: &runner{app: &app{}, log: slog.New(slog.NewTextHandler(&said, nil))}, guard: &guard{gone: true},
		terminal: terminal{fd: -1},
	}
	var limit syscall.Rlimit
	require.NoError(t, syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit))
	for times := range 2 {
		none := limit
		none.Cur = 0
		require.NoError(t, syscall.Setrlimit(syscall.RLIMIT_NOFILE, &none))
		for range 10 {
			j.guardAgain()
		}
		require.NoError(t, syscall.Setrlimit(syscall.RLIMIT_NOFILE, &limit))
		require.Equal(t, times+1, strings.Count(said.String(), "the command has no guard"), said.String())
		j.guardAgain()
		require.Equal(t, times+1, strings.Count(said.String(), "started another"), said.String())
		j.guard.dismiss()
		_, err := syscall.Wait4(j.guard.pid, nil, 0, nil)
		require.NoError(t, err)
		j.guard.gone = true
	}
}

// However often it is asked for, the ticker ticks.
func TestLooks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLooks()
		defer l.Stop()
		l.when(false)
		<-time.After(10 * looking)
		require.Empty(t, l.C)
		seen := 0
		for range 100 { // signals
			l.when(true)
			select {
			case <-l.C:
				seen++
			case <-time.After(looking / 5):
			}
		}
		require.GreaterOrEqual(t, seen, 15)
		l.when(false)
		<-time.After(10 * looking)
		require.Empty(t, l.C)
	})
}
