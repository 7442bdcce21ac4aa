package kit

import (
	"maps"
	"slices"
)

// InOrder returns the keys of a table's rows in order.
func InOrder[V any](rows map[string]V) []string { return slices.Sorted(maps.Keys(rows)) }

// Turn picks a row by a number, starting again after the last. With the sum of two other numbers it tests every pair of three
// things instead of every triple: faults that need all three are rare, and worlds cost time.
func Turn[V any](rows map[string]V, number int) (name string, row V) {
	names := InOrder(rows)
	name = names[number%len(names)]
	return name, rows[name]
}
