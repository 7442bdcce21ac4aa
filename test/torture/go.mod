module github.com/lockregistry/lockregistry/test/torture

go 1.25.0

replace github.com/lockregistry/lockregistry => ../../

require (
	github.com/anishathalye/porcupine v1.3.1
	github.com/google/uuid v1.6.0
	github.com/lockregistry/lockregistry v0.0.0
	github.com/redis/rueidis v1.0.79
	github.com/stretchr/testify v1.12.1
	golang.org/x/sys v0.47.0
)

require (
	github.com/petermattis/goid v0.0.0-20260820044319-269ab09b5261 // indirect
	go.yaml.in/yaml/v3 v3.0.5 // indirect
)
