package main

import (
	"net/http"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	exporter "go.opentelemetry.io/otel/exporters/prometheus"
	"go.opentelemetry.io/otel/sdk/metric"

	"github.com/lockregistry/lockregistry/contrib/lockotel"
	"github.com/lockregistry/lockregistry/observe"
)

// newMetrics returns what observes a lock registry, and what serves the figures to Prometheus.
func newMetrics() (observe.Observer, http.Handler, error) {
	figures := prometheus.NewRegistry()
	reader, err := exporter.New(exporter.WithRegisterer(figures))
	if err != nil {
		return observe.Observer{}, nil, err
	}
	observer, err := lockotel.New(lockotel.WithMeterProvider(metric.NewMeterProvider(metric.WithReader(reader))))
	return observer, promhttp.HandlerFor(figures, promhttp.HandlerOpts{}), err
}
