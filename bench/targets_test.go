package main

import (
	"testing"

	"github.com/stretchr/testify/assert"
)

func comparison(own, base, better, worse []float64) *result {
	r := &result{scenario: "s", metrics: []metric{timePerOp}}
	for _, c := range []struct {
		contender
		values []float64
	}{
		{contender{name: "worse", role: rival}, worse},
		{contender{name: "floor", role: floor}, base},
		{contender{name: "better", role: rival}, better},
		{contender{name: "lockregistry", role: subject}, own},
	} {
		for _, v := range c.values {
			r.record(c.contender, map[string]float64{timePerOp.name: v})
		}
	}
	return r
}

func holds(t target, r *result) string {
	own, _ := r.row("lockregistry")
	line := t.verdict(r, own)
	return line[len(line)-1]
}

func TestTargetHoldsAgainstFloorAndBestPeer(t *testing.T) {
	r := comparison([]float64{10, 20, 10}, []float64{10, 20, 10}, []float64{20, 40, 20}, []float64{100, 200, 100})
	assert.Equal(t, "yes", holds(target{metric: timePerOp.name, toFloor: 1, toPeer: 0.5}, r))
	assert.Equal(t, "no", holds(target{metric: timePerOp.name, toFloor: 0.99}, r))
	assert.Equal(t, "no", holds(target{metric: timePerOp.name, toPeer: 0.49}, r))
	assert.Equal(t, "no", holds(target{metric: timePerOp.name, most: 9}, r))
	assert.Equal(t, "yes", holds(target{metric: timePerOp.name, most: 10}, r))
}

func TestTargetWithoutFiguresDoesNotHold(t *testing.T) {
	r := comparison([]float64{10}, nil, []float64{0}, nil)
	assert.Equal(t, "no", holds(target{metric: timePerOp.name, toPeer: 1}, r))
}

func TestBestPeerOfAMetricWhereMoreIsBetter(t *testing.T) {
	r := comparison([]float64{1}, []float64{1}, []float64{20}, []float64{100})
	best, ok := r.bestPeer(metric{name: timePerOp.name, higher: true})
	assert.True(t, ok)
	assert.Equal(t, "worse", best.contender)
}
