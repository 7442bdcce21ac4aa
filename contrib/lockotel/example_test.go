package lockotel_test

import (
	"bufio"
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"

	"github.com/alicebob/miniredis/v2"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	exporter "go.opentelemetry.io/otel/exporters/prometheus"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"

	"github.com/lockregistry/lockregistry"
	"github.com/lockregistry/lockregistry/contrib/lockotel"
)

// embeddedRedis starts a Redis inside this program, so that the example runs anywhere. Your program has the URL of a server, such
// as redis://redis.example.com:6379.
func embeddedRedis() *miniredis.Miniredis {
	server, err := miniredis.Run()
	if err != nil {
		panic(err)
	}
	server.ClockTTL(true)
	return server
}

// The metrics of a service's locks, served to Prometheus.
func Example() {
	redis := embeddedRedis()
	defer redis.Close()

	metrics := prometheus.NewRegistry()
	reader, err := exporter.New(exporter.WithRegisterer(metrics), exporter.WithoutScopeInfo(), exporter.WithoutTargetInfo())
	if err != nil {
		panic(err)
	}
	observer, err := lockotel.New(lockotel.WithMeterProvider(sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader))))
	if err != nil {
		panic(err)
	}
	locks, err := lockregistry.Open(context.Background(), "redis://"+redis.Addr(), "orders", lockregistry.WithObserver(observer))
	if err != nil {
		panic(err)
	}
	defer func() { _ = locks.Close() }()

	// Your program serves it beside its other handlers: http.Handle("/metrics", ...).
	server := httptest.NewServer(promhttp.HandlerFor(metrics, promhttp.HandlerOpts{}))
	defer server.Close()

	if err := locks.Do(context.Background(), "42", func(context.Context) error { return nil }); err != nil {
		panic(err)
	}

	request, err := http.NewRequestWithContext(context.Background(), http.MethodGet, server.URL, http.NoBody)
	if err != nil {
		panic(err)
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		panic(err)
	}
	defer func() { _ = response.Body.Close() }()
	for lines := bufio.NewScanner(response.Body); lines.Scan(); {
		if strings.Contains(lines.Text(), "_count{") {
			fmt.Println(strings.ReplaceAll(lines.Text(), "lockregistry_", ""))
		}
	}
	// Output:
	// acquire_duration_seconds_count{acquire_how="free",kind="lock",operation="do",prefix="orders"} 1
	// hold_duration_seconds_count{kind="lock",prefix="orders",release_how="released"} 1
}
