package queue

import (
	"context"

	"github.com/lockregistry/lockregistry/internal/fault"
	"github.com/lockregistry/lockregistry/internal/protocol"
	"github.com/lockregistry/lockregistry/internal/several"
)

// Ended is a hold of one of several paths that its owner has ended, and what became of its release, see [Path.Release].
type Ended struct {
	Path *Path
	Ending
	Lost fault.Loss
	Err  error
	left bool // by a script
	came bool // its own release has begun, which will free the local half
}

// ReleaseAll releases holds of several plain locks. One script for each slot of a cluster, or for a single server, releases the
// holds that nobody is known to wait for. The others are released one by one, many at the same time.
//
// The script leaves a path if others wait for it, or if the script does not find the hold there. Such a path is then released by
// itself, whatever the reason: so a path that a proxy keeps on another server is released on that server. Nothing is released
// twice, since a value never names a second hold.
func ReleaseAll(ctx context.Context, all []*Ended) {
	if len(all) == 0 {
		return
	}
	returned := false
	defer func() {
		if returned {
			return
		}
		for _, one := range all { // code of the user has panicked
			if !one.came {
				one.Path.forsakeEnded(one.Hold)
			}
		}
	}()
	_ = Each(together(all), func(paths []*Ended) error {
		if len(paths) == 1 {
			return paths[0].release(ctx)
		}
		return releaseTogether(ctx, paths)
	})
	var left []*Ended
	for _, one := range all {
		if one.left {
			left = append(left, one)
		}
	}
	_ = Each(left, func(one *Ended) error { return one.release(ctx) })
	returned = true
}

// together returns the paths of each script; a single path is released without one.
func together(all []*Ended) [][]*Ended {
	shared := all[0].Path.all
	// Behind a proxy that keeps paths on several servers, a script would find only some of them.
	apart := shared.Apart.Seen(shared.Transport.Clock.Now())
	return several.Scripts(all, shared.Cluster, func(one *Ended) string { return one.Path.Key }, func(one *Ended) bool {
		return apart || one.Kept > one.At || // AtLeast keeps it
			one.Hold.Queued || one.Path.Contested() || one.Path.lock.Contended() // somebody may wait for it
	})
}

// release releases a path by itself. Its time begins when its turn comes, since thousands may be released before it.
func (e *Ended) release(ctx context.Context) error {
	e.came = true
	e.At = e.Path.Clock.Now() // mutant: turn has no time
	e.Lost, e.Err = e.Path.Release(ctx, e.Ending)
	return e.Err
}

// releaseTogether releases paths by one script. It returns why paths are not released, except those that the script left.
func releaseTogether(ctx context.Context, paths []*Ended) error {
	first := paths[0]
	all := make([]protocol.Release, len(paths))
	for i, one := range paths {
		all[i] = protocol.Release{Key: one.Path.Key, Value: one.Hold.Value(), Queued: one.Path.mayQueue()}
	}
	first.At = first.Path.Clock.Now()
	w, c := first.Path.releaseWait(ctx, &first.Ending), first.Path.Format.ReleaseAll(all)
	reply := first.Path.all.Transport.Do(&w, &c)
	gone, err := protocol.Released(reply.RedisResult, len(paths))
	if fault.CrossSlot(err) {
		first.Path.noteApart()
	}
	left, found := several.Released(paths, gone, err)
	for _, one := range left {
		one.left = true
	}
	settle := func(one *Ended) error { // mutant: late script believed
		one.came = true
		one.Lost, one.Err = one.Path.released(&one.Ending, &releaseReply{wait: w, reply: reply, n: 1, err: err})
		return one.Err
	}
	if err != nil || reply.Late { // each waits for a removal
		return Each(found, settle)
	}
	for _, one := range found {
		_ = settle(one)
	}
	return nil
}

// NoTime is a context that has ended.
var NoTime = func() context.Context {
	ctx, end := context.WithCancel(context.Background())
	end()
	return ctx
}()
