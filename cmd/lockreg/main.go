// Command lockreg shows and uses the locks of this library from a terminal or a script.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"

	"github.com/redis/rueidis"
	"github.com/spf13/cobra"

	"github.com/lockregistry/lockregistry"
	"github.com/lockregistry/lockregistry/cmd/lockreg/internal/printable"
	"github.com/lockregistry/lockregistry/inspect"
	"github.com/lockregistry/lockregistry/internal/connect"
	"github.com/lockregistry/lockregistry/internal/fault"
	"github.com/lockregistry/lockregistry/observe"
)

// The exit codes, besides those of a command that was run. Codes above 60 are from sysexits.h.
const (
	exitFound       = 1  // deadlocks: there is one; doctor: something is wrong; release: nothing was released
	exitUsage       = 64 // a mistake on the command line
	exitUnavailable = 69 // Redis cannot be used
	exitLost        = 70 // the lock was lost while the command ran
	exitConflict    = 75 // the lock was not obtained
)

// urlVariable has the address of Redis, unless --url is given.
const urlVariable = "REDIS_URL"

// What Sentinels are told that ask for a password. That of the URL is for servers.
const (
	sentinelUserVariable     = "LOCKREG_SENTINEL_USER"
	sentinelPasswordVariable = "LOCKREG_SENTINEL_PASSWORD"
)

// exit is an error that the program ends with in a particular way. Without err there is nothing to say.
type exit struct {
	code int
	err  error
}

func (e exit) Error() string {
	if e.err == nil {
		return ""
	}
	return e.err.Error()
}

func (e exit) Unwrap() error { return e.err }

func usage(format string, args ...any) error { return exit{exitUsage, fmt.Errorf(format, args...)} }

// app is one run of the program: its streams and connection, and the flags of all commands.
type app struct {
	in       io.Reader
	out, err io.Writer
	width    int // of tables; 0: the terminal's width

	url    string
	json   bool
	layout string
}

func main() {
	if attend(os.Args) {
		return
	}
	a := &app{in: os.Stdin, out: os.Stdout, err: os.Stderr}
	os.Exit(a.execute(os.Args[1:]))
}

// execute runs one command line, and returns the code to exit with.
func (a *app) execute(args []string) int {
	root := a.root()
	root.SetArgs(args)
	root.SetIn(a.in)
	root.SetOut(a.out)
	root.SetErr(a.err)
	return a.tell(root.ExecuteContext(context.Background()))
}

// tell prints an error, and chooses the code for it.
func (a *app) tell(err error) int {
	if err == nil {
		return 0
	}
	code := exitUsage // cobra's own errors, and bad input
	var chosen exit
	switch {
	case errors.As(err, &chosen):
		code = chosen.code
	case errors.Is(err, lockregistry.ErrUnavailable):
		code = exitUnavailable
	}
	if err.Error() != "" {
		fmt.Fprintln(a.err, "lockreg:", printable.Text(strings.ReplaceAll(err.Error(), "\n", "; ")))
	}
	return code
}

func (a *app) root() *cobra.Command {
	root := &cobra.Command{
		Use:           "lockreg",
		Short:         "Show and use the locks of lockregistry, Spring's RedisLockRegistry and Redisson",
		Long:          rootHelp,
		Args:          noCommand,
		RunE:          func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
		SilenceErrors: true,
		SilenceUsage:  true,
		Version:       version(),
	}
	root.SetFlagErrorFunc(noFlag)
	root.SetVersionTemplate("lockreg {{.Version}}\n")
	flags := root.PersistentFlags()
	flags.StringVar(&a.url, "url", "", "address of Redis (default: the environment's REDIS_URL)")
	flags.BoolVar(&a.json, "json", false, "print JSON instead of text")
	flags.StringVar(&a.layout, "layout", "spring", "format of plain locks: spring or redisson")
	_ = root.RegisterFlagCompletionFunc("layout",
		cobra.FixedCompletions([]string{"spring", "redisson"}, cobra.ShellCompDirectiveNoFileComp))
	root.AddCommand(
		a.doctorCommand(),
		a.runCommand(),
		a.lsCommand(),
		a.prefixesCommand(),
		a.showCommand(),
		a.releaseCommand(),
		a.deadlocksCommand(),
		a.serveCommand(),
		a.metricsCommand(),
		a.versionCommand(),
	)
	for _, cmd := range root.Commands() {
		if strings.Contains(cmd.Use, "PREFIX") {
			cmd.ValidArgsFunction = a.completions
		}
	}
	return root
}

// address is the URL that was given.
func (a *app) address() string {
	if a.url != "" {
		return a.url
	}
	return os.Getenv(urlVariable)
}

// connect returns a client, which the caller closes.
func (a *app) connect(ctx context.Context) (rueidis.Client, error) {
	option, err := a.option()
	if err != nil {
		return nil, err
	}
	opened, err := connect.Open(ctx, a.address(), option)
	if err != nil {
		err = exit{exitUnavailable, err}
	}
	return opened.Client, err
}

// option returns the client options from the URL and the environment.
func (a *app) option() (rueidis.ClientOption, error) {
	if a.address() == "" {
		return rueidis.ClientOption{}, usage("no address of Redis: give --url, or set %s, as in %s", urlVariable, connect.Example)
	}
	option, err := connect.Parse(a.address())
	if err != nil {
		return option, usage("%w", err)
	}
	if option.ClientName == "" {
		option.ClientName = "lockreg"
	}
	if option.Sentinel.MasterSet != "" {
		option.Sentinel.Username, option.Sentinel.Password = os.Getenv(sentinelUserVariable), os.Getenv(sentinelPasswordVariable)
	}
	return option, nil
}

// inspector returns an inspector of locks with the layout that was asked for, and a function that closes its client.
func (a *app) inspector(ctx context.Context, prefix string) (*inspect.Inspector, func(), error) {
	r, _, closeAll, err := a.registry(ctx, prefix)
	if err != nil {
		return nil, nil, err
	}
	return inspect.Of(r), closeAll, nil
}

// registry returns a registry with the layout that was asked for, its client, and a function that closes both.
func (a *app) registry(
	ctx context.Context, prefix string, opts ...lockregistry.Option,
) (*lockregistry.Registry, rueidis.Client, func(), error) {
	if _, err := parseLayout(a.layout); err != nil {
		return nil, nil, nil, err
	}
	client, err := a.connect(ctx)
	if err != nil {
		return nil, nil, nil, err
	}
	r, err := a.registryOn(client, prefix, opts...)
	if err != nil {
		client.Close()
		return nil, nil, nil, err
	}
	return r, client, func() {
		_ = r.Close()
		client.Close()
	}, nil
}

// registryOn returns a registry with the layout that was asked for, on a client of that address.
func (a *app) registryOn(client rueidis.Client, prefix string, opts ...lockregistry.Option) (*lockregistry.Registry, error) {
	layout, err := parseLayout(a.layout)
	if err != nil {
		return nil, err
	}
	option, err := a.option()
	if err != nil {
		return nil, err
	}
	all := slices.Clone(opts)
	if layout == observe.LayoutRedisson {
		all = append(all, lockregistry.WithRedissonLayout())
	}
	if option.Sentinel.MasterSet != "" {
		all = append(all, lockregistry.WithSentinels(option))
	}
	r, err := lockregistry.New(client, prefix, all...)
	if err != nil {
		return nil, exit{exitUsage, err}
	}
	return r, nil
}

func parseLayout(name string) (observe.Layout, error) {
	if l := observe.Layout(name); l == observe.LayoutSpring || l == observe.LayoutRedisson {
		return l, nil
	}
	return "", usage("--layout is %q: it is spring or redisson", name)
}

// failed chooses the exit code for an error of the library.
func failed(err error) error {
	var chosen exit
	switch {
	case err == nil || errors.As(err, &chosen):
		return err
	case errors.Is(err, lockregistry.ErrWrongType):
	case errors.Is(err, lockregistry.ErrUnavailable), errors.Is(err, context.DeadlineExceeded), replied(err),
		fault.IsDenied(err):
		if fault.IsDenied(err) {
			err = fmt.Errorf("%w; lockreg doctor says what this user is not permitted", err)
		}
		return exit{exitUnavailable, err}
	}
	return exit{exitUsage, err}
}

// replied reports whether an error is a reply of Redis, for instance about a missing permission.
func replied(err error) bool {
	var reply *rueidis.RedisError
	return errors.As(err, &reply)
}

// printJSON prints a value as indented JSON.
func (a *app) printJSON(value any) error {
	text, err := json.MarshalIndent(value, "", "  ")
	if err != nil {
		return err
	}
	_, err = a.out.Write(append(printable.JSON(text), '\n'))
	return err
}

// version is the module's version, or the commit that it was built from.
func version() string {
	info, ok := debug.ReadBuildInfo()
	if !ok || info.Main.Version == "" {
		return "(devel)"
	}
	return info.Main.Version
}

func (a *app) versionCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the version",
		Args:  cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			if a.json {
				return a.printJSON(map[string]string{"version": version(), "go": runtime.Version()})
			}
			_, err := fmt.Fprintln(a.out, "lockreg", version(), runtime.Version())
			return err
		},
	}
}

// untilSignal returns a context that ends when a user interrupts lockreg, for a command that has something to say then, and the
// exit code for that: 128 and the number of the signal; 0: there was none. A second signal ends lockreg at once.
func untilSignal(parent context.Context) (ctx context.Context, code func() int, stop func()) {
	ctx, cancel := context.WithCancel(parent)
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	var number atomic.Int32
	go func() {
		select {
		case s := <-signals:
			if known, ok := s.(syscall.Signal); ok {
				number.Store(128 + int32(known)) //nolint:gosec // there are few
			}
			cancel()
		case <-ctx.Done():
		}
		signal.Stop(signals)
	}()
	return ctx, func() int { return int(number.Load()) }, cancel
}
