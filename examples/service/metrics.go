package main

import (
	"net/http"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/lockregistry/lockregistry/contrib/lockprom"
)

// newMetrics returns the metrics of a lock registry, and the handler that serves them to Prometheus.
func newMetrics() (*lockprom.Collector, http.Handler) {
	metrics, all := lockprom.New(), prometheus.NewRegistry()
	all.MustRegister(metrics)
	return metrics, promhttp.HandlerFor(all, promhttp.HandlerOpts{})
}
