//go:build unix

package main_test

import (
	"bufio"
	"bytes"
	"net/http"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// most is the greatest memory that the program has had, in bytes.
func (p *program) most(t *testing.T) int64 {
	t.Helper()
	<-p.done
	usage, ok := p.ProcessState.SysUsage().(*syscall.Rusage)
	require.True(t, ok)
	if runtime.GOOS == "linux" {
		return usage.Maxrss << 10
	}
	return usage.Maxrss
}

// onThePage has lockreg serve a prefix, reads the page's stream until it says something, and ends it.
func onThePage(t *testing.T, s server, prefix, want string) (p *program, took time.Duration) {
	t.Helper()
	p = prepare(s.url, "serve", prefix, "--listen", "127.0.0.1:0").begin(t)
	var url string
	eventually(t, "it serves", func() bool {
		found := regexp.MustCompile(`url=(http://\S+)`).FindStringSubmatch(p.err.String())
		if found != nil {
			url = found[1]
		}
		return found != nil
	})
	began := time.Now()
	answer, err := http.Get(url + "events")
	require.NoError(t, err)
	defer func() { _ = answer.Body.Close() }()
	stream := bufio.NewScanner(answer.Body)
	stream.Buffer(nil, 1<<24)
	for stream.Scan() {
		if strings.Contains(stream.Text(), want) {
			took = time.Since(began)
			require.NoError(t, p.Process.Signal(syscall.SIGTERM))
			<-p.done
			return p, took
		}
	}
	t.Fatalf("the page does not say %q: %v", want, stream.Err())
	return nil, 0
}

// What is very long, be it a value, a counter, a member, a field, a record or a name of a key, does not come to lockreg: whatever
// it is asked, it needs no more memory than without that.
func TestMemoryWithWhatIsTooLong(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	const id = "0b6e4bd7-6a8e-4f6e-9f0a-6a2f6d0f4c55"
	s.Command(t, "SET", "shop:a", id+":7")
	lookAll := func() (texts map[string]string, memory map[string]int64) {
		texts, memory = map[string]string{}, map[string]int64{}
		for _, args := range []string{
			"ls shop", "ls shpo", "show shop a", "show shop read", "deadlocks shop", "doctor shop --url " + s.url + "/1",
		} {
			p := prepare(s.url, strings.Fields(args)...).begin(t)
			p.code(t)
			texts[args], memory[args] = p.out.String(), p.most(t)
			assert.Less(t, len(texts[args]), 20_000, args)
		}
		return texts, memory
	}
	_, before := lookAll()
	page, _ := onThePage(t, s, "shop", `"path":"a"`)
	before["serve"] = page.most(t)

	// The second database has nothing else: whoever is sent any name is sent that one.
	for _, write := range []string{
		`redis.call('SET', 'shop:value', long)`,
		`redis.call('SET', 'shop:{shop:a}:fencing', long)`,
		`redis.call('ZADD', 'shop:{shop:a}:waiters', 1795278376064288, long)`,
		`redis.call('HSET', 'shop:read', 'f' .. long, '1')`,
		`redis.call('HSET', 'shop:read', ARGV[1] .. ':8', long)`,
		`redis.call('SET', 'shop:{' .. ARGV[1] .. '}:registry', long)`,
		`redis.call('SET', 'shop:' .. long, ARGV[1])`,
		`redis.call('SELECT', 1) redis.call('SET', 'shop:' .. long, ARGV[1])`,
	} {
		s.Command(t, "EVAL", "local long = string.rep('x', 2e7) "+write, "0", id)
	}
	texts, after := lookAll()
	page, _ = onThePage(t, s, "shop", "(too long: 20000005 bytes)")
	after["serve"] = page.most(t)
	for args, memory := range after {
		assert.Less(t, memory-before[args], int64(15<<20), args)
	}
	assert.Regexp(t, `(?m)^x+ \(too long: 20000005 bytes\) +too long +unknown +0$`, texts["ls shop"])
	assert.Regexp(t, `too long +\S+:7\n`, texts["show shop a"], "the token")
	assert.Contains(t, texts["show shop a"], "(too long: 20000000 bytes)", "who waits")
	assert.Contains(t, texts["show shop read"], "(too long: 20000001 bytes)")
	assert.Contains(t, texts["ls shpo"], "did you mean shop?")
}

// pace is an output of which only matters when its lines come.
type pace struct {
	began       time.Time
	lines       int
	first, many time.Duration // when there is one, and when there are 100 000
}

func (p *pace) Write(text []byte) (int, error) {
	p.lines += bytes.Count(text, []byte("\n"))
	now := time.Since(p.began)
	if p.first == 0 {
		p.first = now
	}
	if p.many == 0 && p.lines > 100_000 {
		p.many = now
	}
	return len(text), nil
}

// A pass reads 125 000 locks before it paces itself. With more the first ones are shown soon, and the last ones without making up
// for what those before have cost, which would take twenty times as long.
func TestManyLocks(t *testing.T) {
	t.Parallel()
	const locks, soon = 130_000, 8 * time.Second
	s := startServer(t)
	s.Command(t, "EVAL", `for i = 1, ARGV[2] do redis.call('SET', 'shop:' .. i, ARGV[1] .. ':' .. i, 'PX', 600000) end`, "0",
		"0b6e4bd7-6a8e-4f6e-9f0a-6a2f6d0f4c55", strconv.Itoa(locks))
	p, shown := prepare(s.url, "ls", "shop"), &pace{began: time.Now()}
	p.Stdout = shown
	p.begin(t)
	select {
	case <-p.done:
	case <-time.After(2 * time.Minute):
		t.Fatal("it takes too long, whatever the machine does besides")
	}
	end := time.Since(shown.began)
	require.Zero(t, p.ProcessState.ExitCode(), p.err.String())
	require.Greater(t, shown.lines, locks)
	assert.Less(t, end, 4*shown.many)
	assert.Less(t, shown.first, max(soon, end/3), "a machine that is busy needs longer for all")
	_, took := onThePage(t, s, "shop", `"path":"1`)
	assert.Less(t, took, max(soon, end/3))
}
