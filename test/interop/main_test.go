// Package interop tests this library against the real Java lock libraries, each
// side in processes of its own.
package interop

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry/internal/peer"
	"github.com/lockregistry/lockregistry/internal/redistest"
	"github.com/lockregistry/lockregistry/test/interop/gopeer"
)

const (
	// buildLimit bounds Maven, which downloads the libraries the first time.
	buildLimit = 8 * time.Minute
	// callLimit bounds a command that should end at once or soon.
	callLimit = 30 * time.Second
)

var (
	server  *redistest.Server
	project = peer.Java{Dir: "jvm"}
	peers   = pool{running: map[string]*peer.Peer{}}
)

func TestMain(m *testing.M) {
	peer.Main(gopeer.Commands())
	// The tests mostly wait.
	if err := flag.Set("test.parallel", "8"); err != nil {
		panic(err)
	}
	flag.Parse()
	os.Exit(run(m))
}

// run prepares what the tests share: a server, the built Java programs, and the
// processes that the tests start when they need them.
func run(m *testing.M) int {
	ctx, cancel := context.WithTimeout(context.Background(), buildLimit)
	defer cancel()
	if err := project.Build(ctx); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	started, err := redistest.Run("")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	server = started
	defer server.Stop()
	code := m.Run()
	if err := peers.close(); err != nil {
		fmt.Fprintln(os.Stderr, "FAILED after the tests, at the end of the processes:", err)
		code = 1
	}
	printVerdicts(os.Stdout)
	return code
}

// pool keeps processes from one test to the next: starting a JVM costs more than
// a test.
type pool struct {
	mu      sync.Mutex
	running map[string]*peer.Peer
}

// get returns the n-th process of a library, starting it when needed.
func (p *pool) get(t *testing.T, lib library, n int) *peer.Peer {
	t.Helper()
	p.mu.Lock()
	defer p.mu.Unlock()
	name := fmt.Sprintf("%s #%d", lib.program(), n)
	if p.running[name] == nil {
		p.running[name] = start(t, name, lib)
	}
	return p.running[name]
}

// close ends all processes and reports those that failed, such as a Go peer in which the race detector found a race.
func (p *pool) close() error {
	faults := make([]error, 0, len(p.running))
	for _, running := range p.running {
		faults = append(faults, running.Close())
	}
	return errors.Join(faults...)
}

// start starts a separate process of a library.
func start(t *testing.T, name string, lib library) *peer.Peer {
	t.Helper()
	again := peer.Again
	if lib.module != "" {
		again = func(name string) (*peer.Peer, error) { return project.Start(name, lib.module) }
	}
	started, err := again(name)
	require.NoError(t, err)
	return started
}

// port returns the port of a server.
func port(t *testing.T, at *redistest.Server) string {
	t.Helper()
	_, number, err := net.SplitHostPort(at.Addr())
	require.NoError(t, err)
	return number
}
