module github.com/lockregistry/lockregistry/contrib/lockgoredis

go 1.25.0

replace github.com/lockregistry/lockregistry => ../../

require (
	github.com/alicebob/miniredis/v2 v2.40.0
	github.com/lockregistry/lockregistry v0.0.0
	github.com/redis/go-redis/v9 v9.18.0
	github.com/redis/rueidis v1.0.79
	github.com/stretchr/testify v1.12.1
	go.uber.org/goleak v1.3.0
)

require (
	github.com/cespare/xxhash/v2 v2.3.0 // indirect
	github.com/dgryski/go-rendezvous v0.0.0-20200823014737-9f7001d12a5f // indirect
	github.com/google/uuid v1.6.0 // indirect
	github.com/petermattis/goid v0.0.0-20260820044319-269ab09b5261 // indirect
	github.com/yuin/gopher-lua v1.1.1 // indirect
	go.uber.org/atomic v1.11.0 // indirect
	go.yaml.in/yaml/v3 v3.0.5 // indirect
	golang.org/x/sys v0.47.0 // indirect
)
