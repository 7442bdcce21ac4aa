package main

import (
	"fmt"
	"io"
	"os"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
)

// surroundings is the context of the figures: the machine, the versions, the command.
type surroundings []struct{ what, value string }

func describe(s *suite, seed uint64) surroundings {
	command := "go run ."
	for _, arg := range os.Args[1:] {
		command += " " + arg
	}
	if !strings.Contains(command, "-seed") {
		command += fmt.Sprintf(" -seed %d", seed)
	}
	return surroundings{
		{"command", command},
		{"machine", fmt.Sprintf("%s, %d cores, %s/%s", processor(), runtime.NumCPU(), runtime.GOOS, runtime.GOARCH)},
		{"server", "Redis " + s.observer.info(s.ctx, "redis_version") + " on the same machine, over loopback, nothing saved to disk"},
		{"Go", runtime.Version()},
		{"modules", strings.Join(modules(), ", ")},
	}
}

func (s surroundings) print(w io.Writer) {
	for _, line := range s {
		fmt.Fprintf(w, "%-8s  %s\n", line.what, line.value)
	}
}

// compared are the modules whose versions matter.
var compared = []string{
	"github.com/redis/rueidis", "github.com/go-redsync/redsync/v4", "github.com/bsm/redislock", "github.com/redis/go-redis/v9",
}

func modules() []string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return []string{"unknown: built without module information"}
	}
	var found []string
	for _, module := range info.Deps {
		if slices.Contains(compared, module.Path) {
			found = append(found, module.Path+" "+module.Version)
		}
	}
	return found
}

// processor is the name that the kernel gives to the first core.
func processor() string {
	text, err := os.ReadFile("/proc/cpuinfo")
	if err != nil {
		return "unknown processor"
	}
	for line := range strings.Lines(string(text)) {
		if name, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(name) == "model name" {
			return strings.TrimSpace(value)
		}
	}
	return "unknown processor"
}
