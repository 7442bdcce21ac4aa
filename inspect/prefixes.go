package inspect

import (
	"context"
	"errors"
	"iter"
	"slices"
	"strings"

	"github.com/lockregistry/lockregistry/internal/detector"
	"github.com/lockregistry/lockregistry/internal/fault"
	"github.com/lockregistry/lockregistry/internal/keyspace"
	"github.com/lockregistry/lockregistry/internal/protocol"
	"github.com/lockregistry/lockregistry/internal/scan"
	"github.com/lockregistry/lockregistry/internal/seam"
	"github.com/lockregistry/lockregistry/observe"
)

// Found is a lock that [LocksOf] has found.
type Found struct {
	Of   int // the index of its inspector among the arguments
	Lock Lock
}

// LocksOf is [Inspector.Locks] for several inspectors. Inspectors with the same client share one pass of SCAN, so that many
// prefixes of a database cost the server little more than one. Inspectors with different clients run one after another. A prefix
// that begins with another one and a colon gets a pass of its own.
//
// An error concerns one inspector, Found.Of, which yields nothing more. The others continue.
func LocksOf(ctx context.Context, inspectors ...*Inspector) iter.Seq2[Found, error] {
	return func(yield func(Found, error) bool) {
		for i := range inspectors {
			if ctx == nil && !yield(Found{Of: i}, inspectors[i].failAll("locks", fault.NilContext)) {
				return
			}
		}
		if ctx == nil {
			return
		}
		for _, group := range together(inspectors) {
			s := several{inspectors: inspectors, yield: yield}
			if s.each(ctx, group); s.over {
				return
			}
		}
	}
}

// together returns the numbers of the inspectors that share a pass: they have the same client, and no key is of two of them.
func together(inspectors []*Inspector) (groups [][]int) {
	apart := func(a, b *Inspector) bool {
		one, other := a.reader.Prefix+":", b.reader.Prefix+":"
		return a.reader.Client != b.reader.Client || strings.HasPrefix(one, other) || strings.HasPrefix(other, one)
	}
	for i, inspector := range inspectors {
		at := slices.IndexFunc(groups, func(group []int) bool {
			return !slices.ContainsFunc(group, func(k int) bool { return apart(inspectors[k], inspector) })
		})
		if at < 0 {
			groups = append(groups, []int{i})
		} else {
			groups[at] = append(groups[at], i)
		}
	}
	return groups
}

// several is a pass for some inspectors.
type several struct {
	inspectors []*Inspector
	yield      func(Found, error) bool
	over       bool // the caller wants no more
	listings   []*listing
}

// each yields the locks of a group.
func (s *several) each(ctx context.Context, group []int) {
	prefixes := make([]string, len(group))
	pass := &scan.Pass{Pick: s.pick, Read: s.read, Tell: s.tell, TooLong: s.tellLong}
	for k, i := range group {
		r := &s.inspectors[i].reader
		l := &listing{of: i, reader: r, ctx: ctx, yielded: map[string]bool{}, records: map[string]record{}}
		l.yield = func(info Lock) bool { return s.tellOne(Found{i, info}, nil) }
		s.listings, prefixes[k] = append(s.listings, l), r.Prefix
		pass.Known = append(pass.Known, l.known()...)
	}
	err := keyspace.Together(ctx, s.listings[0].reader.Reader, prefixes, "", pass)
	for _, l := range s.listings {
		if err != nil && !errors.Is(err, errEnough) {
			s.fail(l, err)
		}
	}
}

// tellOne yields something, unless the caller wants no more.
func (s *several) tellOne(found Found, err error) bool {
	s.over = s.over || !s.yield(found, err)
	return !s.over
}

// fail ends an inspector's part.
func (s *several) fail(l *listing, err error) {
	if !l.failed {
		l.failed = true
		s.tellOne(Found{Of: l.of}, s.inspectors[l.of].failAll("locks", err))
	}
}

// owner is whose key it is, or nil. All keys of a pass for one inspector are its own: the name of a long one may be cut within
// the prefix.
func (s *several) owner(key string) *listing {
	if len(s.listings) == 1 {
		return s.listings[0]
	}
	for _, l := range s.listings {
		if strings.HasPrefix(key, l.reader.Prefix+":") {
			return l
		}
	}
	return nil
}

func (s *several) pick(key string) (string, bool) {
	if l := s.owner(key); l != nil && !l.failed {
		return protocol.LockOf(l.reader.Prefix, key)
	}
	return "", false
}

func (s *several) read(keys []string) error {
	of := map[*listing][]string{}
	for _, key := range keys {
		if l := s.owner(key); l != nil && !l.failed {
			of[l] = append(of[l], key)
		}
	}
	return s.all(func(l *listing) error {
		if len(of[l]) == 0 {
			return nil
		}
		return l.read(of[l])
	})
}

func (s *several) tell() error { return s.all((*listing).tell) }

func (s *several) tellLong(names []string) error {
	return s.all(func(l *listing) error {
		return l.tellLong(slices.DeleteFunc(slices.Clone(names), func(name string) bool { return s.owner(name) != l }))
	})
}

// all does something for all that have not failed. What fails ends one of them, and the pass once none is left.
func (s *several) all(do func(l *listing) error) error {
	left := 0
	for _, l := range s.listings {
		if l.failed {
			continue
		}
		if err := do(l); err != nil && !errors.Is(err, errEnough) {
			s.fail(l, err)
		}
		if s.over {
			return errEnough
		}
		if !l.failed {
			left++
		}
	}
	if left == 0 {
		return errEnough
	}
	return nil
}

// DeadlocksOf is [Inspector.Deadlocks] for several inspectors, with passes of SCAN shared as by [LocksOf]. It returns the
// deadlocks of each inspector, or the error for it.
func DeadlocksOf(ctx context.Context, inspectors ...*Inspector) (found [][]observe.Deadlock, errs []error) {
	found, errs = make([][]observe.Deadlock, len(inspectors)), make([]error, len(inspectors))
	for _, group := range together(inspectors) {
		prefixes := make([]string, len(group))
		for k, i := range group {
			prefixes[k] = inspectors[i].reader.Prefix
		}
		var registries map[string][]string
		err := fault.NilContext
		if ctx != nil {
			registries, err = keyspace.Registries(ctx, inspectors[group[0]].reader.Reader, prefixes...)
		}
		for k, i := range group {
			var cycles []detector.Cycle
			if errs[i] = err; err == nil {
				// A registry that comes between the two looks is in no cycle of both.
				list := func(context.Context) ([]string, error) { return registries[prefixes[k]], nil }
				cycles, errs[i] = inspectors[i].reader.Detector.All(ctx, list)
			}
			if errs[i] != nil {
				errs[i] = inspectors[i].failAll("deadlocks", errs[i])
			}
			for _, cycle := range cycles {
				found[i] = append(found[i], seam.Lockregistry.Deadlock(cycle))
			}
		}
	}
	return found, errs
}
