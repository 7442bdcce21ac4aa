package page

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"strings"

	"github.com/lockregistry/lockregistry/cmd/lockreg/internal/printable"
	"github.com/lockregistry/lockregistry/cmd/lockreg/internal/view"
	"github.com/lockregistry/lockregistry/inspect"
	"github.com/lockregistry/lockregistry/observe"
)

// MostPrefixes is how many prefixes a page can show: each one costs the server, and browsers, a little more.
const MostPrefixes = 32

// WithPrefix makes the page show the locks of a prefix under its name, besides those of other prefixes. The addresses of locks
// contain that name. In this case give [New] no source. Inspectors on one client share their passes over the keys.
func WithPrefix(name string, source Source) Option {
	return func(h *Handler) error {
		switch {
		case name == "":
			return errors.New("page: a prefix is empty")
		case source == nil:
			return fmt.Errorf("page: the prefix %q has no source", name)
		case len(h.feed.prefixes) == MostPrefixes:
			return fmt.Errorf("page: it shows %d prefixes at most", MostPrefixes)
		case slices.ContainsFunc(h.feed.prefixes, func(p prefix) bool { return p.name == name }):
			return fmt.Errorf("page: the prefix %q is given twice", name)
		}
		h.feed.prefixes = append(h.feed.prefixes, prefix{name, source})
		return nil
	}
}

// prefix is one that the page shows. The only one may have no name.
type prefix struct {
	name   string
	source Source
}

// prefixOf is what browsers are told of a prefix.
type prefixOf struct {
	Name string `json:"name"`
	ID   string `json:"id"` // the same, see view.ID
}

func (f *feed) names() []prefixOf {
	all := []prefixOf{}
	for _, p := range f.prefixes {
		if p.name != "" {
			all = append(all, prefixOf{printable.Valid(p.name), view.ID(p.name)})
		}
	}
	return all
}

// key is a lock that the page shows: of which prefix, by its number, and at which path.
type key struct {
	prefix int
	path   string
}

// id is what browsers call a lock: its path, see [view.ID], behind its prefix, if that has a name, and a slash, which no id has.
func (p prefix) id(path string) string {
	if p.name == "" {
		return view.ID(path)
	}
	return view.ID(p.name) + "/" + view.ID(path)
}

// named returns the number of a prefix that a request names. Where there is only one, the request need not.
func (f *feed) named(name string) (int, error) {
	if name == "" && len(f.prefixes) == 1 {
		return 0, nil
	}
	for i, p := range f.prefixes {
		if p.name == name {
			return i, nil
		}
	}
	names := make([]string, len(f.prefixes))
	for i, p := range f.prefixes {
		names[i] = printable.Text(p.name)
	}
	served := "this page shows " + strings.Join(names, ", ")
	switch {
	case len(f.prefixes) == 1 && names[0] == "":
		served = "this page shows the locks of one prefix, and addresses do not name it"
	case name == "":
		return 0, errors.New("no prefix is given: " + served)
	}
	return 0, fmt.Errorf("the prefix %s is not shown here: %s", printable.Text(name), served)
}

// found is a lock of a prefix, by its number, or why there are no more of it.
type found struct {
	prefix int
	info   inspect.Lock
	err    error
}

// inspectors are the prefixes' inspectors, with the numbers of the prefixes, and the numbers of those that have other sources.
func (f *feed) inspectors() (all []*inspect.Inspector, of, others []int) {
	for i, p := range f.prefixes {
		if inspector, ok := p.source.(*inspect.Inspector); ok {
			all, of = append(all, inspector), append(of, i)
		} else {
			others = append(others, i)
		}
	}
	return all, of, others
}

// locks goes through the locks of all prefixes.
func (f *feed) locks(ctx context.Context) iter.Seq[found] {
	return func(yield func(found) bool) {
		all, of, others := f.inspectors()
		for one, err := range inspect.LocksOf(ctx, all...) {
			if !yield(found{of[one.Of], one.Lock, err}) {
				return
			}
		}
		for _, i := range others {
			for info, err := range f.prefixes[i].source.Locks(ctx) {
				if !yield(found{i, info, err}) {
					return
				}
			}
		}
	}
}

// deadlocks returns the deadlocks of each prefix, or why they are not known.
func (f *feed) deadlocks(ctx context.Context) ([][]observe.Deadlock, []error) {
	found, errs := make([][]observe.Deadlock, len(f.prefixes)), make([]error, len(f.prefixes))
	all, of, others := f.inspectors()
	some, failures := inspect.DeadlocksOf(ctx, all...)
	for k, i := range of {
		found[i], errs[i] = some[k], failures[k]
	}
	for _, i := range others {
		found[i], errs[i] = f.prefixes[i].source.Deadlocks(ctx)
	}
	return found, errs
}

// trouble says what has failed of which prefix; empty: nothing. What has failed everywhere in the same way is said once.
func (f *feed) trouble(errs []error) string {
	var all []string
	for i, err := range errs {
		if err == nil {
			continue
		}
		text := err.Error()
		if name := f.prefixes[i].name; name != "" && len(f.prefixes) > 1 {
			text = name + ": " + text
		}
		all = append(all, text)
	}
	const most = 3
	if more := len(all) - most; more > 0 {
		all = append(all[:most], fmt.Sprintf("and of %d more prefixes", more))
	}
	return strings.Join(all, "; ")
}
