package main

import (
	"fmt"
	"image/color"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/plotutil"
	"gonum.org/v1/plot/vg"
)

// chart is a drawing of some results.
type chart struct {
	file, title string
}

const (
	chartWidth  = 8 * vg.Inch
	chartHeight = 4 * vg.Inch
)

// bars are groups of bars, one bar for each contender.
type bars struct {
	chart
	axis    string
	divisor float64
	groups  []group
}

type group struct{ label, scenario, metric string }

var barCharts = []bars{
	{chart{"own-paths.svg", "Time for each lock and unlock, a path for each goroutine"}, "µs, logarithmic", 1e3, []group{
		{"1 goroutine", "paths-1", timePerOp.name},
		{"64 goroutines", "paths-64", timePerOp.name},
		{"512 goroutines", "paths-512", timePerOp.name},
	}},
	{chart{"one-path.svg", "Many goroutines that want the same path, in one process"}, "µs for each section, logarithmic", 1e3, []group{
		{"64 goroutines lock", "one-path", timePerOp.name},
		{"4 × 16 goroutines read", "readers", timePerOp.name},
	}},
	{chart{"handoff.svg", "From release to the next process"}, "ms, logarithmic", 1e6, []group{
		{"2 processes, p50", "handoff-2", handoffMedian.name},
		{"2 processes, p99", "handoff-2", handoffTail.name},
		{"8 processes, p50", "handoff-8", handoffMedian.name},
		{"8 processes, p99", "handoff-8", handoffTail.name},
	}},
	{chart{"held.svg", "Memory of a held and renewed lock"}, "bytes, logarithmic", 1, []group{
		{"in the process", "held", bytesPerLock.name},
		{"in Redis", "held", serverBytes.name},
	}},
}

// growthCharts are shown in docs/performance.md beside the text that they illustrate.
var growthCharts = []struct {
	chart
	prefix, axis string
}{
	{chart{"growth-paths.svg", "64 goroutines of one process, against the number of paths"}, "growth-paths-", "paths"},
	{chart{"growth-waiters.svg", "One path, against the number of goroutines of one process"}, "growth-waiters-", "goroutines"},
	{chart{"growth-processes.svg", "One path: from one process to another, against their number"}, "growth-processes-", "processes"},
	{chart{"growth-trip.svg", "64 goroutines, a path each, against the round trip"}, "growth-trip-", "ms"},
	{chart{"growth-nodes.svg", "64 goroutines, a path each, against the masters of a cluster"}, "growth-nodes-", "masters"},
}

// draw draws into a folder whatever the results allow. It returns the charts that the generated part of a page may show.
func draw(dir string, results []*result) ([]chart, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil { //nolint:gosec // a folder for everybody
		return nil, fmt.Errorf("make a folder for the charts: %w", err)
	}
	var drawn []chart
	for _, b := range barCharts {
		p, found, err := b.draw(results)
		if err == nil && found {
			err = p.Save(chartWidth, chartHeight, filepath.Join(dir, b.file))
			drawn = append(drawn, b.chart)
		}
		if err != nil {
			return nil, fmt.Errorf("draw %s: %w", b.file, err)
		}
	}
	for _, l := range growthCharts {
		p, found, err := growthLines(l.title, l.axis, l.prefix, results)
		if err == nil && found {
			err = p.Save(chartWidth, chartHeight, filepath.Join(dir, l.file))
		}
		if err != nil {
			return nil, fmt.Errorf("draw %s: %w", l.file, err)
		}
	}
	return drawn, nil
}

func newPlot(title, y string) *plot.Plot {
	p := plot.New()
	p.BackgroundColor = color.White
	p.Title.Text = title
	p.Y.Label.Text = y
	p.Y.Scale = plot.LogScale{}
	p.Y.Tick.Marker = plot.LogTicks{Prec: 3}
	p.Legend.Top = true
	p.Add(plotter.NewGrid())
	return p
}

func find(results []*result, scenario string) *result {
	for _, r := range results {
		if r.scenario == scenario {
			return r
		}
	}
	return nil
}

func (b bars) draw(results []*result) (*plot.Plot, bool, error) {
	p := newPlot(b.title, b.axis)
	lowest, highest := math.Inf(1), 0.0
	values := make([]plotter.Values, len(contenders))
	for i, c := range contenders {
		for _, g := range b.groups {
			value := math.NaN()
			if r := find(results, g.scenario); r != nil {
				if row, ok := r.row(c.name); ok {
					value = row.median(g.metric) / b.divisor
				}
			}
			values[i] = append(values[i], value)
			if value > 0 {
				lowest, highest = min(lowest, value), max(highest, value)
			}
		}
	}
	if highest == 0 {
		return nil, false, nil
	}
	// A bar on a logarithmic axis has to begin somewhere above zero.
	ground := lowest / 2
	p.Y.Min, p.Y.Max = ground, highest*30
	labels := make([]string, len(b.groups))
	for i, g := range b.groups {
		labels[i] = g.label
	}
	for i, c := range contenders {
		for g, value := range values[i] {
			if !(value > 0) {
				continue
			}
			x := float64(g) + (float64(i)-float64(len(contenders)-1)/2)*0.11
			bar, err := plotter.NewPolygon(plotter.XYs{
				{X: x - 0.05, Y: ground}, {X: x + 0.05, Y: ground}, {X: x + 0.05, Y: value}, {X: x - 0.05, Y: value},
			})
			if err != nil {
				return nil, false, fmt.Errorf("a bar of %s: %w", c.name, err)
			}
			bar.Color = plotutil.Color(i)
			bar.LineStyle.Width = 0 //nolint:staticcheck // a bar has a width of its own
			p.Add(bar)
			if g == firstShown(values[i]) {
				p.Legend.Add(c.name, bar)
			}
		}
	}
	p.X.Min, p.X.Max = -0.6, float64(len(b.groups))-0.4
	p.NominalX(labels...)
	p.X.Min, p.X.Max = -0.6, float64(len(b.groups))-0.4
	return p, true, nil
}

func firstShown(values plotter.Values) int {
	for i, v := range values {
		if v > 0 {
			return i
		}
	}
	return -1
}

func growthLines(title, axis, prefix string, results []*result) (*plot.Plot, bool, error) {
	p := newPlot(title, "locks and unlocks a second, logarithmic")
	p.X.Label.Text = axis + ", logarithmic"
	p.X.Scale = plot.LogScale{}
	p.X.Tick.Marker = plot.LogTicks{Prec: 3}
	found := false
	least, most, lowest, highest := math.Inf(1), 0.0, math.Inf(1), 0.0
	for i, c := range contenders {
		var points plotter.XYs
		for _, r := range results {
			size, is := strings.CutPrefix(r.scenario, prefix)
			x, err := strconv.ParseFloat(size, 64)
			row, ran := r.row(c.name)
			y := row.median(throughput.name)
			if is && err == nil && ran && y > 0 { // the axes are logarithmic
				points = append(points, plotter.XY{X: x, Y: y})
				least, most = min(least, x), max(most, x)
				lowest, highest = min(lowest, y), max(highest, y)
			}
		}
		if len(points) == 0 {
			continue
		}
		line, dots, err := plotter.NewLinePoints(points)
		if err != nil {
			return nil, false, fmt.Errorf("the line of %s: %w", c.name, err)
		}
		line.Color, dots.Color = plotutil.Color(i), plotutil.Color(i)
		line.Width = vg.Points(1.5)
		dots.Shape = plotutil.Shape(i)
		p.Add(line, dots)
		p.Legend.Add(c.name, line, dots)
		found = true
	}
	p.X.Min, p.X.Max = least/1.2, most*1.2
	p.Y.Min, p.Y.Max = lowest/2, highest*30
	return p, found, nil
}
