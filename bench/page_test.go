package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestPagesAreWrittenBetweenTheirMarks(t *testing.T) {
	root := t.TempDir()
	text := "before\n" + generatedBegin + "\nold\n" + generatedEnd + "\nafter\n"
	for _, name := range []string{"README.md", "docs/performance.md", "docs/comparison.md", "bench/RESULTS.md"} {
		file := filepath.Join(root, name)
		require.NoError(t, os.MkdirAll(filepath.Dir(file), 0o700))
		require.NoError(t, os.WriteFile(file, []byte(text), 0o600))
	}
	r := &result{scenario: "paths-64", title: "64 goroutines", metrics: []metric{timePerOp, serverCPU}}
	r.record(thisLibrary, map[string]float64{timePerOp.name: 11_000, serverCPU.name: 4_000})
	r.record(bareFloor, map[string]float64{timePerOp.name: 5_000, serverCPU.name: 6_000})
	r.record(rueidislockPeer, map[string]float64{timePerOp.name: 20_000, serverCPU.name: 9_000})
	require.NoError(t, write(root, surroundings{{"machine", "a small one"}}, []*result{r}))

	read := func(name string) string {
		text, err := os.ReadFile(filepath.Join(root, name)) //nolint:gosec // written above
		require.NoError(t, err)
		return string(text)
	}
	require.Equal(t, "before\n"+generatedBegin+"\n\n- **11.0 µs** to lock and unlock, with 64 goroutines, each on its own path; "+
		"the best peer, rueidislock: 20.0 µs (`-only paths`)\n\n"+generatedEnd+"\nafter\n", read("README.md"))
	page := read("docs/performance.md")
	require.Contains(t, page, "| the same, 64 goroutines, a path each | 11.0 µs | 5.00 µs | 20.0 µs | – | – | `-only paths` |\n")
	require.Contains(t, page, "\n1 of 2 [targets](../bench/results/targets.csv) hold in this run.\n")
	require.Contains(t, page, "![Time for each lock and unlock, a path for each goroutine](performance/own-paths.svg)\n")
	require.NotContains(t, page, "\nold\n")
	page = read("docs/comparison.md")
	require.Contains(t, page, "before\n"+generatedBegin+"\n\n|  | lockregistry | rueidislock | redsync | redislock | again with |\n")
	require.Contains(t, page, "| the same, 64 goroutines, a path each | 11.0 µs | 20.0 µs | – | – | `-only paths` |\n")
	require.Contains(t, read("bench/RESULTS.md"), "before\n"+generatedBegin+"\n\n- machine: a small one\n\n"+
		"1 of 2 [targets](results/targets.csv) hold in this run. These do not, as ratios to the floor or to the best peer:\n\n")
	require.Contains(t, read("bench/RESULTS.md"), "\n\n- 64 goroutines, a path each: 2.200 (≤ 1.000)\n- 64 goroutines, a path each: 0.550 (≤ 0.700)\n\n")
	require.Contains(t, read("bench/results/figures.csv"), "scenario,contender,figure,value\npaths-64,lockregistry,time,11.0 µs\n")
	require.Contains(t, read("bench/results/scenarios.csv"), "paths-64,64 goroutines,,,cd bench && GOWORK=off go run . -only paths\n")
	require.Contains(t, read("bench/results/targets.csv"), "64 goroutines, a path each\",11.0 µs")
	require.Contains(t, read("bench/results/contenders.csv"), "rueidislock,")
	require.FileExists(t, filepath.Join(root, "docs/performance/own-paths.svg"))

	require.NoError(t, os.WriteFile(filepath.Join(root, "README.md"), []byte("no marks"), 0o600))
	require.ErrorContains(t, write(root, nil, []*result{r}), "README.md has no ")
}

func TestFiguresOfSemaphoresAreWrittenByThemselves(t *testing.T) {
	root := t.TempDir()
	file := filepath.Join(root, "docs", "performance.md")
	require.NoError(t, os.MkdirAll(filepath.Dir(file), 0o700))
	require.NoError(t, os.WriteFile(file, []byte("before\n"+permitsBegin+"\nold\n"+permitsEnd+"\nafter\n"), 0o600))
	require.NoError(t, writePermits(root, []*result{{scenario: "paths-64"}}), "they were not measured")
	r := &result{scenario: "permits-thread", metrics: []metric{javaTime}}
	r.record(semaphores, map[string]float64{javaTime.name: 200_000})
	r.record(redissonPermits, map[string]float64{javaTime.name: 400_000})
	require.NoError(t, writePermits(root, []*result{r}))
	page, err := os.ReadFile(file) //nolint:gosec // written above
	require.NoError(t, err)
	require.Contains(t, string(page), "before\n"+permitsBegin+"\n\n|  | lockregistry | plain lock | Redisson 4.7 | x/sync, in one process |\n")
	require.Contains(t, string(page), "| the same, one thread of a process or JVM, median | 200 µs | – | 400 µs | – |\n")
	require.NotContains(t, string(page), "old")
}
