//go:build unix

package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/lockregistry/lockregistry"
	"github.com/lockregistry/lockregistry/cmd/lockreg/internal/view"
	"github.com/lockregistry/lockregistry/inspect"
	"github.com/lockregistry/lockregistry/internal/seam"
)

// The codes of a shell for a command that cannot be run.
const (
	exitNotExecutable = 126
	exitNotFound      = 127
	exitSignal        = 128 // and the number of the signal
)

const (
	keyVariable   = "LOCKREG_KEY"
	tokenVariable = "LOCKREG_TOKEN" //nolint:gosec // no credential
)

// runner is one call of lockreg run.
type runner struct {
	*app

	prefix, path string
	args         []string // the command and its arguments
	program      string   // where the command is

	lease, wait, grace, once time.Duration
	noWait, quiet            bool
	shared, exclusive        bool
	permits                  int
	fencing                  bool
	passURL                  bool
	conflictCode             int

	log *slog.Logger

	struck strike // what lockreg ends by, once all else has ended
}

// key is the lock's key in Redis.
func (r *runner) key() string { return r.prefix + ":" + r.path }

func (a *app) runCommand() *cobra.Command {
	r := &runner{app: a}
	cmd := &cobra.Command{
		Use:     "run PREFIX PATH [--] COMMAND [ARGUMENT...]",
		Aliases: []string{"lock"},
		Short:   "Run a command under a lock",
		Long:    runHelp,
		Example: `  lockreg run --no-wait --conflict-code 0 shop report -- ./report --yesterday
  lockreg run --once 10m shop cleanup -- psql -f cleanup.sql
  lockreg run --wait 30s --shared shop catalogue -- ./export
  lockreg run --permits 3 shop partner -- ./fetch`,
		Args: func(cmd *cobra.Command, args []string) (err error) {
			if args, err = r.split(cmd, args); err != nil || len(args) < 3 {
				return cmp.Or(err, usage("write: lockreg %s", cmd.Use))
			}
			r.prefix, r.path, r.args = args[0], args[1], args[2:]
			return nil
		},
		RunE: func(cmd *cobra.Command, _ []string) error {
			if !cmd.Flags().Changed("fencing") { // the counter of Redisson's format stays for ever
				r.fencing = r.layout != "redisson"
			}
			if !cmd.Flags().Changed("grace") {
				r.grace = min(r.lease/6, 10*time.Second)
			}
			waits := cmd.Flags().Changed("wait")
			if err := r.check(waits, cmd.Flags().Changed("once")); err != nil {
				return err
			}
			err := r.run(cmd.Context())
			r.struck.pass()
			return err
		},
	}
	flags := cmd.Flags()
	flags.SetInterspersed(false) // the arguments behind the path belong to the command
	r.lease = 30 * time.Second
	flags.VarP((*span)(&r.wait), "wait", "w", "how long to wait for the lock; 1 means 1s (default: as long as it takes)")
	flags.BoolVarP(&r.noWait, "no-wait", "n", false, "do not wait for the lock")
	flags.Var((*span)(&r.lease), "lease", "how long the lock stays taken if this machine dies; 1s at least")
	flags.Var((*span)(&r.grace), "grace",
		"time between TERM and KILL when the lock is lost; less than half of the lease (default: a sixth of it, 10s at most)")
	flags.Var((*span)(&r.once), "once", "run the command once per period across all machines; does not wait")
	flags.BoolVar(&r.shared, "shared", false, "lock the reader of a read-write lock")
	flags.BoolVar(&r.exclusive, "exclusive", false, "lock the writer of a read-write lock")
	flags.IntVar(&r.permits, "permits", 0, "take one permit of a semaphore that has this many")
	flags.BoolVar(&r.fencing, "fencing", true, "draw a fencing token; with --layout redisson only if you name the flag")
	flags.IntVar(&r.conflictCode, "conflict-code", exitConflict, "exit code when the lock is not obtained")
	flags.BoolVar(&r.passURL, "pass-redis-url", false, "leave REDIS_URL in the command's environment")
	flags.BoolVarP(&r.quiet, "quiet", "q", false, "say nothing when the lock is not obtained")
	return cmd
}

// split finds prefix, path and command among the arguments. Flags may stand in front of each, and -- in front of the last.
func (r *runner) split(cmd *cobra.Command, args []string) (found []string, err error) {
	for len(args) > 0 && len(found) < 3 {
		dashed := args[0] == "--"
		if err := cmd.ParseFlags(args); err != nil {
			return nil, noFlag(cmd, err)
		}
		if args = cmd.Flags().Args(); len(args) == 0 {
			break
		}
		if dashed || len(found) == 2 {
			return append(found, args...), nil
		}
		found, args = append(found, args[0]), args[1:]
	}
	return found, nil
}

// leastLease is longer than a slow round trip.
const leastLease = time.Second

// check validates the flags.
func (r *runner) check(waits, once bool) error {
	var kind int
	for _, given := range []bool{r.shared, r.exclusive, once, r.permits != 0} {
		if given {
			kind++
		}
	}
	switch {
	case r.lease < leastLease:
		return usage("--lease is %v: it must be %v at least", r.lease, leastLease)
	case r.grace < 0 || r.grace >= r.lease/2:
		return usage("--grace is %v: it must be less than half of the lease, which is %v", r.grace, r.lease)
	case waits && r.noWait:
		return usage("--wait and --no-wait exclude each other")
	case waits && r.wait <= 0:
		return usage("--wait is %v: it must be positive; see --no-wait", r.wait)
	case waits && once:
		return usage("--once does not wait: leave out --wait")
	case kind > 1:
		return usage("--shared, --exclusive, --permits and --once exclude each other")
	case r.permits < 0:
		return usage("--permits is %d: it must be positive", r.permits)
	case once && r.once < time.Second:
		return usage("--once is %v: the period must be %v at least", r.once, time.Second)
	case r.conflictCode < 0 || r.conflictCode > 255:
		return usage("--conflict-code is %d: it must be from 0 to 255", r.conflictCode)
	}
	_, err := parseLayout(r.layout)
	return err
}

// run does all of it. What can be known to fail fails before the lock is taken.
func (r *runner) run(ctx context.Context) (err error) {
	if r.program, err = look(r.args[0]); err != nil {
		return err
	}
	// A log that nobody reads must not delay the signals that end the command when the lock is lost.
	said := &patientLines{to: r.err}
	r.log = r.errorsTo(said).logger(slog.LevelInfo)
	box := listen()
	defer box.stop()
	defer said.flush() // before that: a closed pipe must not end lockreg by a signal

	// What the registry says below WARN is about the server and the user, the same in each run: lockreg doctor says that.
	opts := []lockregistry.Option{
		lockregistry.WithLease(r.lease), lockregistry.WithLogger(r.logger(slog.LevelWarn)), lockregistry.WithName(r.name()),
	}
	if r.fencing {
		opts = append(opts, lockregistry.WithFencing())
	}
	waiting, cancel := box.until(ctx)
	registry, _, closeAll, err := r.registry(waiting, r.prefix, opts...)
	if err != nil {
		cancel()
		return r.signalled(waiting, err)
	}
	defer closeAll()
	hold, err := r.acquire(waiting, registry)
	cancel()
	if err = r.signalled(waiting, err); err == nil {
		if err = r.lengthen(ctx, hold); err == nil {
			return r.under(ctx, hold, box)
		}
	}
	if hold != nil { // a signal came as the lock did, or Redis has gone again
		_ = release(ctx, hold, false)
	}
	return r.notObtained(ctx, registry, err)
}

func (r *runner) acquire(ctx context.Context, registry *lockregistry.Registry) (*lockregistry.Hold, error) {
	opts := []lockregistry.AcquireOption{seam.Lockregistry.Unlogged.(lockregistry.AcquireOption)} // a command may take its time
	if r.wait > 0 {
		opts = append(opts, lockregistry.Wait(r.wait))
	}
	if r.noWait || r.once > 0 {
		opts = append(opts, lockregistry.NoWait())
	}
	locking, permits := []lockregistry.LockOption{}, make([]lockregistry.SemaphoreOption, 0, len(opts))
	for _, o := range opts {
		locking, permits = append(locking, o), append(permits, o)
	}
	if r.once > 0 { // like [lockregistry.Registry.Once], which gives no hold to ask for the rest of the lease
		locking = append(locking, lockregistry.AtLeast(r.once-r.once/10))
	}
	switch {
	case r.shared:
		return registry.ReadWrite(r.path).Reader().Acquire(ctx, locking...)
	case r.exclusive:
		return registry.ReadWrite(r.path).Writer().Acquire(ctx, locking...)
	case r.permits != 0:
		return registry.Semaphore(r.path, r.permits).Acquire(ctx, permits...)
	}
	return registry.Acquire(ctx, r.path, locking...)
}

// lengthen makes the lock last long enough for a start: a lock that another process's release has granted has a lease of a
// second at first, which would look like a failed renewal.
func (r *runner) lengthen(ctx context.Context, hold *lockregistry.Hold) error {
	if hold.Remaining() > r.lease/2 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	return hold.Renew(ctx, r.lease)
}

// notObtained chooses the exit code for an error of Acquire.
func (r *runner) notObtained(ctx context.Context, registry *lockregistry.Registry, err error) error {
	switch {
	case errors.Is(err, lockregistry.ErrUnavailable):
		return failed(err)
	case errors.Is(err, lockregistry.ErrTaken):
		if r.quiet {
			return exit{r.conflictCode, nil}
		}
		return exit{r.conflictCode, fmt.Errorf("not obtained: %s:%s%s", r.prefix, r.path, r.heldBy(ctx, registry))}
	case errors.Is(err, lockregistry.ErrLockLost):
		return exit{exitLost, err}
	case errors.Is(err, lockregistry.ErrWrongType):
		kind := "plain lock in the format of --layout " + r.layout
		if r.shared || r.exclusive {
			kind = "read-write lock"
		} else if r.permits != 0 {
			kind = "semaphore"
		}
		return usage("%s:%s is not a %s: a read-write lock needs --shared or --exclusive, a semaphore --permits, "+
			"and a plain lock the right --layout",
			r.prefix, r.path, kind)
	}
	return failed(err)
}

// heldBy returns who has the lock, if that is known soon.
func (r *runner) heldBy(ctx context.Context, registry *lockregistry.Registry) string {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	info, err := inspect.Of(registry).Inspect(ctx, r.path)
	if err != nil || len(info.Holders) == 0 {
		return ""
	}
	switch h := info.Holders[0]; {
	case h.Kept:
		return " stays taken after its release, for another " + left(h.Lease)
	case h.Shared && r.shared && info.WaiterCount > 0:
		return " has readers, and a writer that waits: it comes first"
	case info.HolderCount > 1:
		return fmt.Sprintf(" is held by %d %s", info.HolderCount, holders(info.Kind))
	default:
		return " is held by " + view.Who(h) + held(h)
	}
}

// under runs the command under the hold, and releases it.
func (r *runner) under(ctx context.Context, hold *lockregistry.Hold, box *inbox) error {
	status, lost, failed := r.supervise(ctx, hold, box)
	switch err := release(ctx, hold, failed == nil); {
	case errors.Is(err, lockregistry.ErrLockLost):
		lost = true
	case err != nil:
		r.log.Warn("the lock may stay until its lease is over", "error", err)
	}
	switch {
	case errors.Is(failed, lockregistry.ErrLockLost):
		return exit{exitLost, fmt.Errorf("%s: the lock was lost before the command started", r.key())}
	case failed != nil:
		code := exitNotExecutable
		if errors.Is(failed, fs.ErrNotExist) { // of the script's interpreter, perhaps
			code = exitNotFound
		}
		return exit{code, fmt.Errorf("cannot run %s: %w", r.program, failed)}
	case lost:
		return exit{exitLost, fmt.Errorf("%s: the lock was lost while the command ran", r.key())}
	case status.Signaled():
		r.struck.signal = status.Signal()
		return exit{exitSignal + int(status.Signal()), nil}
	case status.ExitStatus() != 0:
		return exit{status.ExitStatus(), nil}
	}
	return nil
}

// release releases the lock. If the command did not start, --once must not keep the lock: another machine is to run the job.
func release(ctx context.Context, hold *lockregistry.Hold, started bool) error {
	if !started {
		seam.Lockregistry.Unkeep(hold)
	}
	return hold.Release(ctx)
}

// environment returns the environment of the command, without the variables of an outer lockreg run, and without the secrets of
// lockreg serve.
func (r *runner) environment(hold *lockregistry.Hold) []string {
	env := slices.DeleteFunc(os.Environ(), func(s string) bool {
		name, _, _ := strings.Cut(s, "=")
		return slices.Contains([]string{keyVariable, tokenVariable, viewTokenVariable, releaseTokenVariable}, name)
	})
	if !r.passURL {
		env = withoutRedis(env)
	}
	env = append(env, keyVariable+"="+r.key())
	if token := hold.Token(); token > 0 {
		env = append(env, tokenVariable+"="+strconv.FormatUint(token, 10))
	}
	return env
}

// withoutRedis removes the address of Redis, which may contain a password, and what Sentinels are told.
func withoutRedis(env []string) []string {
	return slices.DeleteFunc(env, func(s string) bool {
		name, _, _ := strings.Cut(s, "=")
		return slices.Contains([]string{urlVariable, sentinelUserVariable, sentinelPasswordVariable}, name)
	})
}

// look finds a command as a shell does.
func look(name string) (string, error) {
	path, err := exec.LookPath(name)
	switch {
	case err == nil:
		return path, nil
	case errors.Is(err, exec.ErrNotFound), errors.Is(err, fs.ErrNotExist):
		return "", exit{exitNotFound, fmt.Errorf("%s: command not found", name)}
	}
	return "", exit{exitNotExecutable, fmt.Errorf("%s cannot be run: %w", name, err)}
}

// signalled is the error for a wait that a signal has ended, else err.
func (r *runner) signalled(ctx context.Context, err error) error {
	if s, ok := errors.AsType[signalError](context.Cause(ctx)); ok {
		r.struck.signal = s.signal
		return exit{exitSignal + int(s.signal), nil}
	}
	return err
}

// signalError is the cause of a context that a signal has ended.
type signalError struct{ signal syscall.Signal }

func (e signalError) Error() string { return "signal: " + e.signal.String() }

// name returns the name of the lock's holder: lockreg, and the command without its arguments, which may be secret.
func (r *runner) name() string {
	const most = 64
	base := strings.ToValidUTF8(filepath.Base(r.args[0]), "?")
	if len(base) > most {
		base = strings.ToValidUTF8(base[:most], "")
	}
	return "lockreg run " + base
}
