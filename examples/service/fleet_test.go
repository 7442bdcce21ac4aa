package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/lockregistry/lockregistry/internal/redistest"
)

// instance is a process of the service.
type instance struct {
	t       *testing.T
	process *exec.Cmd
	address string
}

const (
	shortLease = 2 * time.Second
	shortNight = 2 * time.Second
)

var serving = regexp.MustCompile(`serving address=(\S+)`)

func build(t *testing.T) (program string) {
	t.Helper()
	program = filepath.Join(t.TempDir(), "service")
	if out, err := exec.CommandContext(t.Context(), "go", "build", "-o", program, ".").CombinedOutput(); err != nil {
		t.Fatal(err, string(out))
	}
	return program
}

// start starts an instance, and returns when it serves.
func start(t *testing.T, program string, redis *redistest.Server) *instance {
	t.Helper()
	i := &instance{t: t, process: exec.CommandContext(t.Context(), program,
		"-listen", "127.0.0.1:0", "-lease", shortLease.String(), "-every", shortNight.String())}
	i.process.Env = append(os.Environ(), "REDIS_URL=redis://"+redis.Addr())
	read, write, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	i.process.Stderr = write
	if err := i.process.Start(); err != nil {
		t.Fatal(err)
	}
	_ = write.Close()
	lines := bufio.NewScanner(read)
	for lines.Scan() {
		t.Log(lines.Text())
		if match := serving.FindStringSubmatch(lines.Text()); match != nil {
			i.address = match[1]
			break
		}
	}
	if i.address == "" {
		t.Fatal("it does not serve")
	}
	go func() { _, _ = io.Copy(io.Discard, read) }()
	t.Cleanup(func() { _ = i.process.Process.Kill() })
	return i
}

// ask sends a request. The status is 0 when nobody answers.
func (i *instance) ask(method, path string) (status int, text string) {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, method, "http://"+i.address+path, nil)
	if err != nil {
		return 0, err.Error()
	}
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		return 0, err.Error()
	}
	defer func() { _ = answer.Body.Close() }()
	body, err := io.ReadAll(answer.Body)
	return answer.StatusCode, strings.TrimSpace(fmt.Sprint(string(body), errors.Join(err)))
}

func (i *instance) leads() bool {
	_, text := i.ask(http.MethodGet, "/leading")
	return strings.HasPrefix(text, "true")
}

// eventually waits until something is so, and returns how long that took.
func eventually(t *testing.T, what string, within time.Duration, so func() bool) time.Duration {
	t.Helper()
	began := time.Now()
	for !so() {
		if time.Since(began) > within {
			t.Fatalf("not within %v: %s", within, what)
		}
		<-time.After(5 * time.Millisecond)
	}
	return time.Since(began)
}

// TestFleet runs two instances on a real server, kills one, stops one, and stops the server.
func TestFleet(t *testing.T) {
	program, redis := build(t), redistest.Start(t)
	first, second := start(t, program, redis), start(t, program, redis)
	number := func(name string) int {
		n, _ := strconv.Atoi(redis.Command(t, "GET", "shop:"+name))
		return n
	}

	// Requests to both at once.
	var all sync.WaitGroup
	for k := range 200 {
		for _, i := range []*instance{first, second} {
			all.Go(func() {
				for _, path := range []string{fmt.Sprintf("/customers/%d/credit/5", k%2), fmt.Sprintf("/orders/%d/ship", k%10)} {
					if status, text := i.ask(http.MethodPost, path); status != http.StatusOK {
						t.Error(path, status, text)
					}
				}
				if k%10 == 0 {
					_, _ = i.ask(http.MethodPut, fmt.Sprintf("/price/%d", 5*k))
				}
				var net, tax int
				status, text := i.ask(http.MethodGet, "/price")
				if _, err := fmt.Sscan(text, &net, &tax); status != http.StatusOK || err != nil || tax != net/5 {
					t.Error("price:", status, text)
				}
			})
		}
	}
	all.Wait()
	for _, customer := range []string{"0", "1"} {
		if n := number("balance:" + customer); n != 1000 {
			t.Error("credit was lost:", n)
		}
	}
	for order := range 10 {
		if n := number(fmt.Sprintf("packed:%d:0", order)); n != 1 {
			t.Error("an order was packed", n, "times")
		}
	}

	// What both did is counted.
	for _, i := range []*instance{first, second} {
		if status, text := i.ask(http.MethodGet, "/metrics"); status != http.StatusOK ||
			!strings.Contains(text, "lockregistry_acquire_duration_seconds_count{") {
			t.Error("metrics:", status, text)
		}
	}

	// The nightly job, when the clock has struck three times.
	began, nights := time.Now(), number("nights")
	eventually(t, "three nights", 4*shortNight, func() bool { return number("nights") >= nights+3 })
	if took := time.Since(began); took < 2*shortNight {
		t.Error("three nights took", took)
	}

	// One leads. When it is killed the other one leads as soon as the lease is over.
	eventually(t, "somebody leads", 5*time.Second, func() bool { return first.leads() || second.leads() })
	if first.leads() && second.leads() {
		t.Error("two lead")
	}
	if second.leads() {
		first, second = second, first
	}
	if err := first.process.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = first.process.Wait()
	t.Log("led again after a kill:", eventually(t, "the other one leads", shortLease+time.Second, second.leads))

	// One that is stopped in order leads no longer, and the other one does at once.
	third := start(t, program, redis)
	if err := second.process.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	t.Log("led again after SIGTERM:", eventually(t, "the third one leads", time.Second, third.leads))
	if err := second.process.Wait(); err != nil {
		t.Error("SIGTERM:", err)
	}

	// Without Redis it is alive and not ready.
	for _, path := range []string{"/alive", "/ready"} {
		if status, text := third.ask(http.MethodGet, path); status != http.StatusOK {
			t.Error(path, status, text)
		}
	}
	redis.Freeze()
	if status, text := third.ask(http.MethodPost, "/orders/99/ship"); status != http.StatusServiceUnavailable {
		t.Error("without Redis:", status, text)
	}
	if status, _ := third.ask(http.MethodGet, "/ready"); status != http.StatusServiceUnavailable {
		t.Error("ready without Redis")
	}
	if status, _ := third.ask(http.MethodGet, "/alive"); status != http.StatusOK {
		t.Error("not alive without Redis")
	}
	redis.Thaw()
	eventually(t, "shipped when Redis is back", 10*time.Second, func() bool {
		status, _ := third.ask(http.MethodPost, "/orders/99/ship")
		return status == http.StatusOK
	})
}
