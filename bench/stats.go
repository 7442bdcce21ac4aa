package main

import (
	"math"
	"slices"
)

// quantile returns the q-quantile of the values, interpolated between neighbours; NaN of none. Values that are NaN, from
// a round that gave no figure, do not count.
func quantile(values []float64, q float64) float64 {
	sorted := slices.DeleteFunc(slices.Clone(values), math.IsNaN)
	if len(sorted) == 0 {
		return math.NaN()
	}
	slices.Sort(sorted)
	at := q * float64(len(sorted)-1)
	below := int(at)
	if below == len(sorted)-1 {
		return sorted[below]
	}
	return sorted[below] + (at-float64(below))*(sorted[below+1]-sorted[below])
}

func median(values []float64) float64 { return quantile(values, 0.5) }

// spread is the interquartile range.
func spread(values []float64) (low, high float64) {
	return quantile(values, 0.25), quantile(values, 0.75)
}

// ratios divides round by round. The two figures of a round were taken moments apart, so whatever the machine did meanwhile
// affected both alike: the median of these ratios is steadier than the ratio of two medians. A zero divisor gives no ratio.
func ratios(of, to []float64) []float64 {
	out := make([]float64, min(len(of), len(to)))
	for i := range out {
		out[i] = math.NaN()
		if to[i] != 0 {
			out[i] = of[i] / to[i]
		}
	}
	return out
}
