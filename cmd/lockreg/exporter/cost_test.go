package exporter_test

import (
	"context"
	"fmt"
	"log/slog"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry/cmd/lockreg/exporter"
	"github.com/lockregistry/lockregistry/inspect"
	"github.com/lockregistry/lockregistry/internal/redistest"
)

// BenchmarkLook is what one look of `lockreg metrics` costs the server: commands, among them those that scripts call, the time of
// its processors, the bytes that it sends, and how long the look takes. Locks are held in Spring's format, others are no locks.
func BenchmarkLook(b *testing.B) {
	for _, size := range []struct{ locks, others int }{{1000, 0}, {100_000, 0}, {1000, 1_000_000}} {
		b.Run(fmt.Sprintf("locks=%d/others=%d", size.locks, size.others), func(b *testing.B) {
			server := redistest.Start(b)
			client, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{server.Addr()}, DisableCache: true})
			require.NoError(b, err)
			defer client.Close()
			fill := func(n int, body string) {
				for i := 0; i < n; i += 1000 {
					text := "for i = ARGV[1], ARGV[1] + 999 do " + body + " end return 1"
					require.NoError(b, client.Do(b.Context(), client.B().Eval().Script(text).Numkeys(0).Arg(strconv.Itoa(i)).Build()).Error())
				}
			}
			fill(size.others, "redis.call('SET', 'session:' .. i, 'x')")
			fill(size.locks, "redis.call('SET', 'shop:' .. i, '0b6e4bd7-6a8e-4f6e-9f0a-6a2f6d0f4c55:1795310000000000', 'PX', '3600000')")
			locks, err := inspect.New(client, "shop")
			require.NoError(b, err)
			var took time.Duration
			before := costs(b, client)
			for b.Loop() {
				e := exporter.New(map[string]*inspect.Inspector{"shop": locks}, time.Hour, slog.New(slog.DiscardHandler))
				took += lookOnce(b, e, size.locks)
			}
			after, n := costs(b, client), float64(b.N)
			b.ReportMetric((after[0]-before[0])/n, "commands/look")
			b.ReportMetric(1000*(after[1]-before[1])/n, "ms-of-core/look")
			b.ReportMetric((after[2]-before[2])/1000/n, "kB/look")
			b.ReportMetric(took.Seconds()/n, "s/look")
		})
	}
}

// lookOnce has an exporter look once, and returns how long that took.
func lookOnce(b *testing.B, e *exporter.Exporter, locks int) time.Duration {
	b.Helper()
	began := time.Now()
	ctx, stop := context.WithCancel(b.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		e.Run(ctx)
	}()
	want := fmt.Sprintf(`lockregistry_fleet_holds{lockregistry_prefix="shop"} %d`+"\n", locks)
	for said := false; !said; {
		w := httptest.NewRecorder()
		e.ServeHTTP(w, nil)
		if said = strings.Contains(w.Body.String(), want); !said {
			<-time.After(time.Millisecond)
		}
	}
	took := time.Since(began)
	stop()
	<-ended
	return took
}

// costs are how many commands the server has executed, the seconds of its processors, and the bytes that it has sent.
func costs(b *testing.B, client rueidis.Client) (all [3]float64) {
	b.Helper()
	text, err := client.Do(b.Context(), client.B().Info().Section("everything").Build()).ToString()
	require.NoError(b, err)
	number := func(text string) float64 {
		n, err := strconv.ParseFloat(text, 64)
		require.NoError(b, err, text)
		return n
	}
	for line := range strings.Lines(text) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), ":")
		switch {
		case strings.HasPrefix(name, "cmdstat_") && name != "cmdstat_info":
			calls, _, _ := strings.Cut(strings.TrimPrefix(value, "calls="), ",")
			all[0] += number(calls)
		case name == "used_cpu_user" || name == "used_cpu_sys":
			all[1] += number(value)
		case name == "total_net_output_bytes":
			all[2] += number(value)
		}
	}
	return all
}
