package main

import (
	"bytes"
	"context"
	"os"
	"regexp"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry"
	"github.com/lockregistry/lockregistry/inspect"
	"github.com/lockregistry/lockregistry/internal/redistest"
	"github.com/lockregistry/lockregistry/observe"
)

// differs is what differs from run to run, with what stands for it.
var differs = []struct {
	pattern *regexp.Regexp
	with    string
}{
	{regexp.MustCompile(`time=\S+`), "time=T"},
	{regexp.MustCompile(`caller=\S+`), "caller=C"},
	{regexp.MustCompile(`[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}`), "ID"},
	{regexp.MustCompile(` on \S+, process \d+`), " on H, process P"},
	{regexp.MustCompile(`\b\d[\d.]*(ms|s|m\d\ds)\b`), "D"},
	{regexp.MustCompile(`\b\d{16}\b`), "N"},
	{regexp.MustCompile(` +`), " "},
}

// constant is text without what differs.
func constant(text string) string {
	for _, d := range differs {
		text = d.pattern.ReplaceAllString(text, d.with)
	}
	return text
}

// TestReadme: each command of the README prints what stands there.
func TestReadme(t *testing.T) {
	s := redistest.Start(t)
	registry := func(name string, opts ...lockregistry.Option) *lockregistry.Registry {
		client, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{s.Addr()}, DisableCache: true})
		require.NoError(t, err)
		r, err := lockregistry.New(client, "shop", append(opts, lockregistry.WithName(name), lockregistry.WithLease(time.Minute))...)
		require.NoError(t, err)
		t.Cleanup(func() {
			_ = r.Close()
			client.Close()
		})
		return r
	}
	ctx, cancel := context.WithCancel(context.Background())
	var held []*lockregistry.Hold // what nobody can release is not renewed
	defer func() { runtime.KeepAlive(held) }()
	hold := func(l *lockregistry.Lock) {
		h, err := l.Acquire(ctx)
		require.NoError(t, err)
		held = append(held, h)
	}
	billing, mailer := registry("billing", lockregistry.WithFencing()), registry("mailer")
	hold(billing.Obtain("orders:42"))
	hold(billing.ReadWrite("catalogue").Reader())
	hold(mailer.ReadWrite("catalogue").Reader())
	s.Command(t, "SET", "shop:stock", "0b6e4bd7-6a8e-4f6e-9f0a-6a2f6d0f4c55", "PX", "60000")
	done := make(chan struct{})
	go func() {
		defer close(done)
		var all sync.WaitGroup
		for range 4 {
			all.Go(func() { _, _ = mailer.Acquire(ctx, "orders:42") })
		}
		all.Wait()
	}()
	defer func() {
		cancel()
		<-done
	}()
	for deadline := time.Now().Add(time.Minute); ; <-time.After(10 * time.Millisecond) {
		if labelled(ctx, t, billing, "orders:42") && labelled(ctx, t, mailer, "orders:42") { // each knows itself
			break
		}
		require.True(t, time.Now().Before(deadline), "no labels")
	}

	text, err := os.ReadFile("README.md")
	require.NoError(t, err)
	blocks := regexp.MustCompile("(?s)```console\n\\$ lockreg ([^\n]*)\n(.*?)```").FindAllStringSubmatch(string(text), -1)
	require.Len(t, blocks, 5)
	for _, block := range blocks {
		var out bytes.Buffer
		a := &app{in: &bytes.Buffer{}, out: &out, err: &out, url: "redis://" + s.Addr()}
		if block[1] == "deadlocks shop" {
			web1 := observe.Label{Registry: "r", Host: "web-1", PID: 1, Name: "billing"}
			web2 := observe.Label{Registry: "s", Host: "web-2", PID: 1, Name: "mailer"}
			since := time.Now().Add(-12 * time.Second)
			require.NoError(t, a.printDeadlocks([]observe.Deadlock{{Waits: []observe.DeadlockWait{
				{Owner: "goroutine 17", Label: web1, Holds: []string{"orders:42"}, Path: "stock", Since: since},
				{Owner: "goroutine 9", Label: web2, Holds: []string{"stock"}, Path: "orders:42", Since: since},
			}}}))
		} else {
			a.execute(append([]string{"--url", a.url}, words(block[1])...))
		}
		assert.Equal(t, constant(block[2]), constant(out.String()), block[1])
	}
}

// labelled tells whether a registry sees who holds a path and who waits for it.
func labelled(ctx context.Context, t *testing.T, r *lockregistry.Registry, path string) bool {
	t.Helper()
	info, err := inspect.Of(r).Inspect(ctx, path)
	require.NoError(t, err)
	return len(info.Holders) == 1 && !info.Holders[0].Granted.IsZero() && len(info.Waiters) == 1 && info.Waiters[0].Behind == 3
}

// words are those of a command line, as a shell has them.
func words(line string) (found []string) {
	for i, part := range strings.Split(line, `"`) {
		if i%2 == 1 {
			found = append(found, part)
		} else {
			found = append(found, strings.Fields(part)...)
		}
	}
	return found
}
