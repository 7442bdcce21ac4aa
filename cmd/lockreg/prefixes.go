package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/redis/rueidis"
	"github.com/spf13/cobra"

	"github.com/lockregistry/lockregistry/cmd/lockreg/internal/printable"
	"github.com/lockregistry/lockregistry/cmd/lockreg/internal/view"
	"github.com/lockregistry/lockregistry/inspect"
	"github.com/lockregistry/lockregistry/internal/fault"
	"github.com/lockregistry/lockregistry/internal/keyspace"
	"github.com/lockregistry/lockregistry/internal/presence"
	"github.com/lockregistry/lockregistry/internal/readonly"
	"github.com/lockregistry/lockregistry/internal/topology"
	"github.com/lockregistry/lockregistry/observe"
)

func (a *app) prefixesCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "prefixes",
		Short: "List the prefixes that have locks",
		Long:  prefixesHelp,
		Args:  exactly(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			client, err := a.connect(cmd.Context())
			if err != nil {
				return err
			}
			defer client.Close()
			ctx, cancel := context.WithTimeout(cmd.Context(), limit)
			defer cancel()
			found, err := prefixesOf(ctx, client)
			return a.printPrefixes(found, err)
		},
	}
}

// printPrefixes prints the prefixes that were found. If why is not nil, they may not be all, and it is returned.
func (a *app) printPrefixes(found map[string]int, why error) error {
	names := slices.Sorted(maps.Keys(found))
	why = failed(why)
	if why != nil && (a.json || len(names) == 0) { // part of it would look complete
		return why
	}
	if a.json {
		type prefix struct {
			Prefix string `json:"prefix"`
			Keys   int    `json:"keys"`
		}
		all := make([]prefix, 0, len(names))
		for _, name := range names {
			all = append(all, prefix{printable.Valid(name), found[name]})
		}
		return a.printJSON(all)
	}
	table := a.table("PREFIX", "KEYS")
	for _, name := range names {
		table.row(name, strconv.Itoa(found[name]))
	}
	if len(names) == 0 {
		table.rows = nil
		table.row("nothing is locked under any prefix")
	}
	if err := table.Flush(); err != nil || why == nil {
		return err
	}
	fmt.Fprintf(a.out, "\nnot complete: %d prefixes\n", len(names))
	return why
}

const lockValue = 160 // bytes of a value that are looked at

// prefixesOf returns the prefixes of locks in the database, and how many keys show each. With an error they may not be all.
func prefixesOf(ctx context.Context, client rueidis.Client) (map[string]int, error) {
	masters, err := mastersOf(ctx, client)
	if err != nil {
		return nil, fault.Classify(err)
	}
	found := prefixSearch{records: map[string]int{}}
	err = found.search(ctx, client, masters)
	return found.prefixes(), err
}

// prefixSearch is what a pass over all keys has found. To which prefix a lock belongs is known at its end only: a prefix may
// contain colons, and the record that says so may come after the lock.
type prefixSearch struct {
	records map[string]int // how many a prefix has
	locks   []string       // keys
}

// prefixes returns how many keys show each prefix: records, and locks under the longest prefix with a record, or else under the
// part before the first colon.
func (s *prefixSearch) prefixes() map[string]int {
	found := maps.Clone(s.records)
	for _, key := range s.locks {
		end := strings.LastIndexByte(key, ':')
		for s.records[key[:end]] == 0 && strings.Contains(key[:end], ":") {
			end = strings.LastIndexByte(key[:end], ':')
		}
		found[key[:end]]++
	}
	return found
}

// search goes through the keys of some servers.
func (s *prefixSearch) search(ctx context.Context, client rueidis.Client, masters map[string]rueidis.Client) (unread error) {
	answered := false
	for _, node := range masters {
		send := func(words ...string) rueidis.RedisResult { return node.Do(ctx, node.B().Arbitrary(words...).Build()) }
		for cursor := "0"; ; {
			step, err := keyspace.Step(send, cursor, "*")
			switch {
			case answered && errors.Is(err, context.DeadlineExceeded): // it is not Redis that does not answer
				return fmt.Errorf("the keys were not all read in time: %w", err)
			case err != nil:
				return fault.Classify(err)
			}
			answered = true
			unread = cmp.Or(unread, s.add(ctx, client, step.Keys))
			if cursor = step.Cursor; cursor == "0" {
				break
			}
		}
	}
	return unread
}

// mastersOf returns the servers that have the keys of the database, by address: on a cluster without the replicas, which have
// them once more.
func mastersOf(ctx context.Context, client rueidis.Client) (map[string]rueidis.Client, error) {
	nodes := client.Nodes()
	if client.Mode() != rueidis.ClientModeCluster {
		return nodes, nil
	}
	var slots topology.Map
	var err error
	for address, node := range nodes {
		ctx, cancel := context.WithTimeout(ctx, patience/2) // one that is silent leaves time to ask another
		slots, err = topology.Ask(ctx, node, address)
		cancel()
		if err == nil && len(slots) > 0 {
			break
		}
	}
	if err == nil && len(slots) == 0 {
		err = fault.AsUnavailable(errors.New("no server of the cluster names its masters"))
	}
	masters := map[string]rueidis.Client{}
	for _, part := range slots {
		node := nodes[part.Address]
		if node == nil {
			return nil, fault.AsUnavailable(fmt.Errorf("the client does not know the master %s yet", part.Address))
		}
		masters[part.Address] = node
	}
	return masters, err
}

// add looks at some keys. It returns why it could not read a value.
func (s *prefixSearch) add(ctx context.Context, client rueidis.Client, keys []string) (unread error) {
	var maybe []string
	var commands rueidis.Commands
	for _, key := range keys {
		if presence.IsList(key) { // it is there for an hour after the last record
			continue
		}
		if prefix, _, ok := strings.Cut(key, ":{"); ok && strings.HasSuffix(key, "}:registry") {
			s.records[prefix]++
		} else if _, _, ok := strings.Cut(key, ":"); ok && !strings.HasSuffix(key, ":waiters") && !strings.HasSuffix(key, ":fencing") {
			maybe = append(maybe, key)
			commands = append(commands, client.B().Getrange().Key(key).Start(0).End(lockValue).Build())
		}
	}
	if len(commands) == 0 {
		return nil
	}
	for i, reply := range client.DoMulti(ctx, commands...) {
		value, err := reply.ToString()
		if err != nil && unread == nil && !fault.IsWrongType(err) { // what is no text is no lock in Spring's format
			unread = fmt.Errorf("not all values can be read: %w", fault.Classify(err))
		}
		if err == nil && isLockValue(value) {
			s.locks = append(s.locks, maybe[i])
		}
	}
	return unread
}

// isLockValue reports whether a value may be from Spring or this library: a UUID, or a text that ends with one and a number.
func isLockValue(value string) bool {
	value = strings.TrimSuffix(strings.TrimSuffix(value, "+"), ":atleast")
	const length = 36
	if len(value) == length {
		return uuid.Validate(value) == nil
	}
	at := strings.LastIndexByte(value, ':')
	if at < length || uuid.Validate(value[at-length:at]) != nil {
		return false
	}
	_, err := strconv.ParseUint(value[at+1:], 10, 64)
	return err == nil
}

// noSuchPrefix returns a message that a prefix has no key, with a similar prefix, or one that it begins with, as a key does. It
// is empty if the prefix has one.
func (a *app) noSuchPrefix(ctx context.Context, prefix string) string {
	client, err := a.connect(ctx)
	if err != nil {
		return ""
	}
	defer client.Close()
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	found, err := prefixesOf(ctx, client)
	if err != nil && !fault.IsDenied(err) || found[prefix] > 0 { // records show prefixes also to a user who may not read all values
		return ""
	}
	names := slices.Sorted(maps.Keys(found))
	hint := didYouMean(prefix, names)
	for _, name := range names {
		if path, ok := strings.CutPrefix(prefix, name+":"); ok && path != "" {
			hint = ": did you mean the prefix " + printable.Text(name) + " and the path " + printable.Text(path) + "?"
		}
	}
	return "; no lock has the prefix " + strconv.Quote(prefix) + hint
}

// nearMiss returns a hint for a path at which there is nothing: calls that wait for it all the same, a similar one that is
// locked, or a similar prefix. It is empty if there is none, or if it would take long to find.
func (a *app) nearMiss(ctx context.Context, r lister, prefix, path string) string {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	if found := a.recorded(ctx, prefix, path); found != "" {
		return found
	}
	var names []string
	for info, err := range r.Locks(ctx) {
		if err != nil {
			return ""
		}
		if info.Path == path { // it is waited for
			return ""
		}
		names = append(names, info.Path)
	}
	if len(names) == 0 {
		return strings.TrimPrefix(a.noSuchPrefix(ctx, prefix), "; ")
	}
	slices.Sort(names)
	hint := pathLike(path, names)
	if rest, ok := strings.CutPrefix(path, prefix+":"); ok && slices.Contains(names, rest) { // as its key is written
		hint = ": did you mean " + printable.Text(rest) + "?"
	}
	if hint != "" {
		return "no lock has the path " + strconv.Quote(path) + hint
	}
	return ""
}

// noLocks is noSuchPrefix for a prefix with no lock. It is empty if it would take long to find.
func (a *app) noLocks(ctx context.Context, r lister, prefix string) string {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	next, stop := iter.Pull2(r.Locks(ctx))
	defer stop()
	if _, err, some := next(); some || err != nil {
		return ""
	}
	return a.noSuchPrefix(ctx, prefix)
}

// lister is the part of an inspector that lists locks.
type lister interface {
	Locks(ctx context.Context) iter.Seq2[inspect.Lock, error]
}

// warn prints what noLocks says, where the output is for something else.
func (a *app) warn(hint string) {
	if hint != "" {
		fmt.Fprintln(a.err, "lockreg:", strings.TrimPrefix(hint, "; "))
	}
}

// patience is how long a hint or a completion is looked for.
const patience = 2 * time.Second

// completions returns the possible arguments of a command: prefixes, then paths.
func (a *app) completions(cmd *cobra.Command, args []string, begun string) ([]string, cobra.ShellCompDirective) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	var names []string
	switch {
	case len(args) == 0:
		client, err := a.connect(ctx)
		if err != nil {
			break
		}
		defer client.Close()
		found, _ := prefixesOf(ctx, client)
		names = slices.Sorted(maps.Keys(found))
	case len(args) == 1 && strings.Contains(cmd.Use, "PATH"):
		r, closeAll, err := a.inspector(ctx, args[0])
		if err != nil {
			break
		}
		defer closeAll()
		for info, err := range r.Locks(ctx) {
			if err != nil {
				break
			}
			names = append(names, info.Path)
		}
		slices.Sort(names)
	}
	names = slices.DeleteFunc(names, func(name string) bool {
		return !strings.HasPrefix(name, begun) || printable.Text(name) != name
	})
	return names, cobra.ShellCompDirectiveNoFileComp
}

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
