package lockotel_test

import (
	"context"
	"errors"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	exporter "go.opentelemetry.io/otel/exporters/prometheus"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"

	"github.com/lockregistry/lockregistry"
	"github.com/lockregistry/lockregistry/contrib/lockotel"
	"github.com/lockregistry/lockregistry/observe"
)

// Prometheus sees the names and labels that module lockprom has, so that alerts and dashboards suit either.
func TestNames(t *testing.T) {
	all := prometheus.NewRegistry()
	reader, err := exporter.New(exporter.WithRegisterer(all), exporter.WithoutScopeInfo(), exporter.WithoutTargetInfo())
	require.NoError(t, err)
	meters := lockotel.WithMeterProvider(sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader)))
	o, err := lockotel.New(meters)
	require.NoError(t, err)
	subject := observe.Subject{Path: "42", Key: "orders:42", Kind: observe.KindLock}
	o.Acquired(t.Context(), observe.Acquired{
		Subject: subject, Op: "lock", Here: 1, Err: context.Canceled, Wakeups: observe.Wakeups{Messages: 1, Changes: 1, Polls: 1},
	})
	o.Released(t.Context(), observe.Released{Subject: subject, Err: lockregistry.ErrLockLost})
	o.Acquired(t.Context(), observe.Acquired{Subject: subject, Op: "lock", Err: lockregistry.ErrUnavailable})
	o.Lost(observe.Lost{Subject: subject})
	o.Renewing(observe.Renewing{Err: errors.New("some")})
	o.Deadlocked(observe.Deadlock{})
	reported, err := lockotel.ReportStats("orders", func() observe.Stats { return observe.Stats{} }, meters)
	require.NoError(t, err)
	defer func() { require.NoError(t, reported.Unregister()) }()

	families, err := all.Gather()
	require.NoError(t, err)
	var got []string
	for _, f := range families {
		labels := map[string]bool{}
		for _, l := range f.GetMetric()[0].GetLabel() {
			labels[l.GetName()] = true
		}
		names := slices.Sorted(maps.Keys(labels))
		got = append(got, strings.Join(append([]string{strings.ToLower(f.GetType().String()), f.GetName()}, names...), " "))
	}
	want, err := os.ReadFile("../lockprom/testdata/metrics.txt")
	require.NoError(t, err)
	require.Equal(t, string(want), strings.Join(got, "\n")+"\n")
}
