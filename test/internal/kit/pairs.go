package kit

import (
	"maps"
	"slices"
)

// InOrder returns the names of a table's rows in their order.
func InOrder[V any](rows map[string]V) []string { return slices.Sorted(maps.Keys(rows)) }

// Turn picks one of some rows by a number, beginning anew after the last. With the sum of the numbers of two other things it
// makes pairs of each with each, instead of all three together: faults that need three at once are rare, and worlds cost.
func Turn[V any](rows map[string]V, number int) (name string, row V) {
	names := InOrder(rows)
	name = names[number%len(names)]
	return name, rows[name]
}
