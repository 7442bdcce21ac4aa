module github.com/lockregistry/lockregistry

go 1.25.0

require (
	github.com/alicebob/miniredis/v2 v2.40.0
	github.com/google/uuid v1.6.0
	github.com/petermattis/goid v0.0.0-20260820044319-269ab09b5261 // the goroutine's number in nanoseconds: runtime.Stack takes a tenth of a whole lock and unlock
	github.com/redis/rueidis v1.0.79
	github.com/stretchr/testify v1.12.1
	github.com/yuin/gopher-lua v1.1.1 // tests only: no script uses a global that servers lack; miniredis needs it, too
	go.uber.org/goleak v1.3.0 // tests only: no goroutine, timer or subscription outlives what started it
)

require (
	go.yaml.in/yaml/v3 v3.0.5 // indirect
	golang.org/x/sys v0.47.0 // indirect
)
