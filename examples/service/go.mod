// The service is a module of its own, as yours is: it may need what the library does not.
module github.com/lockregistry/lockregistry/examples/service

go 1.26.0

require (
	github.com/lockregistry/lockregistry v0.0.0
	github.com/redis/rueidis v1.0.79
	golang.org/x/sync v0.24.0
)

require (
	github.com/alicebob/miniredis/v2 v2.40.0 // indirect
	github.com/google/uuid v1.6.0 // indirect
	github.com/petermattis/goid v0.0.0-20260820044319-269ab09b5261 // indirect
	github.com/yuin/gopher-lua v1.1.1 // indirect
	golang.org/x/sys v0.47.0 // indirect
)

replace github.com/lockregistry/lockregistry => ../..
