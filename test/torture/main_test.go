// Package torture tests the lock registry on a network and a server that fail in every way that they can.
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
	// Tests that run side by side here wait for time to pass, most of it; the processors are not what limits them.
	if err := flag.Set("test.parallel", "16"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
	os.Exit(m.Run())
}

// watchKeys has all scripts of the library report keys that they touch and have not declared: the test of the server fails then.
// The processes of a test do the same.
func watchKeys() {
	for _, script := range protocol.Scripts() {
		*script = *protocol.NewScript(redistest.WatchKeys + script.Source)
	}
}
