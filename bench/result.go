package main

import (
	"math"
	"slices"
)

// metric is one measured quantity of a scenario.
type metric struct {
	name string
	unit unit
	// higher is true when more is better.
	higher bool
	// compared is true when the tables show this metric's ratios to the floor and to the best peer.
	compared bool
}

// within reports whether a value is as good as the limit or better. NaN is not.
func (m metric) within(value, limit float64) bool {
	if m.higher {
		return value >= limit
	}
	return value <= limit
}

// sign is how a limit is written.
func (m metric) sign() string {
	if m.higher {
		return "≥ "
	}
	return "≤ "
}

// row has the results of a contender: for each metric a value per round, NaN if a round gave none.
type row struct {
	contender string
	role      role
	values    map[string][]float64
}

func (r row) median(metric string) float64 { return median(r.values[metric]) }

// result is a scenario's outcome.
type result struct {
	scenario string // the name that -only takes
	title    string
	how      string // what was done, in a sentence
	floor    string // the contender that the tables and targets use as the floor; empty: bareFloor
	metrics  []metric
	rows     []row
	notes    []string
}

func (r *result) row(contender string) (row, bool) {
	i := slices.IndexFunc(r.rows, func(row row) bool { return row.contender == contender })
	if i < 0 {
		return row{}, false
	}
	return r.rows[i], true
}

// record adds one round's values of a contender.
func (r *result) record(c contender, values map[string]float64) {
	i := slices.IndexFunc(r.rows, func(row row) bool { return row.contender == c.name })
	if i < 0 {
		i = len(r.rows)
		r.rows = append(r.rows, row{contender: c.name, role: c.role, values: map[string][]float64{}})
	}
	for name, value := range values {
		r.rows[i].values[name] = append(r.rows[i].values[name], value)
	}
}

func (r *result) metric(name string) metric {
	for _, m := range r.metrics {
		if m.name == name {
			return m
		}
	}
	return metric{name: name}
}

// floorRow returns the floor's row, if the scenario has one.
func (r *result) floorRow() (row, bool) {
	if r.floor != "" {
		return r.row(r.floor)
	}
	return r.row(bareFloor.name)
}

// bestPeer returns the peer with the best median of a metric, if any peer has one.
func (r *result) bestPeer(m metric) (row, bool) {
	return r.bestOf(m, func(row) bool { return true })
}

// bestPlainPeer is bestPeer without the eager variants.
func (r *result) bestPlainPeer(m metric) (row, bool) {
	return r.bestOf(m, func(candidate row) bool {
		c, err := contenderNamed(candidate.contender)
		return err != nil || !c.contended
	})
}

func (r *result) bestOf(m metric, counts func(row) bool) (row, bool) {
	best, found := row{}, false
	for _, candidate := range r.rows {
		value := candidate.median(m.name)
		if candidate.role != rival || !counts(candidate) || math.IsNaN(value) {
			continue
		}
		if !found || (value < best.median(m.name)) != m.higher {
			best, found = candidate, true
		}
	}
	return best, found
}

// against returns the ratios of one row to another, round by round.
func against(of, to row, m metric) []float64 {
	return ratios(of.values[m.name], to.values[m.name])
}

// inOrder puts the rows into the order of the contenders: rounds shuffle them.
func (r *result) inOrder() {
	place := func(row row) int {
		return slices.IndexFunc(contenders, func(c contender) bool { return c.name == row.contender })
	}
	slices.SortStableFunc(r.rows, func(a, b row) int { return place(a) - place(b) })
}
