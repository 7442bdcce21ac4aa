// The service is a module of its own, as yours is: it may need what the library does not.
module github.com/lockregistry/lockregistry/examples/service

go 1.26.0

require (
	github.com/lockregistry/lockregistry v0.0.0
	github.com/lockregistry/lockregistry/contrib/lockprom v0.0.0
	github.com/prometheus/client_golang v1.24.1
	github.com/redis/rueidis v1.0.79
	golang.org/x/sync v0.24.0
)

require (
	github.com/alicebob/miniredis/v2 v2.40.0 // indirect
	github.com/beorn7/perks v1.0.1 // indirect
	github.com/cespare/xxhash/v2 v2.3.0 // indirect
	github.com/google/uuid v1.6.0 // indirect
	github.com/munnerz/goautoneg v0.0.0-20191010083416-a7dc8b61c822 // indirect
	github.com/petermattis/goid v0.0.0-20260820044319-269ab09b5261 // indirect
	github.com/prometheus/client_model v0.6.3 // indirect
	github.com/prometheus/common v0.71.0 // indirect
	github.com/prometheus/procfs v0.22.0 // indirect
	github.com/yuin/gopher-lua v1.1.1 // indirect
	golang.org/x/sys v0.47.0 // indirect
	google.golang.org/protobuf v1.36.12 // indirect
)

replace (
	github.com/lockregistry/lockregistry => ../..
	github.com/lockregistry/lockregistry/contrib/lockprom => ../../contrib/lockprom
)
