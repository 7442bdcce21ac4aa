package main

import (
	"context"
	"time"

	"github.com/lockregistry/lockregistry/internal/detector"
	"github.com/lockregistry/lockregistry/internal/keyspace"
	"github.com/lockregistry/lockregistry/internal/readonly"
)

// marks are the paths that calls of deadlocks wait for.
type marks map[string]bool

// knots looks for deadlocks of the registries in the list of those that have a record, in the background, and returns a function
// that waits for the marks, for 1.5 s at most: what is known is shown within two. It needs no SCAN of all keys, so it does not
// find those of older versions. What fails leaves out marks.
func knots(ctx context.Context, reader *readonly.Reader) func() marks {
	ctx, cancel := context.WithTimeout(ctx, 1500*time.Millisecond)
	done := make(chan struct{})
	all := marks{}
	go func() {
		defer close(done)
		defer cancel()
		list := func(ctx context.Context) ([]string, error) { return keyspace.Listed(ctx, reader) }
		cycles, _ := detector.Bystander(reader, reader.Clock, reader.Closed).All(ctx, list)
		for _, cycle := range cycles {
			for _, wait := range cycle {
				all[wait.Path] = true
			}
		}
	}()
	return func() marks {
		<-done
		return all
	}
}
