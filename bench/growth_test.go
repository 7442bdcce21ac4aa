package main

import (
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry/internal/redistest"
)

// TestGrowth_AtItsSmallest expects each growth to run at its smallest size, and to give its chart.
func TestGrowth_AtItsSmallest(t *testing.T) {
	redis := redistest.Start(t)
	o, err := observe(t.Context(), redis.Addr())
	require.NoError(t, err)
	defer o.client.Close()
	s := &suite{ctx: t.Context(), addr: redis.Addr(), observer: o, quick: true, narration: io.Discard, random: rand.New(rand.NewPCG(1, 1))}
	root := t.TempDir()
	results := filepath.Join(root, "bench", "results")
	require.NoError(t, os.MkdirAll(results, 0o700))
	require.NoError(t, append(figuresTable(), []string{"paths-1", "floor", "time", "1 ns"}).csv(filepath.Join(results, "figures.csv")))
	require.NoError(t, scenariosTable(nil).csv(filepath.Join(results, "scenarios.csv")))
	for i, g := range growths {
		measured, err := g.measure(s, g.thorough[:1])
		require.NoError(t, err, g.name)
		require.Len(t, measured, 1)
		name := fmt.Sprintf("growth-%s-%v", g.name, g.thorough[0])
		require.Equal(t, name, measured[0].scenario)
		require.Equal(t, g.scenario().name, family(name), "what its table says that runs it again")
		takePart := []contender{thisLibrary}
		if g.name == "trip" || g.name == "nodes" { // in the other growths the rest may lock nothing, or keep the lock in one process
			takePart = []contender{thisLibrary, bareFloor, rueidislockPeer, redsyncPeer, redislockPeer}
		}
		for _, c := range takePart {
			row, ran := measured[0].row(c.name)
			require.True(t, ran, "%s: %s", name, c.name)
			assert.Positive(t, row.median(throughput.name), "%s: %s", name, c.name)
		}
		require.NoError(t, writeSome(root, measured))
		require.NoError(t, writeSome(root, measured), "in the place of the first")
		assert.FileExists(t, filepath.Join(root, "docs", "performance", growthCharts[i].file))
	}
	lines, err := readTable(filepath.Join(results, "figures.csv"))
	require.NoError(t, err)
	assert.Equal(t, "paths-1", lines[0][0])
	once := map[string]int{}
	for _, line := range lines {
		once[line[0]+line[1]+line[2]]++
	}
	for what, n := range once {
		assert.Equal(t, 1, n, what)
	}
}
