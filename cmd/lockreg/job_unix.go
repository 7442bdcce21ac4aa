//go:build unix

package main

import (
	"context"
	"errors"
	"os"
	"os/signal"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lockregistry/lockregistry"
)

// passed are the signals that go to the command's group, and that end lockreg while it waits for the lock.
var passed = []os.Signal{
	unix.SIGINT, unix.SIGTERM, unix.SIGHUP, unix.SIGQUIT, unix.SIGUSR1, unix.SIGUSR2,
}

// inbox is where signals come in.
type inbox struct {
	signals  chan os.Signal
	children chan os.Signal // one is enough: it says that there may be something to wait for
	pipes    chan os.Signal
}

// listen begins to catch signals, except those that were ignored when lockreg was started, as by nohup.
func listen() *inbox {
	b := &inbox{make(chan os.Signal, 64), make(chan os.Signal, 1), make(chan os.Signal, 1)}
	for _, s := range passed {
		if !signal.Ignored(s) {
			signal.Notify(b.signals, s)
		}
	}
	signal.Notify(b.children, unix.SIGCHLD)
	signal.Notify(b.pipes, unix.SIGPIPE) // otherwise writing a log line to a closed pipe would end lockreg, not the command
	return b
}

// more catches the signals that matter only once there is a command.
func (b *inbox) more() { signal.Notify(b.signals, unix.SIGTSTP, unix.SIGCONT) }

func (b *inbox) stop() {
	signal.Stop(b.signals)
	signal.Stop(b.children)
	signal.Stop(b.pipes)
}

// until is a context that the first signal ends, with a signalError. The function ends the looking out, and returns when nothing
// takes signals any more.
func (b *inbox) until(ctx context.Context) (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	done, gone := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(gone)
		select {
		case s := <-b.signals:
			cancel(signalError{s.(syscall.Signal)})
		case <-done:
		}
	}()
	return ctx, func() {
		close(done)
		<-gone
	}
}

// job is a command in its own process group, from its start until no process of the group is left:
//
//	runs ──command ends──▶ empties ──last process ends──▶ over
//
// and beside that its right to work:
//
//	granted ──lease nearly over──▶ warned ──lease over──▶ killed
//	   ├──────────lost──────────▶ warned ──grace over──▶ killed
//	   └──lost, and lockreg stood still meanwhile, for longer than the lease──▶ killed
//
// Warned has got TERM, killed has got KILL.
type job struct {
	runner   *runner
	hold     *lockregistry.Hold
	box      *inbox
	guard    *guard
	pid      int // of the command, and of its group
	terminal terminal

	ended  bool // the command has
	stands bool // the command is stopped
	begs   bool // the command waits for the terminal
	status syscall.WaitStatus

	pausing bool      // the group was told to stop, as lockreg was
	until   time.Time // the lock is certain, or was renewed since
	lost    bool      // the lock is
	warned  bool
	told    bool // that the lock is kept for processes that the command has left behind
}

// looking is how often to check what no signal reports: whether the group is empty, whether lockreg has the terminal.
const looking = 100 * time.Millisecond

// looks is a ticker that runs while there is something to check.
type looks struct {
	*time.Ticker
	runs bool
}

func newLooks() *looks { return &looks{time.NewTicker(looking), true} }

func (l *looks) when(needed bool) {
	switch {
	case needed == l.runs:
	case needed:
		l.Reset(looking)
	default:
		l.Stop()
	}
	l.runs = needed
}

// supervise runs the command until its group has ended. Failed says that it could not be started.
func (r *runner) supervise(
	ctx context.Context, hold *lockregistry.Hold, box *inbox,
) (status syscall.WaitStatus, lost bool, failed error) {
	adoptOrphans()
	guard, err := startGuard()
	if err != nil {
		return 0, false, err
	}
	box.more()

	j := &job{runner: r, hold: hold, box: box, guard: guard, terminal: findTerminal()}
	defer func() { j.guard.dismiss() }() // the guard at that time
	defer func() {
		r.struck.group = j.terminal.given
		j.terminal.take()
	}()
	if err := j.start(); err != nil {
		return 0, false, err
	}
	j.until = time.Now().Add(j.remaining())
	lost = j.watch(hold.Context(ctx).Done())
	return j.status, lost, nil
}

// watch returns when the group has ended, and reports whether the lock was lost before.
func (j *job) watch(lostNow <-chan struct{}) (lost bool) {
	r := j.runner
	alarm := time.NewTimer(0)
	defer alarm.Stop()
	look := newLooks()
	defer look.Stop()
	var kill <-chan time.Time
	for !j.over() {
		look.when(j.ended || j.begs || j.guard.gone)
		select {
		case <-j.box.children:
			j.reap()
		case <-look.C:
			j.leftBehind()
			j.lend()
			j.guardAgain()
		case s := <-j.box.signals:
			j.pass(s.(syscall.Signal))
		case <-alarm.C:
			left := j.remaining()
			if left > 0 {
				j.until = time.Now().Add(left)
			}
			if left > r.grace {
				alarm.Reset(left - r.grace)
			} else if left > 0 {
				j.warn("the lock cannot be renewed in time")
			}
		case <-lostNow:
			lostNow = nil
			j.lost = true
			if j.warned || r.grace == 0 || time.Now().After(j.until) {
				j.kill()
				break
			}
			j.warn("the lock is lost")
			kill = time.After(r.grace)
		case <-kill:
			j.kill()
		}
	}
	return j.lost || j.warned
}

// start starts the command. Its group gets the terminal if lockreg's group has it, unless lockreg is part of a pipeline. The
// guard knows the group before the command runs: otherwise lockreg could be killed in between, and leave a group without a
// guard.
func (j *job) start() error {
	if j.remaining() == 0 { // lockreg was stopped since it got the lock
		return lockregistry.ErrLockLost
	}
	attr := &syscall.SysProcAttr{Setpgid: true}
	endWithParent(attr)
	if j.terminal.mine() && hasTerminal(1) {
		attr.Foreground, attr.Ctty = true, j.terminal.fd
		j.terminal.given = true
	}
	s, err := prepareCommand(j.runner.program, j.runner.args, j.runner.environment(j.hold), attr)
	// Otherwise the kernel would stop lockreg, without the command, when it takes the terminal back, or when it writes to a
	// terminal after stty tostop. The command, which has started already, does not inherit it.
	signal.Ignore(unix.SIGTTOU)
	if err != nil {
		return err
	}
	j.guard.watch(s.pid)
	if j.remaining() == 0 {
		s.abandon()
		return lockregistry.ErrLockLost
	}
	if err := s.proceed(); err != nil {
		return err
	}
	j.pid = s.pid
	return nil
}

// guardAgain replaces a guard that is gone. If it cannot, it says so once, and tries again at the next look.
func (j *job) guardAgain() {
	if !j.guard.gone {
		return
	}
	next, err := startGuard()
	if err != nil {
		if !j.guard.told {
			j.guard.told = true
			j.runner.log.Error("the command has no guard: it would keep running if lockreg were killed", "error", err)
		}
		return
	}
	next.watch(j.pid)
	j.guard.dismiss()
	j.guard = next
	j.runner.log.Warn("the guard of the command was gone: started another", "key", j.runner.key())
}

// over reports whether no process of the group is left.
func (j *job) over() bool {
	return j.ended && errors.Is(unix.Kill(-j.pid, 0), unix.ESRCH)
}

// leftBehind says why lockreg does not end.
func (j *job) leftBehind() {
	if !j.ended || j.told || j.over() {
		return
	}
	j.told = true
	j.runner.log.Info("the command has ended but left processes behind: the lock is kept until they end, too",
		"key", j.runner.key(), "group", j.pid)
}

// remaining returns for how long the lock is certain.
func (j *job) remaining() time.Duration { return j.hold.Remaining() }

// reap handles children that have ended or stopped: the command, and orphans that the kernel has given to lockreg.
func (j *job) reap() {
	for {
		var status syscall.WaitStatus
		pid, err := syscall.Wait4(-1, &status, syscall.WNOHANG|syscall.WUNTRACED|syscall.WCONTINUED, nil)
		switch {
		case errors.Is(err, unix.EINTR):
		case err != nil || pid <= 0:
			return
		case pid == j.guard.pid && pid != 0:
			if j.guard.changed(status) && j.guard.age() >= looking { // a guard that ended sooner is replaced at the next look
				j.guardAgain()
			}
		case pid != j.pid || j.ended:
		case status.Continued():
			j.stands, j.begs = false, false
		case status.Stopped():
			j.stands = true
			j.stopped(status.StopSignal())
		default:
			j.ended, j.status = true, status
		}
	}
}

// tell sends a signal to the whole group.
func (j *job) tell(s syscall.Signal) {
	if err := unix.Kill(-j.pid, s); err != nil && !errors.Is(err, unix.ESRCH) {
		j.runner.log.Error("cannot pass a signal to the command", "signal", s.String(), "error", err)
	}
}

// pass hands a signal on.
func (j *job) pass(s syscall.Signal) {
	switch s {
	case unix.SIGCONT: // lockreg, and so the command, is continued
		j.resume()
	case unix.SIGTSTP:
		j.pausing = true
		j.tell(s)
		if j.ended || j.stands { // else when it has stopped
			j.pause()
		}
	default:
		j.tell(s)
		if s != unix.SIGUSR1 && s != unix.SIGUSR2 { // it is to end, and a process that is stopped cannot
			j.resume()
		}
	}
}

// stopped handles a command that was stopped. If the terminal's user has stopped it, lockreg stops, too, so that the shell goes
// on. Otherwise the lock is kept, also while the command waits in the background for the terminal.
func (j *job) stopped(by syscall.Signal) {
	if j.begs = by == unix.SIGTTIN || by == unix.SIGTTOU; j.begs {
		j.lend()
	}
	if j.pausing || j.terminal.given && by == unix.SIGTSTP {
		j.pause()
	}
}

// lend gives the terminal to a command that needs it, if lockreg has it.
func (j *job) lend() {
	if j.begs && !j.pausing && j.terminal.mine() {
		j.terminal.give(j.pid)
		j.resume()
	}
}

// pause stops lockreg until it is told to go on. Nothing renews the lock meanwhile, so no process of the group may work. Where
// nobody could tell it, as under systemd or with ssh -t, nothing stops.
func (j *job) pause() {
	j.pausing = false
	if !watched() {
		j.resume()
		return
	}
	j.tell(unix.SIGSTOP)
	had := j.terminal.given
	j.terminal.take()
	stopMyself()
	ctx, cancel := context.WithTimeout(context.Background(), j.runner.grace+time.Second)
	_ = j.hold.Renew(ctx, j.runner.lease) // or the lock is lost, which remaining tells
	cancel()
	if had && j.terminal.mine() {
		j.terminal.give(j.pid)
	}
	j.resume()
}

// watched reports whether a shell with job control has started lockreg: its parent is in the same session and in another group.
// Without one the kernel would not let Ctrl-Z stop anything, either.
func watched() bool {
	parent := unix.Getppid()
	if parent == 0 { // it is in another namespace
		return false
	}
	session, err := unix.Getsid(0)
	if err != nil {
		return false
	}
	theirs, err := unix.Getsid(parent)
	if err != nil || theirs != session {
		return false
	}
	group, err := unix.Getpgid(parent)
	return err == nil && group != unix.Getpgrp()
}

// resume lets the group go on if it may still work.
func (j *job) resume() {
	if j.remaining() > 0 {
		j.tell(unix.SIGCONT)
	}
}

// warn asks the group to end.
func (j *job) warn(why string) {
	if j.warned {
		return
	}
	j.warned = true
	j.runner.log.Warn(why+": the command gets TERM", "key", j.runner.key(), "remaining", j.remaining())
	j.tell(unix.SIGTERM)
	j.tell(unix.SIGCONT) // a process that is stopped cannot end
}

func (j *job) kill() {
	j.runner.log.Warn("the command gets KILL", "key", j.runner.key())
	j.tell(unix.SIGKILL)
}

// terminal is the terminal that lockreg was started from. Its user's keys send signals to one group, and only that group may
// read from it.
type terminal struct {
	fd    int // -1: no terminal
	given bool
}

func findTerminal() terminal {
	if hasTerminal(0) {
		return terminal{fd: 0}
	}
	return terminal{fd: -1}
}

// hasTerminal reports whether a file descriptor is the terminal of lockreg's session.
func hasTerminal(fd int) bool {
	_, err := unix.IoctlGetInt(fd, unix.TIOCGPGRP)
	return err == nil
}

// mine reports whether lockreg's own group has the terminal.
func (t *terminal) mine() bool {
	if t.fd < 0 {
		return false
	}
	group, err := unix.IoctlGetInt(t.fd, unix.TIOCGPGRP)
	return err == nil && group == unix.Getpgrp()
}

// give gives the terminal to a group. Lockreg's group must have it.
func (t *terminal) give(group int) {
	t.given = unix.IoctlSetPointerInt(t.fd, unix.TIOCSPGRP, group) == nil
}

// take takes the terminal back from the command's group.
func (t *terminal) take() {
	if !t.given {
		return
	}
	t.given = false
	_ = unix.IoctlSetPointerInt(t.fd, unix.TIOCSPGRP, unix.Getpgrp())
}
