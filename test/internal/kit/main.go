package kit

import (
	"flag"
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"strconv"
	"testing"
	"time"

	"github.com/yuin/gopher-lua"
	"go.uber.org/goleak"
)

// Main runs the tests of a package: TestMain of each theme calls it. It checks that no goroutine is left, and that the shared
// cluster is as it was.
func Main(m *testing.M) {
	flag.Parse()
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(200) // little is in use at any time: less of the time goes into looking for it
	}
	WatchKeys()
	// Miniredis makes an interpreter for each script that it runs, by default with 100 kB of stacks.
	lua.RegistrySize, lua.CallStackSize = 1<<10, 64
	// Most of the time a test on a real server waits, and one in fake time computes: so there is enough to do for each core.
	given := false
	flag.Visit(func(f *flag.Flag) { given = given || f.Name == "test.parallel" })
	if !given {
		if err := flag.Set("test.parallel", strconv.Itoa(4*runtime.GOMAXPROCS(0))); err != nil {
			panic(err)
		}
	}
	goleak.VerifyTestMain(stopsShared{m}, rueidisOutlives...)
}

// rueidisOutlives are goroutines of rueidis that outlive a client's Close.
var rueidisOutlives = []goleak.Option{
	// A cluster client closes connections that it no longer needs five seconds later.
	goleak.IgnoreAnyFunction("github.com/redis/rueidis.(*clusterClient)._refresh.func2"),
	// A delayed look at the cluster's nodes lasts for another second.
	goleak.IgnoreAnyFunction("github.com/redis/rueidis.(*call).DelayDo.func1"),
}

// stopsShared stops the shared cluster when the tests have ended. They fail when it is not as it was.
type stopsShared struct{ *testing.M }

func (m stopsShared) Run() int {
	code := m.M.Run()
	// After a late answer in the last test, goroutines may end a second later: goleak waits for less than that.
	for began := time.Now(); time.Since(began) < 5*time.Second; {
		if goleak.Find(rueidisOutlives...) == nil {
			break
		}
	}
	if err := shared.Stop(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = max(code, 1)
	}
	return code
}
