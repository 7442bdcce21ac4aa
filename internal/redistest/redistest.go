// Package redistest starts real Redis servers for tests, on loopback ports of
// their own, with nothing saved to disk.
//
// Nothing here but the connections of a Distance runs a goroutine once the call
// that started it has returned, so a test may look for leaked goroutines while
// its server is still up.
package redistest

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"
)

const (
	// serverVariable names the server to start by default.
	serverVariable = "LOCKREGISTRY_REDIS_SERVER"
	// serversVariable lists further servers for tests that run on several.
	serversVariable = "LOCKREGISTRY_TEST_SERVERS"
	// none names no server: scripts/unit-tests.sh gives it on systems that have no Redis.
	none = "none"
	// longestPause is the longest pause between two looks of Await.
	longestPause = 50 * time.Millisecond
)

// errNone skips the tests that need a server where there is none: the only reason to skip one.
var errNone = errors.New("redistest: without a server, as " + serverVariable + " says")

// stop ends a test that gets no server.
func stop(tb testing.TB, err error) {
	tb.Helper()
	if errors.Is(err, errNone) {
		tb.Skip(err)
	}
	tb.Fatal(err)
}

// Start starts the default redis-server with args appended to its command line
// and returns once it answers. The server is killed when the test ends. A test
// that cannot get a server fails: a skipped test proves nothing.
func Start(tb testing.TB, args ...string) *Server {
	tb.Helper()
	return StartBinary(tb, "", args...)
}

// StartBinary is Start with a server of the caller's choice: a path, or a name
// to look up on PATH. An empty binary means the default one.
func StartBinary(tb testing.TB, binary string, args ...string) *Server {
	tb.Helper()
	s, err := Run(binary, args...)
	if err != nil {
		stop(tb, err)
	}
	tb.Cleanup(func() {
		s.judge(tb)
		s.Stop()
		givePort(s.port)
	})
	return s
}

// Await reports whether something happens within a limit. It looks less and less often, since a look may cost a connection and
// a command: a sixteenth of the time so far passes between two looks, but no more than longestPause.
func Await(limit time.Duration, happened func() bool) bool {
	for start := time.Now(); !happened(); {
		waited := time.Since(start)
		if waited > limit {
			return false
		}
		<-time.After(min(max(waited/16, time.Millisecond), longestPause))
	}
	return true
}

// Patient are the tests of a package, for goleak.VerifyTestMain. After the last one goroutines have five seconds to end: after a
// late reply they may need a second, which is more than goleak waits.
type Patient struct {
	*testing.M
	Leaks func() error // reports goroutines that are left
}

// Run runs the tests.
func (p Patient) Run() int {
	code := p.M.Run()
	Await(5*time.Second, func() bool { return p.Leaks() == nil })
	return code
}

// Binaries returns the path of the default server, followed by the paths in
// LOCKREGISTRY_TEST_SERVERS, separated by commas or by the separator of PATH.
// A listed server that does not exist fails the test. Where tests run without servers there is none.
func Binaries(tb testing.TB) []string {
	tb.Helper()
	first, err := find("")
	if errors.Is(err, errNone) {
		return nil
	}
	if err != nil {
		tb.Fatal(err)
	}
	found := []string{first}
	list := strings.FieldsFunc(os.Getenv(serversVariable), func(r rune) bool {
		return r == ',' || r == os.PathListSeparator
	})
	for _, name := range list {
		if name = strings.TrimSpace(name); name == "" {
			continue
		}
		path, err := find(name)
		if err != nil {
			tb.Fatalf("%s: %v", serversVariable, err)
		}
		if !slices.Contains(found, path) {
			found = append(found, path)
		}
	}
	return found
}

// find resolves the name of a server to a path; the empty name is the default.
func find(binary string) (string, error) {
	if binary != "" {
		path, err := exec.LookPath(binary)
		if err != nil {
			return "", fmt.Errorf("redistest: server %q cannot be run: %w", binary, err)
		}
		return path, nil
	}
	switch named := os.Getenv(serverVariable); named {
	case "":
	case none:
		return "", errNone
	default:
		path, err := exec.LookPath(named)
		if err != nil {
			return "", fmt.Errorf("redistest: server named by %s cannot be run: %w", serverVariable, err)
		}
		return path, nil
	}
	path, err := exec.LookPath("redis-server")
	if err != nil {
		return "", fmt.Errorf("redistest: no redis-server found (%w). Install it "+
			"(Debian: apt-get install redis-server, macOS: brew install redis) "+
			"or set %s to the path of one", err, serverVariable)
	}
	return path, nil
}
