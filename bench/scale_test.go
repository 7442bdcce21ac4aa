package main

import (
	"io"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry/internal/peer"
)

func TestMain(m *testing.M) {
	peer.Main(newWorker().run)
	os.Exit(m.Run())
}

// TestFleet_OfAFew expects small fleets to run through everything that large ones do.
func TestFleet_OfAFew(t *testing.T) {
	at := pace{200 * time.Millisecond, 5 * time.Second, func(int) time.Duration { return 100 * time.Millisecond }}
	root := t.TempDir()
	results, page := filepath.Join(root, "bench", "results"), filepath.Join(root, "docs", "scale.md")
	require.NoError(t, os.MkdirAll(filepath.Dir(page), 0o700))
	require.NoError(t, os.WriteFile(page, []byte("before\n"+generatedBegin+"\n"+generatedEnd+"\nafter\n"), 0o600))
	for _, run := range []fleetRun{
		{name: "fleet-single-processes", deployment: onSingle, contender: thisLibrary.name, processes: 4, members: 4},
		{name: "fleet-single-1000", deployment: onSingle, contender: thisLibrary.name, members: 20},
	} {
		figures, err := run.measure(t.Context(), at, "", io.Discard)
		require.NoError(t, err)
		values := map[string]string{}
		for _, f := range figures {
			values[f.part+": "+f.name] = f.value
		}
		assert.Equal(t, digitsOf(run.members), values["the fleet: registries"])
		assert.Equal(t, digitsOf(run.members), values["all take one path, over and over: registries that had a turn"])
		assert.Equal(t, "0", values["the server restarts, empty: connections refused"])
		for _, name := range []string{
			"idle: connections for each", "all wait for one path: server memory for each connection",
			"the one path is released: all are served after", "FLUSHALL, each waits for its own path: all are served after",
			"the server restarts, empty: connections made", "FLUSHALL, all wait for one path: all are served after",
		} {
			assert.NotContains(t, []string{"", "–", "0"}, values[name], name)
		}
		require.NoError(t, figures.keep(results, run))
		require.NoError(t, figures.keep(results, run), "in the place of the first")
	}
	require.NoError(t, writeFleets(root))
	text, err := os.ReadFile(page) //nolint:gosec // written above
	require.NoError(t, err)
	assert.Contains(t, string(text), "### One server\n\n|  | 4 processes | 20 registries |\n")
	assert.Contains(t, string(text), "| registries | 4 | 20 |\n")
	assert.NotContains(t, string(text), "| date |")
}

func digitsOf(n int) string { return whole.write(float64(n)) }

func TestArrivals_AreCountedBySecond(t *testing.T) {
	begin := time.Unix(1_000_000, 0)
	a := &arrivals{stop: make(chan struct{}), done: make(chan struct{})}
	for i := range 41 { // one look every 50 ms, each with 10 connections for 1 s, and then with 1
		made := float64(10 * min(i, 20))
		if i > 20 {
			made += float64(i - 20)
		}
		a.at, a.made = append(a.at, begin.Add(time.Duration(i)*arrivalPause)), append(a.made, made)
	}
	close(a.done)
	all, most, took := a.end()
	assert.InDelta(t, 220, all, 0)
	assert.InDelta(t, 200, most, 0)
	assert.InDelta(t, 1.8, took.Seconds(), 0.1)
}
