package main

import (
	"bytes"
	"context"
	"net"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	// A rueidis client that reaches no server leaves a delayed refresh of its cluster view behind, for a second or so.
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction("github.com/redis/rueidis.(*call).DelayDo.func1"))
}

// startRedis gives an embedded server whose keys the test can look at.
func startRedis(t *testing.T) (*miniredis.Miniredis, *redisServer) {
	t.Helper()
	embedded := miniredis.RunT(t)
	return embedded, embeddedRedis(embedded)
}

// pause is long enough for another goroutine to get in between the read and the write, if nothing stops it.
func pause(context.Context) { <-time.After(200 * time.Microsecond) }

// together lets n goroutines read before any of them writes. Should something keep them apart, the update's context ends
// the waiting, and the job fails.
func together(n int64) func(context.Context) {
	var readers atomic.Int64
	all := make(chan struct{})
	return func(ctx context.Context) {
		if readers.Add(1) == n {
			close(all)
		}
		select {
		case <-all:
		case <-ctx.Done():
		}
	}
}

// locks are the keys that are there, but for queues without a ticket, which may stay for two minutes.
func locks(t *testing.T, embedded *miniredis.Miniredis) []string {
	t.Helper()
	return slices.DeleteFunc(embedded.Keys(), func(key string) bool {
		if !strings.HasSuffix(key, ":waiters") {
			return false
		}
		members, err := embedded.ZMembers(key)
		require.NoError(t, err)
		return !slices.ContainsFunc(members, func(m string) bool { return m != "open" && m != "wide" })
	})
}

func TestLocksLoseNoUpdate(t *testing.T) {
	embedded, server := startRedis(t)
	j := newJob(config{services: 3, goroutines: 4, paths: 2, updates: 200, prefix: "p", think: pause})

	require.NoError(t, j.run(t.Context(), server.connect))

	assert.Zero(t, j.lost())
	assert.EqualValues(t, 200, j.done.Load())
	for _, c := range j.counters {
		assert.Len(t, c.waits, 100)
		assert.EqualValues(t, 100, c.final)
	}
	assert.Empty(t, locks(t, embedded), "the job leaves locks behind")
	assert.Eventually(t, func() bool { return embedded.CurrentConnectionCount() == 0 }, 10*time.Second, time.Millisecond,
		"the job leaves connections open")
}

func TestWithoutLocksTheCheckFindsWhatIsLost(t *testing.T) {
	embedded, server := startRedis(t)
	const workers = 2 * 3
	j := newJob(config{services: 2, goroutines: 3, paths: 1, updates: workers, noLock: true, prefix: "p",
		think: together(workers)})

	require.NoError(t, j.run(t.Context(), server.connect))

	assert.EqualValues(t, workers, j.done.Load())
	assert.EqualValues(t, 1, j.counters[0].final, "all of them read 0 and wrote 1")
	assert.EqualValues(t, workers-1, j.lost())
	assert.Empty(t, embedded.Keys(), "the job leaves keys behind")
}

func TestInterruptedJobKeepsItsBooksAndCleansUp(t *testing.T) {
	embedded, server := startRedis(t)
	ctx, interrupt := context.WithCancel(t.Context())
	j := newJob(config{services: 2, goroutines: 4, paths: 1, updates: 1_000_000, prefix: "p",
		think: func(context.Context) { interrupt() }})

	require.NoError(t, j.run(ctx, server.connect))

	assert.Positive(t, j.done.Load(), "the update that had begun is finished")
	assert.Less(t, j.done.Load(), int64(1_000_000))
	assert.True(t, j.checked)
	assert.Zero(t, j.lost())
	assert.Empty(t, locks(t, embedded), "the job leaves locks behind")
}

// In an address that cannot be read any part may be the password.
func TestAddressThatCannotBeReadIsNotRepeated(t *testing.T) {
	for _, address := range []string{
		"redis://:s3c#x@host:6379", "redis://user:s3c/x@host:6379", "redis://:s3c%x@host:6379", "redis://:12#s3c@host:6379",
		"redis://:12?s3c@host:6379", "redis://user:12?s3c@host:6379",
	} {
		_, err := openRedis(address)
		require.ErrorContains(t, err, "REDIS_URL is not an address")
		assert.NotContains(t, err.Error(), "s3c")
	}
}

func TestPrefixInUseIsRefused(t *testing.T) {
	embedded, server := startRedis(t)
	require.NoError(t, embedded.Set("p-counter:account-2", "7"))
	j := newJob(config{services: 1, goroutines: 1, paths: 2, updates: 1, prefix: "p", think: pause})

	err := j.run(t.Context(), server.connect)

	require.ErrorContains(t, err, "p-counter:account-2 exists already")
	assert.Equal(t, []string{"p-counter:account-2"}, embedded.Keys(), "only what the job made is removed")
}

func TestExitCodes(t *testing.T) {
	interrupted, interrupt := context.WithCancel(t.Context())
	interrupt()
	// Nobody listens on a port that was free a moment ago.
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	nobody := "redis://:secret@" + listener.Addr().String()
	require.NoError(t, listener.Close())

	small := []string{"-updates", "20", "-services", "2", "-goroutines", "2"}
	for name, test := range map[string]struct {
		ctx      context.Context
		args     []string
		redisURL string
		code     int
		stdout   string
		stderr   string
	}{
		"locks":           {args: small, code: exitOK, stdout: "No update was lost: "},
		"no locks":        {args: append([]string{"-nolock"}, small...), code: exitOK, stdout: "lost updates"},
		"interrupted":     {ctx: interrupted, args: small, code: exitInterrupted, stdout: "lost updates", stderr: "interrupted"},
		"unknown flag":    {args: []string{"-x"}, code: exitUsage, stderr: "-x"},
		"no updates":      {args: []string{"-updates", "0"}, code: exitUsage, stderr: "at least 1"},
		"no such server":  {args: small, redisURL: nobody, code: exitFailed, stderr: "cannot reach Redis at redis://:xxxxx@"},
		"not a redis URL": {args: small, redisURL: "localhost:6379", code: exitFailed, stderr: "redis://host:6379"},
	} {
		t.Run(name, func(t *testing.T) {
			ctx := test.ctx
			if ctx == nil {
				ctx = t.Context()
			}
			var stdout, stderr bytes.Buffer
			assert.Equal(t, test.code, run(ctx, test.args, test.redisURL, &stdout, &stderr), stderr.String())
			assert.Contains(t, stdout.String(), test.stdout)
			assert.Contains(t, stderr.String(), test.stderr)
			assert.NotContains(t, stderr.String(), "secret")
		})
	}
}

func TestTableShowsLossUnderLocksAsAFault(t *testing.T) {
	j := newJob(config{paths: 1})
	j.counters[0].waits = []time.Duration{3 * time.Millisecond, time.Millisecond, 2 * time.Millisecond}
	j.counters[0].final = 2

	var out bytes.Buffer
	printTable(&out, j)

	assert.EqualValues(t, 1, j.lost())
	assert.Equal(t, exitFailed, exitCode(t.Context(), j))
	assert.Contains(t, out.String(), "That is a fault.")
	cells := strings.Fields(strings.Split(out.String(), "\n")[2])
	assert.Equal(t, []string{"account-1", "3", "3.0", "ms", "2.0", "ms", "2", "1"}, cells)
}
