package protocol

import (
	"flag"
	"os"
	"testing"

	"github.com/lockregistry/lockregistry/internal/redistest"
)

// A script that touches a key that it has not declared fails the test of its server. Benchmarks measure the scripts as they are.
func TestMain(m *testing.M) {
	flag.Parse()
	if flag.Lookup("test.bench").Value.String() == "" {
		for _, script := range Scripts() {
			*script = *NewScript(redistest.WatchKeys + script.Source)
		}
	}
	os.Exit(m.Run())
}
