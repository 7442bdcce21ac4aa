package lockotel_test

import (
	"context"
	"testing"

	"github.com/redis/rueidis"

	"github.com/lockregistry/lockregistry"
	"github.com/lockregistry/lockregistry/contrib/lockotel"
	"github.com/lockregistry/lockregistry/internal/redistest"
	"github.com/lockregistry/lockregistry/observe"

	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
)

// newObserver reports to the SDK, whose metrics nobody reads.
func newObserver(b *testing.B) observe.Observer {
	b.Helper()
	meters := sdkmetric.NewMeterProvider(sdkmetric.WithReader(sdkmetric.NewManualReader()))
	observer, err := lockotel.New(lockotel.WithMeterProvider(meters))
	if err != nil {
		b.Fatal(err)
	}
	return observer
}

// BenchmarkEvents is what the two events of a lock and unlock cost that wait for nobody.
func BenchmarkEvents(b *testing.B) {
	observer := newObserver(b)
	acquired, released := events()
	ctx := context.Background()
	b.ReportAllocs()
	for b.Loop() {
		observer.Acquired(ctx, acquired)
		observer.Released(ctx, released)
	}
}

// BenchmarkLock is a lock and unlock of a free path, on a real server: unobserved, with an observer that does nothing, and
// with this package.
func BenchmarkLock(b *testing.B) {
	server := redistest.Start(b)
	for _, c := range []struct {
		name string
		opts []lockregistry.Option
	}{
		{"unobserved", nil},
		{"observed", []lockregistry.Option{lockregistry.WithObserver(observe.Observer{
			Acquired: func(context.Context, observe.Acquired) {},
			Released: func(context.Context, observe.Released) {},
		})}},
		{"lockotel", []lockregistry.Option{lockregistry.WithObserver(newObserver(b))}},
	} {
		b.Run(c.name, func(b *testing.B) {
			client, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{server.Addr()}})
			if err != nil {
				b.Fatal(err)
			}
			defer client.Close()
			locks, err := lockregistry.New(client, "bench", c.opts...)
			if err != nil {
				b.Fatal(err)
			}
			defer func() { _ = locks.Close() }()
			ctx := context.Background()
			b.ReportAllocs()
			for b.Loop() {
				if err := locks.Obtain("42").Lock(ctx); err != nil {
					b.Fatal(err)
				}
				if err := locks.Obtain("42").Unlock(ctx); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
