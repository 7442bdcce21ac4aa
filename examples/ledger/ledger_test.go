package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry"
	"github.com/lockregistry/lockregistry/internal/fault"
	"github.com/lockregistry/lockregistry/internal/redistest"
)

// The test binary runs as the writer that is to be stopped, when it is told the server and the file.
const asWriter = "LEDGER_WRITER"

func TestMain(m *testing.M) {
	server, file, ok := strings.Cut(os.Getenv(asWriter), " ")
	if !ok {
		os.Exit(m.Run())
	}
	err := run(context.Background(), server, file, "alice", 100, lease, func(uint64) {
		fmt.Println("has read")
		_, _ = bufio.NewReader(os.Stdin).ReadString('\n')
	})
	fmt.Println("late:", errors.Is(err, ErrLate))
	fmt.Println("lost:", errors.Is(err, lockregistry.ErrLockLost))
}

const lease = 8 * time.Second

// A writer is stopped between reading and writing, for longer than its lease. Another one takes over meanwhile. When the first
// one goes on its write is refused: without that the other one's would be lost.
func TestStoppedWriter(t *testing.T) {
	server := redistest.Start(t)
	file := filepath.Join(t.TempDir(), "ledger.db")
	self, err := os.Executable()
	require.NoError(t, err)
	writer := exec.CommandContext(t.Context(), self)
	writer.Env = append(os.Environ(), asWriter+"="+server.Addr()+" "+file)
	writer.Stderr = os.Stderr
	in, err := writer.StdinPipe()
	require.NoError(t, err)
	out, err := writer.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, writer.Start())
	t.Cleanup(func() { _ = writer.Process.Kill() })
	says := bufio.NewScanner(out)
	require.True(t, says.Scan())
	require.Equal(t, "has read", says.Text())
	require.NoError(t, writer.Process.Signal(syscall.SIGSTOP))

	begun := time.Now()
	require.NoError(t, written(func(think func(uint64)) error {
		return run(t.Context(), server.Addr(), file, "alice", 7, lease, think)
	}))
	t.Log("the other one has written after", time.Since(begun))

	require.NoError(t, writer.Process.Signal(syscall.SIGCONT))
	_, err = io.WriteString(in, "go on\n")
	require.NoError(t, err)
	require.True(t, says.Scan())
	require.Equal(t, "late: true", says.Text())
	require.True(t, says.Scan())
	require.Equal(t, "lost: true", says.Text(), "and the lock says so, too, but later")
	require.NoError(t, writer.Wait())

	ledger, err := OpenLedger(t.Context(), file)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, ledger.Close()) })
	balance, err := ledger.Balance(t.Context(), "alice")
	require.NoError(t, err)
	require.Equal(t, int64(7), balance)
	require.Error(t, ledger.SetBalance(t.Context(), "alice", 1, 0))
}

// written has a call add to a balance. On a busy machine the server may answer so late that the call does not get the lock, or
// loses it before the write: then the call is repeated. Once something is written, a late answer to the release does not count.
func written(call func(think func(token uint64)) error) error {
	for {
		read := false
		err := call(func(uint64) { read = true })
		lost, refused := errors.Is(err, lockregistry.ErrLockLost), errors.Is(err, ErrLate)
		late := errors.Is(err, fault.NoAnswer) || errors.Is(err, fault.Late) || errors.Is(err, fault.NotSent)
		switch {
		case err != nil && !lost && !late, refused && !lost:
			return err
		case read && !refused:
			return nil
		}
	}
}

// Writers of several processes one after another lose nothing, and none of them is taken for a late one.
func TestManyWriters(t *testing.T) {
	server := redistest.Start(t)
	ledger, err := OpenLedger(t.Context(), filepath.Join(t.TempDir(), "ledger.db"))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, ledger.Close()) })
	const processes, goroutines, rounds = 2, 3, 10
	done := make(chan error)
	for range processes {
		client, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{server.Addr()}})
		require.NoError(t, err)
		t.Cleanup(client.Close)
		locks, err := lockregistry.New(client, "ledger", lockregistry.WithFencing())
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, locks.Close()) })
		for range goroutines {
			go func() {
				var err error
				for range rounds {
					err = errors.Join(err, written(func(think func(uint64)) error {
						return add(t.Context(), locks, ledger, "alice", 1, think)
					}))
				}
				done <- err
			}()
		}
	}
	for range processes * goroutines {
		require.NoError(t, <-done)
	}
	balance, err := ledger.Balance(t.Context(), "alice")
	require.NoError(t, err)
	require.Equal(t, int64(processes*goroutines*rounds), balance)
}
