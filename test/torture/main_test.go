// Package torture tests the lock registry on a network and a server that fail in every way they can.
package torture

import (
	"flag"
	"fmt"
	"os"
	"testing"

	"github.com/lockregistry/lockregistry/internal/peer"
	"github.com/lockregistry/lockregistry/internal/protocol"
	"github.com/lockregistry/lockregistry/internal/redistest"
)

func TestMain(m *testing.M) {
	watchKeys()
	peer.Main(doJob)
	flag.Parse()
	// Tests that run side by side here mostly wait for time to pass; the processors are not what limits them.
	if err := flag.Set("test.parallel", "16"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
	os.Exit(m.Run())
}

// watchKeys makes all scripts of the library report keys that they touch without declaring them; the server's test then fails.
// The processes of a test do the same.
func watchKeys() {
	for _, script := range protocol.Scripts() {
		*script = *protocol.NewScript(redistest.WatchKeys + script.Source)
	}
}
