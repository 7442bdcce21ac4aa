package main

import (
	"context"
	"iter"
	"time"

	"github.com/lockregistry/lockregistry/internal/deadlock"
	"github.com/lockregistry/lockregistry/internal/detector"
	"github.com/lockregistry/lockregistry/internal/inspect"
	"github.com/lockregistry/lockregistry/internal/presence"
)

// marks are the paths that calls of deadlocks wait for.
type marks map[string]bool

// knots looks for deadlocks of the registries in the list of those that have a record, in the background, and returns a function
// that waits for the marks, for 1.5 s at most: what is known is shown within two. It needs no SCAN of all keys, so it does not
// find those of older versions. What fails leaves out marks.
func knots(ctx context.Context, reader *inspect.Reader) func() marks {
	ctx, cancel := context.WithTimeout(ctx, 1500*time.Millisecond)
	done := make(chan struct{})
	all := marks{}
	go func() {
		defer close(done)
		defer cancel()
		d := detector.New(bystander{reader}, presence.Identity{}, &deadlock.Graph{}, reader.Clock, reader.Closed)
		cycles, _ := d.All(ctx)
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

// bystander is a registry that holds nothing and waits for nothing.
type bystander struct{ *inspect.Reader }

func (b bystander) Registries(ctx context.Context) ([]string, error) { return b.Listed(ctx) }

func (bystander) Mine(*deadlock.Call) bool                   { return false }
func (bystander) Subject(*deadlock.Call) (path, kind string) { return "", "" }
func (bystander) Held() iter.Seq[detector.Held]              { return func(func(detector.Held) bool) {} }
func (bystander) Report(detector.Cycle)                      {}
