package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/lockregistry/lockregistry/cmd/lockreg/internal/printable"
	"github.com/lockregistry/lockregistry/cmd/lockreg/internal/view"
	"github.com/lockregistry/lockregistry/inspect"
	"github.com/lockregistry/lockregistry/internal/readonly"
	"github.com/lockregistry/lockregistry/internal/scan"
	"github.com/lockregistry/lockregistry/observe"
)

// limit bounds a command that looks or releases once.
const limit = 10 * time.Second

func (a *app) lsCommand() *cobra.Command {
	c := &choice{each: span(2 * time.Second)}
	cmd := &cobra.Command{
		Use:        "ls PREFIX [PATH]",
		Aliases:    []string{"list"},
		SuggestFor: []string{"status", "locks", "ps"},
		Short:      "List what is locked and what is waited for",
		Long:       lsHelp,
		Example: `  lockreg ls shop
  lockreg ls --watch --sort held --limit 20 shop
  lockreg ls --dead shop
  lockreg ls shop 'orders:*'`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 || len(args) > 2 {
				return usage("write: lockreg %s", cmd.Use)
			}
			if c.watch && a.json {
				return usage("--watch prints tables: it does not go with --json")
			}
			return c.check(strings.Join(args[1:], ""))
		},
		RunE: func(cmd *cobra.Command, args []string) error { return a.ls(cmd.Context(), args[0], c) },
	}
	flags := cmd.Flags()
	flags.BoolVarP(&c.watch, "watch", "w", false, "keep printing the list")
	flags.Var(&c.each, "interval", "time between two lists of --watch")
	flags.StringVar(&c.sort, "sort", "waiting", "what comes first: most waiting, path, held longest, or lease that ends first")
	flags.BoolVar(&c.dead, "dead", false, "show only locks with a holder or waiter that is probably dead")
	flags.IntVar(&c.limit, "limit", 0, "how many to show at most (default: all)")
	_ = cmd.RegisterFlagCompletionFunc("sort",
		cobra.FixedCompletions(slices.Sorted(maps.Keys(orders)), cobra.ShellCompDirectiveNoFileComp))
	return cmd
}

func (a *app) ls(ctx context.Context, prefix string, c *choice) error {
	if c.watch {
		return a.lsUntil(ctx, func() {}, prefix, c)
	}
	ctx, code, stop := untilSignal(ctx)
	defer stop()
	err := a.lsUntil(ctx, stop, prefix, c)
	if signalled := code(); signalled > 0 {
		return exit{signalled, errors.New("interrupted: the list is not complete")}
	}
	return err
}

// lsUntil is ls, until stop is called or ctx ends.
func (a *app) lsUntil(ctx context.Context, stop func(), prefix string, c *choice) error {
	registry, client, closeAll, err := a.registry(ctx, prefix)
	if err != nil {
		return err
	}
	defer closeAll()
	r := inspect.Of(registry)
	why := func() string {
		if c.pattern == "" && !c.dead && !c.watch { // there is no lock, and somebody waits for the answer
			return a.noSuchPrefix(ctx, prefix)
		}
		return a.noLocks(ctx, r, prefix)
	}
	find := func(ctx context.Context) func() marks {
		return knots(ctx, readonly.Bystander(client, prefix, patience))
	}
	if c.watch {
		return a.watching(ctx, c, r.Locks, find, why)
	}
	return a.lsOnce(ctx, stop, c, r, find(ctx), why)
}

// lsOnce prints the list, as it is found, or at once if it has another order, or is JSON: then nothing unless it is complete.
func (a *app) lsOnce(ctx context.Context, stop func(), c *choice, r lister, find func() marks, why func() string) error {
	p := a.progress()
	defer p.end()
	locks := c.of(r.Locks(scan.Watched(ctx, p.at)))
	if c.plain() && !a.json {
		l := &listing{app: a, progress: p, marks: find, nothing: func() string { return c.nothing() + why() }}
		return failed(l.list(locks, stop))
	}
	infos, err := gather(locks, p)
	if err != nil {
		return failed(err)
	}
	known := find()
	p.clear()
	if len(infos) == 0 {
		a.warn(why())
	}
	shown, more := c.ordered(infos)
	if a.json {
		return a.printLocksJSON(shown, known)
	}
	if len(infos) == 0 {
		_, err := fmt.Fprintln(a.out, c.nothing())
		return err
	}
	if err := a.printLocks(shown, known); err != nil {
		return err
	}
	a.more(more)
	return nil
}

func (a *app) showCommand() *cobra.Command {
	return &cobra.Command{
		Use:        "show PREFIX PATH",
		SuggestFor: []string{"inspect", "who", "get"},
		Short:      "Show who holds a lock and who waits for it",
		Long:       showHelp,
		Args:       exactly(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			r, closeAll, err := a.inspector(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			defer closeAll()
			ctx, cancel := context.WithTimeout(cmd.Context(), limit)
			defer cancel()
			info, err := r.Inspect(ctx, args[1])
			if err != nil {
				return failed(err)
			}
			show, hint := a.printLock, func(text string) { _, _ = fmt.Fprintln(a.out, text) }
			if a.json {
				show, hint = func(info inspect.Lock) error { return a.printJSON(view.OfLock(info)) }, a.warn
			}
			if err := show(info); err != nil || info.Kind != observe.KindNone {
				return err
			}
			if text := a.nearMiss(cmd.Context(), r, args[0], args[1]); text != "" {
				hint(text)
			}
			return nil
		},
	}
}

// exactly requires a number of arguments.
func exactly(n int) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) == n {
			return nil
		}
		hint := ""
		if n == 2 && len(args) == 1 { // as its key is written
			if prefix, path, ok := strings.Cut(args[0], ":"); ok && prefix != "" && path != "" {
				hint = fmt.Sprintf(": did you mean lockreg %s %s %s?", cmd.Name(), quoted(prefix), quoted(path))
			}
		}
		return usage("write: lockreg %s%s", cmd.Use, hint)
	}
}

// printLocksJSON prints an array, one by one: all at once would be in memory several times.
func (a *app) printLocksJSON(infos []inspect.Lock, known marks) error {
	type marked struct {
		view.Lock
		Deadlocked bool `json:"deadlocked"` // a call of a deadlock waits for it
	}
	out := bufio.NewWriter(a.out)
	between := "[\n  "
	for _, info := range infos {
		text, err := json.MarshalIndent(marked{view.OfLock(info), known[info.Path]}, "  ", "  ")
		if err != nil {
			return err
		}
		_, _ = out.WriteString(between) // Flush returns the error
		_, _ = out.Write(printable.JSON(text))
		between = ",\n  "
	}
	end := "\n]\n"
	if len(infos) == 0 {
		end = "[]\n"
	}
	_, _ = out.WriteString(end)
	return out.Flush()
}

func (a *app) printLocks(infos []inspect.Lock, known marks) error {
	table := a.table("PATH", "KIND", "HOLDER", "HELD FOR", "LEASE", "WAITING")
	for _, info := range infos {
		holder, since, lease := "nobody", "", ""
		if len(info.Holders) > 0 {
			first := info.Holders[0]
			holder, since, lease = view.Who(first), heldFor(first), leaseOf(first)
		}
		if info.Kind == tooLong {
			holder = "unknown"
		}
		if info.HolderCount > 1 {
			holder, since, lease = several(info), "", ""
		}
		calls := waiting(info)
		if known[info.Path] {
			calls = "deadlock: " + calls
		}
		table.row(info.Path, kindOf(info), holder, since, lease, calls)
	}
	return table.Flush()
}

func (a *app) printLock(info inspect.Lock) error {
	table := a.table()
	table.row("path", info.Path)
	table.row("key", info.Key)
	table.row("kind", kindOf(info))
	if view.Waiting(info) > 0 {
		table.row("waiting", waiting(info))
	}
	if err := table.Flush(); err != nil {
		return err
	}
	if info.HolderCount == 0 {
		fmt.Fprintln(a.out, "\nnobody holds it")
	} else {
		fmt.Fprintln(a.out)
		table = a.table("HELD BY", "", "HELD FOR", "LEASE", "TOKEN", "IN REDIS")
		table.copied = true
		for _, h := range info.Holders {
			token := "-"
			if h.Token > 0 {
				token = "≤ " + strconv.FormatUint(h.Token, 10)
			} else if !h.Shared && slices.Contains(info.TooLong, "token") {
				token = tooLong
			}
			table.row(view.Who(h), part(h.Shared, h.Permits, info.Kind), heldFor(h), lateness(h), token, h.Holder)
		}
		if err := table.Flush(); err != nil {
			return err
		}
		a.more(info.HolderCount - len(info.Holders))
		for _, h := range info.Holders {
			fmt.Fprintln(a.out, a.folded(printable.Text(view.Who(h))+": "+life(h)))
			if h.Behind > 0 {
				fmt.Fprintf(a.out, "%d more wait in %s%s\n", h.Behind, printable.Text(process(h.Label)), first(h.BehindSince))
			}
		}
	}
	if info.WaiterCount == 0 {
		_, err := fmt.Fprintln(a.out, nobodyWaits(info))
		return err
	}
	fmt.Fprintln(a.out)
	table = a.table("WAITING", "", "SINCE", "REGISTRY", "NOTE")
	for _, w := range info.Waiters {
		table.row(view.WhoWaits(w), part(w.Shared, w.Permits, info.Kind), ago(w.Since), w.Registry, note(w))
	}
	err := table.Flush()
	a.more(info.WaiterCount - len(info.Waiters))
	return err
}

// tooLong is shown instead of texts that are too long for a lock.
const tooLong = "too long"

// more says how many are not shown.
func (a *app) more(n int) {
	if n > 0 {
		fmt.Fprintln(a.out, "and", n, "more")
	}
}

// kindOf returns the kind of a lock, and its format.
func kindOf(info inspect.Lock) string {
	switch info.Kind {
	case observe.KindNone:
		return "free"
	case observe.KindReadWrite:
		return "read-write"
	case tooLong:
		return tooLong
	case observe.KindSemaphore:
		return fmt.Sprint("semaphore of ", info.Permits)
	case observe.KindLock, observe.KindReader, observe.KindWriter, observe.KindLeader: // no key is of the latter three
	}
	if info.Layout == observe.LayoutRedisson {
		return "lock (redisson)"
	}
	return "lock"
}

// holders returns the word for several holders.
func holders(kind observe.Kind) string {
	if kind == observe.KindReadWrite {
		return "readers"
	}
	return "holders"
}

// several is how many hold a lock, and how many of them are overdue.
func several(info inspect.Lock) string {
	text, gone := fmt.Sprint(info.HolderCount, " ", holders(info.Kind)), 0
	for _, h := range info.Holders {
		if view.Dead(h) {
			gone++
		}
	}
	if gone > 0 {
		text += fmt.Sprintf(", %d probably dead", gone)
	}
	return text
}

// part returns the side of a read-write lock, or the number of permits of a semaphore, of a holder or waiter.
func part(shared bool, permits int, kind observe.Kind) string {
	switch {
	case permits > 1:
		return fmt.Sprint(permits, " permits")
	case kind != observe.KindReadWrite:
		return ""
	case shared:
		return "reads"
	}
	return "writes"
}
