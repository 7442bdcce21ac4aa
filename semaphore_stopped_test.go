//go:build unix

package lockregistry_test

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry"
)

// stoppable is a process that asks for two permits.
const stoppable = "LOCKREGISTRY_STOPPABLE"

// A process stands still while its call is the first one: a permit that is too few for that call is not kept from those behind
// it for long. When it goes on the call has its place again.
func TestSemaphoreQueue_FirstOneIsStopped(t *testing.T) {
	if addr := os.Getenv(stoppable); addr != "" {
		takeTwo(t, addr)
		return
	}
	realWorlds(t, func(w *world) {
		one, two := w.registry().Semaphore("seat", 2), w.registry().Semaphore("seat", 2)
		held := w.permit(one)
		self, err := os.Executable()
		require.NoError(w, err)
		child := exec.CommandContext(w.Context(), self, "-test.run", "^TestSemaphoreQueue_FirstOneIsStopped$")
		child.Env, child.Stderr = append(os.Environ(), stoppable+"="+w.server.Addr()), os.Stderr
		in, err := child.StdinPipe()
		require.NoError(w, err)
		out, err := child.StdoutPipe()
		require.NoError(w, err)
		require.NoError(w, child.Start())
		says := make(chan string, 9)
		go func() {
			for lines := bufio.NewScanner(out); lines.Scan(); {
				says <- lines.Text()
			}
			close(says)
		}()
		w.await("it waits", func() bool { return w.seats() == 1 })
		queue := "orders:{" + seat + "}:waiters"
		small := w.asks("small", two)
		w.await("it was asked, and has looked", func() bool {
			return w.do("ZSCORE", queue, "wide") != "-1" &&
				!strings.Contains(w.do("ZRANGEBYSCORE", queue, "0", "+inf", "WITHSCORES", "LIMIT", "0", "1"), ".5")
		})
		require.NoError(w, child.Process.Signal(syscall.SIGSTOP))
		var status syscall.WaitStatus
		_, err = syscall.Wait4(child.Process.Pid, &status, syscall.WUNTRACED, nil)
		require.NoError(w, err)
		require.True(w, status.Stopped())

		start := time.Now()
		w.full(two)
		got := small.comes()
		require.Less(w, time.Since(start), 2400*time.Millisecond+atOnce)
		require.Equal(w, 2, w.inside())
		later := w.asks("later", two)
		require.NoError(w, child.Process.Signal(syscall.SIGCONT))
		w.await("it is the first one again", func() bool {
			return strings.Contains(w.do("ZRANGEBYSCORE", queue, "0", "+inf", "LIMIT", "0", "1"), "p2") && w.seats() == 2
		})
		w.release(held)
		later.waits()
		w.release(got)
		require.Equal(w, "has two", <-says)
		later.waits()
		_, err = io.WriteString(in, "go on\n")
		require.NoError(w, err)
		w.release(later.comes())
		for range says {
		}
		require.NoError(w, child.Wait())
		require.Zero(w, w.inside())
	})
}

func takeTwo(t *testing.T, addr string) {
	t.Helper()
	client, err := newClient(rueidis.ClientOption{InitAddress: []string{addr}})
	require.NoError(t, err)
	defer client.Close()
	r, err := lockregistry.New(client, "orders")
	require.NoError(t, err)
	defer func() { require.NoError(t, r.Close()) }()
	h, err := r.Semaphore("seat", 2).Acquire(t.Context(), lockregistry.Permits(2))
	require.NoError(t, err)
	fmt.Println("has two")
	_, _ = bufio.NewReader(os.Stdin).ReadString('\n')
	require.NoError(t, h.Release(t.Context()))
}

// One that runs is asked now and then, and keeps what it needs, however many come behind it.
func TestSemaphoreQueue_FirstOneRuns(t *testing.T) {
	realWorlds(t, func(w *world) {
		s, f := w.registry().Semaphore("seat", 2), w.flaky()
		held := w.permit(s)
		large := w.asks("large", f.registry().Semaphore("seat", 2), lockregistry.Permits(2))
		var small []*waiting
		for i := range 3 {
			small = append(small, w.asks(strconv.Itoa(i), w.registry().Semaphore("seat", 2)))
		}
		before := f.count("obtain_queued")
		w.await("it was asked again and again", func() bool { return f.count("obtain_queued") > before+3 })
		for _, c := range append(small, large) {
			c.waits()
		}
		require.Equal(w, 4, w.seats())
		w.release(held)
		w.release(large.comes())
		for _, c := range small {
			w.release(c.comes())
		}
	})
}
