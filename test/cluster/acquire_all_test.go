package cluster_test

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry"
	"github.com/lockregistry/lockregistry/internal/redistest"
	"github.com/lockregistry/lockregistry/test/internal/kit"
)

// On a cluster the paths are in several slots: a call asks for each of them once, and keeps nothing when one is taken.
func TestAcquireAll_OnACluster(t *testing.T) {
	t.Parallel()
	cluster := kit.ShareCluster(t)
	for name, opts := range map[string][]lockregistry.Option{
		"spring":          nil,
		"spring fenced":   {lockregistry.WithFencing()},
		"redisson fenced": {lockregistry.WithRedissonLayout(), lockregistry.WithFencing()},
	} {
		t.Run(name, func(t *testing.T) {
			var registries []*lockregistry.Registry
			for range 2 {
				registries = append(registries, cluster.RegistryOn(t, cluster.Client(t), opts...))
			}
			paths := []string{"a", "{tag}b", "c", "{tag}d", "e", "f"}
			for _, taken := range paths {
				held, err := registries[1].Acquire(t.Context(), taken)
				require.NoError(t, err)
				_, err = registries[0].AcquireAll(t.Context(), paths, lockregistry.NoWait())
				require.ErrorIs(t, err, lockregistry.ErrTaken)
				require.ErrorContains(t, err, cluster.Prefix+":"+taken+":")
				require.NoError(t, kit.UnlessLate(held.Release(t.Context())))
				all, err := registries[1].AcquireAll(t.Context(), paths, lockregistry.NoWait())
				require.NoError(t, err, "nothing was kept")
				require.NoError(t, kit.UnlessLate(all.Release(t.Context())))
			}
			var inside kit.Sections
			var group sync.WaitGroup
			for _, r := range registries {
				for range 4 {
					group.Go(func() {
						for range 20 {
							which, paths := kit.RandomPaths()
							h, err := r.AcquireAll(t.Context(), paths, lockregistry.Wait(time.Minute))
							if err != nil {
								t.Error(err)
								return
							}
							inside.Enter(t, which, func() {})
							if err := kit.UnlessBusy(h.Release(t.Context())); err != nil {
								t.Error(err)
							}
						}
					})
				}
			}
			group.Wait()
		})
	}
}

// While a slot moves, a node refuses a script for several paths unless all of their keys are there, and free paths have no
// keys. It serves each path by itself, so the call takes one after another, even if it does not wait.
func TestAcquireAll_WhileASlotMoves(t *testing.T) {
	t.Parallel()
	nodes := redistest.StartCluster(t, 3)
	m := migrating(t, nodes, "orders:{tag}a")
	one, other := kit.OnCluster(t, nodes), kit.OnCluster(t, nodes)
	paths := []string{"{tag}a", "{tag}b", "other"}
	taken, err := other.Acquire(t.Context(), "{tag}b")
	require.NoError(t, err)
	m.begin()

	_, err = one.AcquireAll(t.Context(), paths, lockregistry.NoWait())
	require.ErrorIs(t, err, lockregistry.ErrTaken)
	require.ErrorContains(t, err, "orders:{tag}b:")
	require.NoError(t, kit.UnlessLate(taken.Release(t.Context())))

	for name, opts := range map[string][]lockregistry.AcquireOption{
		"waits": nil, "does not wait": {lockregistry.NoWait()}, "fails fast": {lockregistry.FailFast()},
	} {
		all, err := one.AcquireAll(t.Context(), paths, opts...)
		require.NoError(t, err, name)
		_, err = other.Acquire(t.Context(), "{tag}a", lockregistry.NoWait())
		require.ErrorIs(t, err, lockregistry.ErrTaken, name)
		require.NoError(t, kit.UnlessLate(all.Release(t.Context())), name)
	}
	m.end()
	all, err := one.AcquireAll(t.Context(), paths)
	require.NoError(t, err)
	require.NoError(t, kit.UnlessLate(all.Release(t.Context())))
}

// heldUp is a client whose commands about a key hang until the end, once the key has been set.
type heldUp struct {
	rueidis.Client
	key   string
	set   atomic.Bool
	until chan struct{}
}

func (c *heldUp) Do(ctx context.Context, command rueidis.Completed) rueidis.RedisResult {
	if slices.Contains(command.Commands(), c.key) {
		if c.set.Load() {
			<-c.until
		}
		c.set.Store(command.Commands()[0] == "SET")
	}
	return c.Client.Do(ctx, command)
}

// A call that does not wait first releases what it got, before it takes one path after another. If Redis does not confirm the
// release in time, the error is not that others have taken the path.
func TestAcquireAll_WhatItCannotGiveBackIsNotTaken(t *testing.T) {
	t.Parallel()
	nodes := redistest.StartCluster(t, 3)
	client := &heldUp{Client: kit.ClusterClient(t, nodes), key: "orders:other", until: make(chan struct{})}
	r, err := lockregistry.New(client, "orders")
	require.NoError(t, err)
	defer func() { require.NoError(t, r.Close()) }()
	migrating(t, nodes, "orders:{tag}a").begin()
	_, err = r.AcquireAll(t.Context(), []string{"{tag}a", "{tag}b", "other"}, lockregistry.NoWait())
	close(client.until)
	require.ErrorIs(t, err, lockregistry.ErrUnavailable)
	require.NotErrorIs(t, err, lockregistry.ErrTaken)
}
