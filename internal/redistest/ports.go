package redistest

import (
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"sync"
	"testing"
)

// ports are the ports that this program has chosen. It keeps the port of a server that is down, or that starts later. Other
// programs choose ports at the same time: each locks the byte of a file whose offset is the port. The operating system unlocks
// the bytes of a program that has ended.
var ports struct {
	mu     sync.Mutex
	chosen map[int]bool
	file   *os.File // stays open: closing it would unlock all bytes
}

// FreePort chooses a port that nobody listens on, for this test alone until it ends.
func FreePort(tb testing.TB) int {
	tb.Helper()
	port := choosePort()
	tb.Cleanup(func() { givePort(port) })
	return port
}

// choosePort chooses a port that nobody listens on and no program has chosen. It stays below the range that systems use for
// outgoing connections: a client that dials while its server is down could otherwise get the very port that Restart needs. A
// cluster's bus, 10000 above, stays below that range too.
func choosePort() int {
	const lowest, count = 10000, 10000
	for {
		port := lowest + rand.IntN(count)
		if !claimPort(port) {
			continue
		}
		listener, err := net.Listen("tcp", addr(port))
		if err == nil {
			_ = listener.Close()
			return port
		}
		givePort(port)
	}
}

// claimPort claims a port, and reports false if this or another program has it.
func claimPort(port int) bool {
	ports.mu.Lock()
	defer ports.mu.Unlock()
	if ports.file == nil {
		name := filepath.Join(os.TempDir(), fmt.Sprintf("lockregistry-ports.%d.lock", os.Getuid()))
		file, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE, 0o600)
		if err != nil {
			panic("redistest: no file to choose ports by: " + err.Error())
		}
		ports.file, ports.chosen = file, map[int]bool{}
	}
	if ports.chosen[port] || !lockByte(ports.file, port) {
		return false
	}
	ports.chosen[port] = true
	return true
}

// givePort gives a port back.
func givePort(port int) {
	ports.mu.Lock()
	defer ports.mu.Unlock()
	if ports.chosen[port] {
		delete(ports.chosen, port)
		unlockByte(ports.file, port)
	}
}
