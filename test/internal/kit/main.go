package kit

import (
	"flag"
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"strconv"
	"testing"

	"github.com/yuin/gopher-lua"
	"go.uber.org/goleak"

	"github.com/lockregistry/lockregistry/internal/redistest"
)

// Main runs the tests of a package: the TestMain of each theme calls it. It checks that no goroutine is left, and that the
// shared cluster is unchanged.
func Main(m *testing.M) {
	flag.Parse()
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(200) // little memory is in use at any time: spend less time on collecting it
	}
	WatchKeys()
	// Miniredis makes an interpreter for each script that it runs, with 100 kB of stacks by default.
	lua.RegistrySize, lua.CallStackSize = 1<<10, 64
	// A test on a real server mostly waits, and one in fake time mostly computes: so there is enough to do for each core.
	given := false
	flag.Visit(func(f *flag.Flag) { given = given || f.Name == "test.parallel" })
	if !given {
		if err := flag.Set("test.parallel", strconv.Itoa(4*runtime.GOMAXPROCS(0))); err != nil {
			panic(err)
		}
	}
	goleak.VerifyTestMain(stopsShared{redistest.Patient{M: m, Leaks: leaks}}, rueidisOutlives...)
}

// rueidisOutlives are goroutines of rueidis that outlive a client's Close.
var rueidisOutlives = []goleak.Option{
	// A cluster client closes connections that it no longer needs five seconds later.
	goleak.IgnoreAnyFunction("github.com/redis/rueidis.(*clusterClient)._refresh.func2"),
	// A delayed look at the cluster's nodes lasts for another second.
	goleak.IgnoreAnyFunction("github.com/redis/rueidis.(*call).DelayDo.func1"),
}

func leaks() error { return goleak.Find(rueidisOutlives...) }

// stopsShared stops the shared cluster when the tests have ended, and fails them if the cluster has changed.
type stopsShared struct{ redistest.Patient }

func (m stopsShared) Run() int {
	code := m.Patient.Run()
	if err := shared.Stop(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = max(code, 1)
	}
	return code
}
