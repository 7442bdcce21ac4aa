package main

import (
	"fmt"
	"math"
	"strconv"
)

// unit says how to write a metric's values.
type unit int

const (
	count unit = iota
	nanoseconds
	byteCount
	perSecond
	share // a part of one
	times // a ratio
	whole // a count of things
)

// write keeps three significant digits: more would be noise.
func (u unit) write(v float64) string {
	if math.IsNaN(v) {
		return "–"
	}
	switch u { //nolint:exhaustive // a count is written below
	case nanoseconds:
		switch {
		case v < 1e3:
			return digits(v) + " ns"
		case v < 1e6:
			return digits(v/1e3) + " µs"
		case v < 1e9:
			return digits(v/1e6) + " ms"
		}
		return digits(v/1e9) + " s"
	case byteCount:
		switch {
		case v < 10e3:
			return digits(v) + " B"
		case v < 10e6:
			return digits(v/1e3) + " kB"
		}
		return digits(v/1e6) + " MB"
	case perSecond:
		return digits(v) + "/s"
	case share:
		return digits(v*100) + " %"
	case whole:
		return grouped(int64(math.Round(v)))
	case times:
		return "× " + fine(v)
	}
	return digits(v)
}

func digits(v float64) string {
	switch a := math.Abs(v); {
	case math.IsNaN(v) || a > math.MaxInt64/2:
		return "–"
	case a == 0:
		return "0"
	case a < 0.001:
		return strconv.FormatFloat(v, 'g', 2, 64)
	case a < 1:
		return strconv.FormatFloat(v, 'f', 3, 64)
	case a < 10:
		return strconv.FormatFloat(v, 'f', 2, 64)
	case a < 100:
		return strconv.FormatFloat(v, 'f', 1, 64)
	}
	return grouped(int64(math.Round(v)))
}

// fine keeps the digits that matter in a ratio near one.
func fine(v float64) string {
	switch a := math.Abs(v); {
	case math.IsNaN(v):
		return "–"
	case a == 0:
		return "0"
	case a < 0.1:
		return strconv.FormatFloat(v, 'g', 2, 64)
	case a < 10:
		return strconv.FormatFloat(v, 'f', 3, 64)
	}
	return digits(v)
}

// grouped separates thousands by a thin gap, as in 100 000.
func grouped(n int64) string {
	if n < 0 {
		return "-" + grouped(-n)
	}
	if n < 1000 {
		return strconv.FormatInt(n, 10)
	}
	return grouped(n/1000) + " " + fmt.Sprintf("%03d", n%1000)
}
