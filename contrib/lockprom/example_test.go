package lockprom_test

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

	"github.com/lockregistry/lockregistry"
	"github.com/lockregistry/lockregistry/contrib/lockprom"
)

func Example() {
	server, err := miniredis.Run()
	if err != nil {
		panic(err)
	}
	defer server.Close()
	server.ClockTTL(true)
	if err := serve(context.Background(), "redis://"+server.Addr()); err != nil {
		panic(err)
	}
	// Output:
	// acquire_duration_seconds_count{error_type="",acquire_how="free",kind="lock",operation="do",prefix="orders"} 1
	// hold_duration_seconds_count{error_type="",kind="lock",prefix="orders",release_how="released"} 1
}

// serve is a service that has locks and metrics.
func serve(ctx context.Context, redis string) error {
	metrics := lockprom.New()
	prometheus.MustRegister(metrics)
	locks, err := lockregistry.Open(ctx, redis, "orders", lockregistry.WithObserver(metrics.Observer()))
	if err != nil {
		return err
	}
	defer func() { _ = locks.Close() }()
	defer metrics.Watch("orders", locks.Stats)()
	http.Handle("GET /metrics", promhttp.Handler())

	if err := locks.Do(ctx, "42", func(context.Context) error { return nil }); err != nil {
		return err
	}
	return scrape(ctx)
}

// scrape shows what Prometheus gets, shortened.
func scrape(ctx context.Context) error {
	server := httptest.NewServer(http.DefaultServeMux)
	defer server.Close()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, server.URL+"/metrics", http.NoBody)
	if err != nil {
		return err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return err
	}
	defer func() { _ = response.Body.Close() }()
	lines := bufio.NewScanner(response.Body)
	for lines.Scan() {
		if strings.Contains(lines.Text(), "lockregistry_") && strings.Contains(lines.Text(), "_count{") {
			fmt.Println(strings.ReplaceAll(lines.Text(), "lockregistry_", ""))
		}
	}
	return lines.Err()
}
