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
	shortLease = 15 * time.Second
	shortNight = 2 * time.Second

	// patient is how long requests of tests wait, and brief those that find Redis silent. On a busy machine a process or a server
	// may stand still for some seconds.
	patient = time.Minute
	brief   = time.Second
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

// start starts an instance whose requests wait for so long, and returns when it serves.
func start(t *testing.T, program string, redis *redistest.Server, patience time.Duration) *instance {
	t.Helper()
	i := &instance{t: t, process: exec.CommandContext(t.Context(), program,
		"-listen", "127.0.0.1:0", "-lease", shortLease.String(), "-every", shortNight.String(),
		"-patience", patience.String())}
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
	ctx, cancel := context.WithTimeout(context.Background(), 3*patient)
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

// served reports whether a patient request was served. On a busy machine the release may have no answer in time, which is told,
// too: the work is done then, and must not be repeated.
func served(status int) bool {
	return status == http.StatusOK || status == http.StatusInternalServerError
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
	program, redis, began := build(t), redistest.Start(t), time.Now()
	first, second := start(t, program, redis, patient), start(t, program, redis, patient)
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
					if status, text := i.ask(http.MethodPost, path); !served(status) {
						t.Error(path, status, text)
					}
				}
				if k%10 == 0 {
					_, _ = i.ask(http.MethodPut, fmt.Sprintf("/price/%d", 5*k))
				}
				var net, tax int
				status, text := i.ask(http.MethodGet, "/price")
				if !served(status) {
					t.Error("price:", status, text)
				} else if _, err := fmt.Sscan(text, &net, &tax); status == http.StatusOK && (err != nil || tax != net/5) {
					t.Error("price:", text)
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

	// The nightly job, when the clock has struck some times. One of the two does it.
	eventually(t, "nights", time.Minute, func() bool { return number("nights") >= 4 })
	if n, most := number("nights"), 1+int(time.Since(began)/(shortNight*9/10)); n > most {
		t.Errorf("%d nights in the time of %d", n, most)
	}

	// One leads. When it is killed the other one leads as soon as the lease is over.
	eventually(t, "somebody leads", time.Minute, func() bool { return first.leads() || second.leads() })
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
	t.Log("led again after a kill:", eventually(t, "the other one leads", time.Minute, second.leads))

	// One that is stopped in order leads no longer, and the other one does at once: before the lease could end, of which two thirds
	// are left.
	third := start(t, program, redis, brief)
	if err := second.process.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	t.Log("led again after SIGTERM:", eventually(t, "the third one leads", shortLease*2/3, third.leads))
	if err := second.process.Wait(); err != nil {
		t.Error("SIGTERM:", err)
	}

	// Without Redis it is alive and not ready.
	for _, path := range []string{"/alive", "/ready"} {
		eventually(t, path, time.Minute, func() bool {
			status, _ := third.ask(http.MethodGet, path)
			return status == http.StatusOK
		})
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
	eventually(t, "shipped when Redis is back", time.Minute, func() bool {
		status, _ := third.ask(http.MethodPost, "/orders/99/ship")
		return status == http.StatusOK
	})
}
