// Package several decides how a call acquires and releases several paths: in which order it asks, which paths share a script, and
// what it gives back. It does no I/O.
package several

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/lockregistry/lockregistry/internal/fault"
	"github.com/lockregistry/lockregistry/internal/protocol"
)

const (
	mostPaths    = 20_000 // of one call: one after another, each takes a round trip
	mostInScript = 1000   // the server does nothing else for some milliseconds
)

// Ordered returns the paths in the order in which a call asks for them, each once. All calls go in the same order, so that no two
// wait for each other.
func Ordered(paths []string) ([]string, error) {
	if len(paths) == 0 {
		return []string{""}, errors.New("the list of paths is empty")
	}
	ordered := slices.Clone(paths)
	slices.Sort(ordered) // mutant: unsorted
	if ordered = slices.Compact(ordered); len(ordered) > mostPaths {
		return ordered, fmt.Errorf("%d paths: AcquireAll takes %d at most", len(ordered), mostPaths)
	}
	return ordered, nil
}

// Scripts divides paths into groups, with one script for each: on a cluster, a group has paths of one slot. A path goes by itself
// if single reports true for it, or if it is alone in its slot. If single is nil, no path is single.
func Scripts[T any](paths []T, cluster bool, key func(T) string, single func(T) bool) (scripts [][]T) {
	few := !cluster && len(paths) > 0 && len(paths) <= mostInScript
	if few && (single == nil || !slices.ContainsFunc(paths, single)) { // most calls
		return [][]T{paths}
	}
	newest := map[uint16]int{} // script of a slot
	for i, path := range paths {
		if single != nil && single(path) {
			scripts = append(scripts, paths[i:i+1:i+1])
			continue
		}
		var slot uint16
		if cluster {
			slot = protocol.Slot(key(path))
		}
		at, has := newest[slot]
		if !has || len(scripts[at]) == mostInScript {
			at = len(scripts)
			newest[slot], scripts = at, append(scripts, nil)
		}
		scripts[at] = append(scripts[at], path)
	}
	return scripts
}

// Call is a call that could not get all of its paths at once.
type Call struct {
	Patient  bool // it waits
	Limited  bool // it waits for a limited time, which is not over
	FailFast bool
}

// GoesOn reports whether the call asks for one path after another now, and why Redis could not be asked so far; nil if it was.
func (c Call) GoesOn(err error) (goesOn bool, failure error) {
	var late fault.OverdueError
	switch {
	case c.Patient && !c.FailFast && errors.As(err, &late):
		return true, late.Failure
	case errors.Is(err, fault.Apart):
		return true, nil
	case c.Patient && (err == fault.Busy || errors.Is(err, fault.Lost)): //nolint:errorlint // never wrapped
		return true, nil
	case c.FailFast:
		return false, nil
	default:
		return c.Patient && errors.Is(err, fault.Late) || c.Limited && errors.Is(err, fault.Unavailable), err
	}
}

// Blamed returns the index of the error that the call returns, of all errors of its scripts. A failure of Redis comes first, then
// that another owner has a path, then that the call's context has ended.
func Blamed(errs []error) (blamed int) {
	for i, err := range errs {
		if weight(err) > weight(errs[blamed]) {
			blamed = i
		}
	}
	return blamed
}

// weight is how much an error says.
func weight(err error) int {
	switch {
	case err == nil:
		return 0
	case err == fault.Busy: //nolint:errorlint // never wrapped
		return 2
	case errors.Is(err, fault.Unavailable), errors.As(err, new(fault.HeldError)):
		return 3
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded): // Redis was not asked
		return 1
	default:
		return 3
	}
}

// Taken returns the index of the first path that was seen taken, by the errors of the paths; -1: none was.
func Taken(errs []error) int {
	return slices.IndexFunc(errs, func(err error) bool {
		return err == fault.Busy || errors.As(err, new(fault.HeldError)) //nolint:errorlint // never wrapped
	})
}

// Outcome is what the reply to a script that asked for several paths says about them all.
type Outcome uint8

// The outcomes.
const (
	Refused   Outcome = iota // the call has none of them
	Unknown                  // it may have each: they are removed
	Granted                  // it has each
	Suspect                  // it has each if the server confirms it, since the reply came late
	Elsewhere                // they are, or may be, on several servers, behind a proxy or while a slot moves: all are given back
)

// Reply is the reply to a script that asked for several paths.
type Reply struct {
	Taken  int   // the number of the path that another owner has, from 1; 0: none
	Err    error // why Redis did not execute the script, or may not have done so
	Astray bool  // the paths were read back, and not all were found, or the script was refused since they are on several servers
	Few    bool  // too few replicas have what the script has written
	Late   bool
}

// Outcome returns what the reply says.
func (r Reply) Outcome() Outcome {
	switch {
	case r.Astray:
		return Elsewhere
	case r.Taken > 0 || r.Err != nil && !fault.OutcomeUnknown(r.Err): // mutant: paths forgotten
		return Refused
	case r.Err != nil, r.Few:
		return Unknown
	case r.Late:
		return Suspect
	default:
		return Granted
	}
}

// Released divides the paths of a script that releases several. Left are the paths that the script has left, so each must be
// released by itself; found are those that it has released, or may have. Free is the reply, with 0 for a path that was left; err
// is why there is no reply.
func Released[T any](paths []T, free []int64, err error) (left, found []T) {
	switch {
	case err == nil:
	case fault.OutcomeUnknown(err): // mutant: several without an answer
		return nil, paths
	default: // a script with several keys may be refused where one with a single key is not
		return paths, nil
	}
	if !slices.Contains(free, 0) { // mutant: found is released
		return nil, paths
	}
	for i, path := range paths {
		if free[i] == 0 {
			left = append(left, path)
		} else {
			found = append(found, path)
		}
	}
	return left, found
}
