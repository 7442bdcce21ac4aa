package queue

import (
	"context"
	"sync"

	"github.com/lockregistry/lockregistry/internal/fault"
	"github.com/lockregistry/lockregistry/internal/protocol"
)

// MostInScript is how many paths one script is about at most: the server does nothing else for some milliseconds.
const MostInScript = 1000

// Ended is a hold of one of several paths that its owner has ended, and what became of its release, see [Path.Release].
type Ended struct {
	Path *Path
	Ending
	Lost fault.Loss
	Err  error
}

// ReleaseAll releases holds of several plain locks: by one script those of a slot that nobody is known to wait for, and the
// others one by one, at the same time. The script leaves a path that others wait for, or where it does not find the hold. Such a
// path is released by itself then, whatever is the reason: so behind a proxy that keeps it on another server, it is released
// there. Nothing is released twice, since a value names one hold for ever.
func ReleaseAll(ctx context.Context, all []*Ended) {
	scripts, single := together(all)
	var under sync.WaitGroup
	for i, paths := range scripts {
		if i == len(scripts)-1 && len(single) == 0 { // the caller waits in any case
			releaseTogether(ctx, paths)
		} else {
			under.Go(func() { releaseTogether(ctx, paths) })
		}
	}
	releaseEach(ctx, single)
	under.Wait()
}

// together returns the paths of each script, and those that are released by themselves.
func together(all []*Ended) (scripts [][]*Ended, single []*Ended) {
	if len(all) == 0 {
		return nil, nil
	}
	shared, first := all[0].Path.all, all[0].Path
	// Behind a proxy that keeps paths on several servers a script would find some of them.
	if shared.Apart.Seen(first.Clock.Now()) {
		return nil, all
	}
	of := map[uint16]int{} // the newest script of a slot
	for _, one := range all {
		if !one.alone() {
			single = append(single, one)
			continue
		}
		var slot uint16
		if shared.Cluster {
			slot = protocol.Slot(one.Path.Key)
		}
		i, has := of[slot]
		if !has || len(scripts[i]) == MostInScript {
			i = len(scripts)
			of[slot], scripts = i, append(scripts, nil)
		}
		scripts[i] = append(scripts[i], one)
	}
	return scripts, single
}

// alone reports whether nobody is known to wait for the path, in this process or elsewhere, and nothing keeps it.
func (e *Ended) alone() bool {
	return e.Kept <= e.At && e.Hold.Queued() == 0 && !e.Path.Contested() && !e.Path.lock.Contended()
}

// releaseTogether releases paths by one script, and what that leaves one by one.
func releaseTogether(ctx context.Context, paths []*Ended) {
	if len(paths) == 1 {
		releaseEach(ctx, paths)
		return
	}
	first := paths[0].Path
	all := make([]protocol.Release, len(paths))
	for i, one := range paths {
		all[i] = protocol.Release{Key: one.Path.Key, Value: one.Hold.Value(), Queued: one.Path.mayQueue()}
	}
	w, c := first.releaseWait(ctx, &paths[0].Ending), first.Format.ReleaseAll(all)
	reply := first.all.Transport.Do(&w, &c)
	gone, err := protocol.Released(reply.RedisResult, len(paths))
	if fault.CrossSlot(err) {
		first.noteApart()
	}
	if err != nil && !fault.OutcomeUnknown(err) { // one of several keys is refused, or at another node, where one key alone is not
		releaseEach(ctx, paths)
		return
	}
	left, found := paths[:0:0], make([]*Ended, 0, len(paths))
	for i, one := range paths {
		if err == nil && gone[i] == 0 { // mutant: found is released
			left = append(left, one)
		} else {
			found = append(found, one)
		}
	}
	settle := func(one *Ended) error {
		one.Lost, one.Err = one.Path.released(&one.Ending, &releaseReply{wait: w, reply: reply, n: 1, err: err})
		return one.Err
	}
	if err != nil || reply.Late { // each waits for a removal
		_ = Each(found, settle)
	} else {
		for _, one := range found {
			_ = settle(one)
		}
	}
	releaseEach(ctx, left)
}

// releaseEach releases paths one by one, at the same time. Once the time of one release is over, each of the others gets only as
// long as a release gets once its context is done.
func releaseEach(ctx context.Context, paths []*Ended) {
	_ = Each(paths, func(one *Ended) error {
		ctx := ctx
		if one.At.Until(one.Path.Clock.Now()) >= ReleaseLimit {
			ctx = NoTime
		}
		one.Lost, one.Err = one.Path.Release(ctx, one.Ending)
		return one.Err
	})
}

// NoTime is a context that has ended.
var NoTime = func() context.Context {
	ctx, end := context.WithCancel(context.Background())
	end()
	return ctx
}()
