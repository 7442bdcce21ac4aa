package main

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/user"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/redis/rueidis"
	"github.com/spf13/cobra"

	"github.com/lockregistry/lockregistry"
	"github.com/lockregistry/lockregistry/cmd/lockreg/internal/printable"
	"github.com/lockregistry/lockregistry/cmd/lockreg/internal/view"
	"github.com/lockregistry/lockregistry/inspect"
	"github.com/lockregistry/lockregistry/internal/fault"
	"github.com/lockregistry/lockregistry/internal/protocol"
	"github.com/lockregistry/lockregistry/observe"
)

// releaser is one call of lockreg release.
type releaser struct {
	*app

	prefix, path, holder, reason string
	yes                          bool
	hint                         func() string // for a path that nobody holds
}

func (a *app) releaseCommand() *cobra.Command {
	r := &releaser{app: a}
	cmd := &cobra.Command{
		Use:        "release PREFIX PATH",
		SuggestFor: []string{"unlock", "free", "delete", "rm"},
		Short:      "Free a lock whose holder is gone",
		Long:       releaseHelp,
		Example: `  lockreg release shop orders:42 --reason "web-3 was switched off"
  lockreg release shop orders:42 --yes --reason "web-3 was switched off"`,
		Args: exactly(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			inspector, closeAll, err := a.inspector(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			defer closeAll()
			r.prefix, r.path = args[0], args[1]
			r.hint = func() string { return a.nearMiss(cmd.Context(), inspector, args[0], args[1]) }
			return r.release(cmd.Context(), inspector)
		},
	}
	flags := cmd.Flags()
	flags.BoolVar(&r.yes, "yes", false, "do not ask")
	flags.StringVar(&r.reason, "reason", "", "why, for the log")
	flags.StringVar(&r.holder, "holder", "", "which holder, if there are several")
	return cmd
}

// keeper is the part of an inspector that the command release needs.
type keeper interface {
	Inspect(ctx context.Context, path string) (inspect.Lock, error)
	ForceUnlockHolder(ctx context.Context, path, holder string) error
}

func (r *releaser) release(ctx context.Context, locks keeper) error {
	looking, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	info, err := locks.Inspect(looking, r.path)
	if err != nil {
		return failed(err)
	}
	if other := r.otherLayout(info); other != "" {
		return usage("%s is a lock in another format: pass --layout %s", info.Key, other)
	}
	h, err := r.choose(info)
	if err != nil {
		return err
	}
	if err := r.ask(info, h); err != nil {
		return err
	}
	interruptible, signalled, stop := untilSignal(ctx) // the log has to tell of it all the same
	defer stop()
	freeing, cancel := context.WithTimeout(interruptible, limit)
	defer cancel()
	err = locks.ForceUnlockHolder(freeing, r.path, h.Holder)
	result := "freed"
	switch {
	case errors.Is(err, lockregistry.ErrNotOwner):
		err = exit{exitFound, fmt.Errorf("%s: that holder no longer has it: nothing was changed", info.Key)}
		result = "not freed"
	case errors.Is(err, lockregistry.ErrWrongType):
		err = failed(err)
		result = "not freed"
	case err != nil && signalled() > 0:
		err = exit{signalled(), fmt.Errorf("interrupted: it is not known whether the lock is released: %w", err)}
		result = "unknown"
	case info.Kind == observe.KindLock && refused(err):
		err = failed(err)
		result = "not freed"
	case err != nil:
		err = failed(err)
		result = "unknown"
	}
	r.logger(slog.LevelInfo).Info("release",
		"caller", caller(), "path", printable.Valid(info.Path), "key", printable.Valid(info.Key),
		"holder", printable.Valid(h.Holder), "label", view.Who(h), "reason", r.reason, "result", result)
	if err == nil {
		err = r.done(info, h)
	}
	return err
}

// refused reports whether a server has replied that it does not do what it was told. A plain lock is then as it was: its script
// fails before it removes the key. Of a read-write lock it may have removed readers' leases.
func refused(err error) bool {
	var reply *rueidis.RedisError
	return errors.As(err, &reply) && !fault.OutcomeUnknown(reply)
}

// otherLayout returns the format of a plain lock that is held, if it differs from --layout.
func (r *releaser) otherLayout(info inspect.Lock) string {
	if name := string(info.Layout); info.Kind == observe.KindLock && info.HolderCount > 0 && name != r.layout {
		return name
	}
	return ""
}

// choose finds the holder that is meant.
func (r *releaser) choose(info inspect.Lock) (inspect.Holder, error) {
	if info.HolderCount == 0 {
		text := info.Key + ": nobody holds it: nothing was changed"
		if hint := r.hint(); hint != "" {
			text += "; " + hint
		}
		return inspect.Holder{}, exit{exitFound, errors.New(text)}
	}
	if r.holder == "" && info.HolderCount == 1 {
		return info.Holders[0], nil
	}
	for _, h := range info.Holders {
		if h.Holder == r.holder {
			return h, nil
		}
	}
	if r.holder != "" {
		if info.HolderCount > len(info.Holders) { // it may be one that is not shown
			return inspect.Holder{Holder: r.holder, Since: protocol.ParseName(r.holder).Since}, nil
		}
		err := fmt.Errorf("%s: no holder %q: give the whole text under IN REDIS, such as --holder %s",
			info.Key, r.holder, quoted(info.Holders[0].Holder))
		return inspect.Holder{}, exit{exitFound, err}
	}
	if err := r.to(r.err).printLock(info); err != nil {
		return inspect.Holder{}, err
	}
	return inspect.Holder{}, usage("%d %s hold it: say which one with --holder, as shown under IN REDIS: %s",
		info.HolderCount, holders(info.Kind), r.command(info))
}

// command is one that frees a holder of several: the most overdue one, else the first.
func (r *releaser) command(info inspect.Lock) string {
	h := slices.MaxFunc(info.Holders, func(a, b inspect.Holder) int {
		return cmp.Or(cmp.Compare(a.Overdue(), b.Overdue()), cmp.Compare(a.Silent, b.Silent))
	})
	return "lockreg release " + quoted(r.prefix) + " " + quoted(r.path) + " --holder " + quoted(h.Holder)
}

// quoted is a word for a shell.
func quoted(word string) string {
	plain := func(r rune) bool {
		return r < utf8.RuneSelf && (unicode.IsLetter(r) || unicode.IsDigit(r)) || strings.ContainsRune("%+,-./:@_", r)
	}
	if word != "" && strings.TrimFunc(word, plain) == "" {
		return word
	}
	return "'" + strings.ReplaceAll(word, "'", `'\''`) + "'"
}

// to is the same with another output.
func (a *app) to(w io.Writer) *app {
	other := *a
	other.out = w
	return &other
}

// errorsTo is the same with another output for errors and the log.
func (a *app) errorsTo(w io.Writer) *app {
	other := *a
	other.err = w
	return &other
}

// ask shows the holder, and asks whether to go on.
func (r *releaser) ask(info inspect.Lock, h inspect.Holder) error {
	if r.yes {
		if alive := lastSign(h); alive != "" {
			r.logger(slog.LevelInfo).Warn("the holder may be at work", "alive", alive, "label", view.Who(h))
		}
		return nil
	}
	if !r.onTerminal() {
		return usage("cannot ask, since standard input is not a terminal: give --yes to free it without asking")
	}
	fmt.Fprintf(r.err, "%s\nis held by %s", printable.Text(info.Key), printable.Text(view.Who(h)))
	if slices.Contains(info.Holders, h) {
		fmt.Fprintf(r.err, "%s\nits lease: %s\n%s", held(h), left(h.Lease), life(h))
	}
	fmt.Fprintln(r.err)
	if text := waiting(info); text != "0" {
		fmt.Fprintf(r.err, "waiting: %s\n", printable.Text(text))
	}
	if who := next(info, h); who != "" {
		fmt.Fprintf(r.err, "next: %s\n", printable.Text(who))
	}
	fmt.Fprint(r.err, "Free it? If that holder is still at work, another one may work at the same time. [y/N] ")
	answer, err := bufio.NewReader(r.in).ReadString('\n')
	if answer = strings.ToLower(strings.TrimSpace(answer)); answer == "y" || answer == "yes" {
		return nil
	}
	if err != nil {
		fmt.Fprintln(r.err)
	}
	return exit{exitFound, errors.New("nothing was changed")}
}

// onTerminal reports whether a user can be asked.
func (r *releaser) onTerminal() bool {
	file, ok := r.in.(*os.File)
	return ok && isTerminal(file)
}

func (r *releaser) done(info inspect.Lock, h inspect.Holder) error {
	if r.json {
		return r.printJSON(map[string]any{"freed": view.OfLock(info), "holder": printable.Valid(h.Holder)})
	}
	what, was := "", "is released; it was"
	switch {
	case info.Kind == observe.KindSemaphore && h.Permits > 1:
		what, was = fmt.Sprint(h.Permits, " permits of "), "are released; they were"
	case info.Kind == observe.KindSemaphore:
		what = "a permit of "
	case h.Shared && info.HolderCount > 1:
		what = "one reader's part of "
	}
	_, err := fmt.Fprintf(r.out, "%s%s %s held by %s\n", what, printable.Text(info.Key), was, printable.Text(view.Who(h)))
	return err
}

// caller is who runs this program, for the log.
func caller() string {
	name := "unknown"
	if u, err := user.Current(); err == nil {
		name = u.Username
	}
	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}
	return name + "@" + host
}
