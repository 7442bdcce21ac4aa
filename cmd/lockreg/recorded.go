package main

import (
	"context"
	"fmt"
	"strings"

	"github.com/lockregistry/lockregistry/cmd/lockreg/internal/printable"
	"github.com/lockregistry/lockregistry/cmd/lockreg/internal/view"
	"github.com/lockregistry/lockregistry/internal/keyspace"
	"github.com/lockregistry/lockregistry/internal/presence"
	"github.com/lockregistry/lockregistry/internal/readonly"
	"github.com/lockregistry/lockregistry/observe"
)

// recorded returns which calls wait for a path within their processes, by the records of these; empty if none do, or it cannot be
// found out. Redis shows no such call where the path is free: a process that has lost the lock, by release for instance, notices
// at its next renewal or unlock, and only then does the first of its waiting calls ask Redis.
func (a *app) recorded(ctx context.Context, prefix, path string) string {
	client, err := a.connect(ctx)
	if err != nil {
		return ""
	}
	defer client.Close()
	reader := readonly.Bystander(client, prefix, patience)
	registries, _ := keyspace.Listed(ctx, reader)
	if len(registries) == 0 { // older versions keep no list
		all, _ := keyspace.Registries(ctx, reader, prefix)
		registries = all[prefix]
	}
	var found []string
	// What fails leaves less to tell.
	_ = reader.Records(ctx, registries, func(_ int, record presence.Record, from presence.Identity) {
		waiting, held := 0, false
		for _, lock := range record.Locks {
			if lock.Path == path {
				waiting, held = waiting+lock.Waiting, held || lock.Hold != ""
			}
		}
		if waiting == 0 {
			return
		}
		text := fmt.Sprintf("%d waiting in %s, by its record", waiting, printable.Text(view.Process(observe.Label(from))))
		if held {
			text += ", which still has the lock: once that process notices " + noticing + ", the first one asks for it"
		}
		found = append(found, text)
	})
	return strings.Join(found, "; ")
}
