package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/lockregistry/lockregistry/cmd/lockreg/internal/view"
	"github.com/lockregistry/lockregistry/internal/detector"
	"github.com/lockregistry/lockregistry/internal/keyspace"
	"github.com/lockregistry/lockregistry/internal/readonly"
	"github.com/lockregistry/lockregistry/observe"
)

func (a *app) deadlocksCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "deadlocks PREFIX",
		Short: "Find calls that wait for each other",
		Long:  deadlocksHelp,
		Args:  exactly(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			r, closeAll, err := a.inspector(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			defer closeAll()
			return a.deadlocks(cmd.Context(), r, func() string { return a.noLocks(cmd.Context(), r, args[0]) })
		},
	}
}

// finder is the part of an inspector that the command deadlocks needs.
type finder interface {
	Deadlocks(ctx context.Context) ([]observe.Deadlock, error)
}

// deadlocks prints them. Where there is none, why says more.
func (a *app) deadlocks(ctx context.Context, r finder, why func() string) error {
	found, err := r.Deadlocks(ctx)
	if err != nil {
		return failed(err)
	}
	switch {
	case a.json:
		if len(found) == 0 {
			a.warn(why())
		}
		err = a.printJSON(view.OfDeadlocks(found))
	case len(found) == 0:
		_, err = fmt.Fprintln(a.out, "no deadlocks"+why())
	default:
		err = a.printDeadlocks(found)
	}
	if err == nil && len(found) > 0 {
		err = exit{exitFound, nil}
	}
	return err
}

func (a *app) printDeadlocks(found []observe.Deadlock) error {
	for i, d := range found {
		if i > 0 {
			fmt.Fprintln(a.out)
		}
		fmt.Fprintf(a.out, "deadlock of %d\n", len(d.Waits))
		table := a.table("OWNER", "PROCESS", "HOLDS", "WAITS FOR", "SINCE")
		for _, w := range d.Waits {
			table.row(w.Owner, view.Process(w.Label), strings.Join(w.Holds, ", "), w.Path, ago(w.Since))
		}
		if err := table.Flush(); err != nil {
			return err
		}
	}
	return nil
}

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
		cycles, _ := detector.Bystander(reader, reader.Clock).All(ctx, list)
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
