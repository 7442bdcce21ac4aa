package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/rueidis"
	"github.com/redis/rueidis/rueidislock"

	"github.com/lockregistry/lockregistry"
	"github.com/lockregistry/lockregistry/internal/peer"
)

// What a request to a worker may ask of its members.
const (
	doEnlist = "enlist" // open members; each locks and unlocks its own path
	doTry    = "try"    // each member locks a path once, and unlocks it; the reply comes at once
	doServed = "served" // wait until all have; the reply's field "at" says when each had its path
	doStorm  = "storm"  // each member locks and unlocks one path over and over, for a time that begins for all processes at once
	doGuard  = "guard"  // hold paths that members will want
	doFree   = "free"   // release them
	doMemory = "memory" // the reply's field "bytes" says how much memory the process shares with no other
)

// hotPath is the path that all members want. Each member also has a path of its own.
const hotPath = "hot"

// muster describes the members of a worker.
type muster struct {
	Contender, URL string
	Members, First int  // how many, and the number of the first
	Small          bool // with small buffers, so that one process has room for many
}

// members are contenders that a worker has opened, each with a client and connections of its own, as if each were a process.
type members struct {
	muster
	all   []locks
	tried *trial

	guard    locks
	release  chan struct{} // closed to release what the guard holds
	released *sync.WaitGroup
}

// openLimit is ample for opening one member while thousands are opened.
const openLimit = 2 * time.Minute

// openMember opens a contender by a URL as lockregistry.Open takes it.
func openMember(m muster, renews bool) (locks, error) {
	shrink := func(o *rueidis.ClientOption) {
		if m.Small {
			o.ReadBufferEachConn, o.WriteBufferEachConn, o.RingScaleEachConn = 4<<10, 4<<10, 4
		}
	}
	switch m.Contender {
	case thisLibrary.name:
		ctx, cancel := context.WithTimeout(context.Background(), openLimit)
		defer cancel()
		options := []lockregistry.Option{lockregistry.WithClientOption(shrink)}
		if renews {
			options = append(options, lockregistry.WithRenewal())
		}
		r, err := lockregistry.Open(ctx, m.URL, "lockregistry", options...)
		return registryLocks{registry: r, shared: true}, err
	case rueidislockPeer.name:
		option, err := rueidis.ParseURL(m.URL)
		if err != nil {
			return nil, err
		}
		shrink(&option)
		locker, err := rueidislock.NewLocker(rueidislock.LockerOption{ClientOption: option, KeyMajority: 1, TryNextAfter: 5 * time.Second})
		return rueidislockLocks{locker}, err
	default:
		return nil, fmt.Errorf("a fleet has no %q", m.Contender)
	}
}

func (m *members) run(request peer.Fields) (peer.Fields, error) {
	switch request["do"] {
	case doEnlist:
		if err := peer.Unpack(request["members"], &m.muster); err != nil {
			return nil, err
		}
		return nil, m.enlist()
	case doTry:
		at, err := request.Time("at")
		m.tried = m.try(request["path"] == hotPath, at)
		return nil, err
	case doServed:
		return m.tried.served()
	case doStorm:
		return m.storm(request)
	case doGuard:
		return nil, m.hold(request)
	case doFree:
		m.free()
		return nil, nil //nolint:nilnil // the reply has no fields
	default:
		return peer.Fields{"bytes": strconv.FormatInt(ownMemory(), 10)}, nil
	}
}

// sideBySide does something for each of n, some at once, and returns what failed.
func sideBySide(n, atOnce int, do func(i int) error) error {
	var (
		group  sync.WaitGroup
		next   atomic.Int64
		failed = make([]error, atOnce)
	)
	for g := range atOnce {
		group.Go(func() {
			for i := int(next.Add(1)) - 1; i < n && failed[g] == nil; i = int(next.Add(1)) - 1 {
				failed[g] = do(i)
			}
		})
	}
	group.Wait()
	return errors.Join(failed...)
}

func (m *members) enlist() error {
	m.all = make([]locks, m.Members)
	return sideBySide(m.Members, 8, func(i int) (err error) {
		if m.all[i], err = openMember(m.muster, false); err != nil {
			return err
		}
		own, ctx := m.all[i].session(m.own(i)), context.Background()
		if err := own.lock(ctx); err != nil {
			return err
		}
		return own.unlock(ctx)
	})
}

func (m *members) own(i int) string { return fmt.Sprintf("own/%06d", m.First+i) }

// trialLimit is how long a member tries before it counts as never served.
const trialLimit = time.Minute

// trial is the outcome of the members' attempts to lock a path once.
type trial struct {
	ends   sync.WaitGroup
	got    []int64      // when each had its path, in microseconds since 1970; 0: never
	errors atomic.Int64 // calls that failed
}

// try has each member lock a path, from a given time on, and unlock it at once. A member whose call fails calls again after a
// moment, as a service would.
func (m *members) try(hot bool, at time.Time) *trial {
	t := &trial{got: make([]int64, len(m.all))}
	for i, ls := range m.all {
		path := hotPath
		if !hot {
			path = m.own(i)
		}
		t.ends.Go(func() {
			time.Sleep(time.Until(at))
			ctx, cancel := context.WithDeadline(context.Background(), at.Add(trialLimit))
			defer cancel()
			for s := ls.session(path); ctx.Err() == nil; {
				err := s.lock(ctx)
				if err == nil {
					t.got[i] = time.Now().UnixMicro()
					_ = s.unlock(context.Background()) // the server may have lost the lock
					return
				}
				t.errors.Add(1)
				time.Sleep(50*time.Millisecond + rand.N(100*time.Millisecond))
			}
		})
	}
	return t
}

func (t *trial) served() (peer.Fields, error) {
	t.ends.Wait()
	return peer.Fields{"at": peer.Pack(t.got), "errors": strconv.FormatInt(t.errors.Load(), 10)}, nil
}

// storm counts the sections in which each member has the hot path, and how long each handoff took.
func (m *members) storm(request peer.Fields) (peer.Fields, error) {
	from, err1 := request.Time("from")
	to, err2 := request.Time("to")
	place, err3 := meet(request["meeting"])
	if err := errors.Join(err1, err2, err3); err != nil {
		return nil, err
	}
	var (
		group  sync.WaitGroup
		took   = make([]handoffTimes, len(m.all))
		counts = make([]int, len(m.all))
		failed atomic.Pointer[error]
	)
	ctx, cancel := context.WithDeadline(context.Background(), to)
	defer cancel()
	for i, ls := range m.all {
		group.Go(func() {
			s := ls.session(hotPath)
			for time.Sleep(time.Until(from)); s.lock(ctx) == nil; counts[i]++ {
				right, waited := place.enter(m.First+i, false)
				if waited != 0 {
					took[i] = append(took[i], waited)
				}
				place.leave()
				if err := s.unlock(context.Background()); err != nil {
					failed.Store(&err)
				}
				if !right {
					failed.Store(&errTogether)
				}
			}
		})
	}
	group.Wait()
	if err := failed.Load(); err != nil {
		return nil, *err
	}
	sections, turns := 0, 0
	for _, n := range counts {
		sections += n
		if n > 0 {
			turns++
		}
	}
	return peer.Fields{
		"sections": strconv.Itoa(sections), "members": strconv.Itoa(turns), "took": peer.Pack(slices.Concat(took...)),
	}, nil
}

// hold has one more registry take the hot path, or the own paths of some members, and renew the locks.
func (m *members) hold(request peer.Fields) (err error) {
	if err := peer.Unpack(request["members"], &m.muster); err != nil {
		return err
	}
	if m.guard == nil {
		if m.guard, err = openMember(m.muster, true); err != nil {
			return err
		}
	}
	paths := []string{hotPath}
	if request["path"] != hotPath {
		paths = nil
		for i := range m.Members {
			paths = append(paths, m.own(i))
		}
	}
	m.release, m.released = make(chan struct{}), &sync.WaitGroup{}
	return sideBySide(len(paths), 32, func(i int) error {
		locked, release := make(chan error), m.release
		m.released.Go(func() { // a lock belongs to its goroutine
			s := m.guard.session(paths[i])
			err := s.lock(context.Background())
			if locked <- err; err == nil {
				<-release
				_ = s.unlock(context.Background()) // the server may have lost the lock
			}
		})
		return <-locked
	})
}

// free releases what is held.
func (m *members) free() {
	close(m.release)
	m.released.Wait()
}

// ownMemory is the resident memory that this process shares with no other.
func ownMemory() (bytes int64) {
	text, _ := os.ReadFile("/proc/self/smaps_rollup")
	for line := range strings.Lines(string(text)) {
		words := strings.Fields(line)
		if len(words) == 3 && (words[0] == "Private_Clean:" || words[0] == "Private_Dirty:") {
			kilobytes, _ := strconv.ParseInt(words[1], 10, 64)
			bytes += kilobytes << 10
		}
	}
	return bytes
}
