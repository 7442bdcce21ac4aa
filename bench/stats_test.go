package main

import (
	"math"
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestQuantile(t *testing.T) {
	assert.Equal(t, 2.0, median([]float64{3, 1, 2}))
	assert.Equal(t, 2.5, median([]float64{4, 1, 2, 3}))
	assert.Equal(t, 7.0, median([]float64{7}))
	assert.Equal(t, 4.0, quantile([]float64{1, 2, 3, 4}, 1))
	assert.Equal(t, 1.0, quantile([]float64{4, 3, 2, 1}, 0))
	assert.InDelta(t, 99.01, quantile(oneTo(100), 0.99), 1e-9)
	assert.True(t, math.IsNaN(median(nil)))
}

func TestQuantileLeavesOutMissingRounds(t *testing.T) {
	assert.Equal(t, 2.0, median([]float64{math.NaN(), 3, 1, 2}))
	assert.True(t, math.IsNaN(median([]float64{math.NaN()})))
}

func TestQuantileDoesNotReorderItsArgument(t *testing.T) {
	values := []float64{3, 1, 2}
	median(values)
	assert.Equal(t, []float64{3, 1, 2}, values)
}

func TestSpreadIsTheInterquartileRange(t *testing.T) {
	low, high := spread([]float64{1, 2, 3, 4, 5})
	assert.Equal(t, 2.0, low)
	assert.Equal(t, 4.0, high)
}

func TestRatiosArePairedByRound(t *testing.T) {
	// The machine was twice as slow in the second round, for both: the ratio must not see that.
	assert.Equal(t, []float64{0.5, 0.5, 0.5}, ratios([]float64{1, 2, 1}, []float64{2, 4, 2}))
	assert.Len(t, ratios([]float64{1, 2}, []float64{1}), 1)
	assert.True(t, math.IsNaN(ratios([]float64{1}, []float64{0})[0]))
}

func oneTo(n int) []float64 {
	values := make([]float64, n)
	for i := range values {
		values[i] = float64(i + 1)
	}
	return values
}

func TestRiseCountsOnlyWhatRises(t *testing.T) {
	assert.InDelta(t, 1.5, rise([]float64{20, 10, 15, 12}), 1e-9)
	assert.InDelta(t, 1, rise([]float64{20, 10}), 1e-9)
	assert.True(t, math.IsNaN(rise([]float64{10, 0, 20})))
	assert.True(t, math.IsNaN(rise([]float64{10, math.NaN()})))
}
