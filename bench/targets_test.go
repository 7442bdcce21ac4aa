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
	assert.Equal(t, "no", holds(target{metric: timePerOp.name, limit: 9}, r))
	assert.Equal(t, "yes", holds(target{metric: timePerOp.name, limit: 10}, r))
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

func TestTargetOfAMetricWhereMoreIsBetter(t *testing.T) {
	r := comparison([]float64{90, 80, 100}, []float64{100, 100, 100}, []float64{40, 40, 40}, nil)
	r.metrics = []metric{{name: timePerOp.name, higher: true}}
	assert.Equal(t, "yes", holds(target{metric: timePerOp.name, toFloor: 0.9, toPeer: 2.25, limit: 90}, r))
	assert.Equal(t, "no", holds(target{metric: timePerOp.name, toFloor: 0.91}, r))
	assert.Equal(t, "no", holds(target{metric: timePerOp.name, toPeer: 2.26}, r))
	assert.Equal(t, "no", holds(target{metric: timePerOp.name, limit: 91}, r))
}

func TestTargetHoldsWithAFigureThatIsEnough(t *testing.T) {
	r := comparison([]float64{20}, []float64{10}, nil, nil)
	assert.Equal(t, "yes", holds(target{metric: timePerOp.name, toFloor: 1.5, enough: 20}, r))
	assert.Equal(t, "no", holds(target{metric: timePerOp.name, toFloor: 1.5, enough: 19}, r))
	assert.Equal(t, "yes", holds(target{metric: timePerOp.name, toFloor: 1.5, window: 20, enough: 20}, r))
	assert.Equal(t, "no", holds(target{metric: timePerOp.name, toFloor: 1.5, window: 21, enough: 30}, r))
}

func TestResultNamesItsFloor(t *testing.T) {
	r := comparison([]float64{10}, []float64{10}, nil, nil)
	r.record(directedFloor, map[string]float64{timePerOp.name: 5})
	assert.Equal(t, "yes", holds(target{metric: timePerOp.name, toFloor: 1}, r))
	r.floor = directedFloor.name
	assert.Equal(t, "no", holds(target{metric: timePerOp.name, toFloor: 1}, r))
	assert.Equal(t, "yes", holds(target{metric: timePerOp.name, toFloor: 2}, r))
}

func TestEveryTargetIsMeasured(t *testing.T) {
	for _, target := range targets {
		assert.NotContainsf(t, reproduce(target.scenario), "-only `", "%s: no scenario measures %s", target.title, target.scenario)
	}
}

func TestScenarioOfAResult(t *testing.T) {
	for result, scenario := range map[string]string{
		"handoff-2": "handoff", "rush-2-busy": "rush-2", "rush-32": "rush-32", "idle-paths": "idle", "crash": "crash", "crash-100": "crash-100",
	} {
		assert.Equal(t, "`cd bench && GOWORK=off go run . -only "+scenario+"`", reproduce(result))
	}
}
