package kit

import (
	"context"
	"crypto/sha1"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry"
	"github.com/lockregistry/lockregistry/internal/fault"
	"github.com/lockregistry/lockregistry/internal/netfault"
	"github.com/lockregistry/lockregistry/internal/protocol"
)

// What happens when the server or the network does not do its part.

// Loading is an error that goes away by itself.
const Loading = "LOADING Redis is loading the dataset in memory"

// What is left behind in Redis is removed, however many calls have failed, and at the price of one.

// OwnConnections makes a client use a connection of its own for each command, so that none waits for another.
func OwnConnections(o *rueidis.ClientOption) { o.DisableAutoPipelining = true }

// Pipelining makes a client read replies while it writes commands, which many in one pipeline need on a connection without
// a buffer.
func Pipelining(o *rueidis.ClientOption) { o.AlwaysPipelining = true }

// Permissions.

// User makes a user with these rules and returns a client that is one.
func (w *World) User(rules ...string) rueidis.Client {
	w.Helper()
	name := fmt.Sprintf("user%d", len(strings.Fields(w.Do("ACL", "USERS"))))
	w.Do(append([]string{"ACL", "SETUSER", name, "on", ">secret", "~*", "&*", "+@all"}, rules...)...)
	return w.ClientWith(w.Dial, func(o *rueidis.ClientOption) {
		o.Username, o.Password = name, "secret"
		o.DisableCache = slices.Contains(rules, "-client") // rueidis needs CLIENT for its cache
	})
}

// ChecksRights tells whether the server says what a user may do without doing it, as from version 7.0 on.
func (w *World) ChecksRights() bool {
	w.Helper()
	return w.Do("EVAL", "return redis.acl_check_cmd and 1 or 0", "0") == "1"
}

// How long calls take while the server says nothing, and what becomes of their keys.

// Stall makes the server execute and answer nothing until thaw: then it goes on with what it was sent meanwhile.
func (f *Flaky) Stall() (thaw func()) {
	until := make(chan struct{})
	f.Fate(Anything, HeldUp(until))
	thaw = sync.OnceFunc(func() { close(until) })
	f.W.Cleanup(thaw)
	return thaw
}

// Known makes everything known about the server that a registry asks for once, and its scripts to it.
func (w *World) Known(r *lockregistry.Registry) {
	w.Helper()
	l := r.Obtain("known")
	for range 2 {
		w.Lock(l)
		require.NoError(w, w.Answer(func() error { return l.Renew(w.Context(), time.Minute) }))
		w.Unlock(l)
	}
}

// Unavailable checks that an error says that Redis could not be asked, and nothing else.
func (w *World) Unavailable(err error, op string) {
	w.Helper()
	w.Fails(err, lockregistry.ErrUnavailable, op, TheKey)
	for _, other := range []error{
		context.Canceled, context.DeadlineExceeded, lockregistry.ErrTaken, lockregistry.ErrLockLost, lockregistry.ErrNotOwner,
	} {
		require.NotErrorIs(w, err, other)
	}
}

// TookLong reports whether a call has failed because its answer took too long. On a real server that happens to any call when the
// machine is busy: what only prepares a test tries again.
func TookLong(err error) bool {
	is := func(kind error) bool { return errors.Is(err, kind) }
	return slices.ContainsFunc([]error{fault.NoAnswer, fault.Late, fault.NotSent, fault.Unproven}, is)
}

// UnlessLate returns the error of a call that releases, on a real server: nil in place of one that says only that the answer took
// too long. The key is removed all the same, a moment later.
func UnlessLate(err error) error {
	if TookLong(err) {
		return nil
	}
	return err
}

// UnlessBusy is UnlessLate for calls that take a lock from each other all the time, see LeaseOver.
func UnlessBusy(err error) error {
	if LeaseOver(err) {
		return nil
	}
	return UnlessLate(err)
}

// LeaseOver reports whether a hold was lost because it was not renewed in time. That happens when the machine is so busy that a
// section takes longer than the second for which a release grants the lock to a waiter, and its first renewal, too.
func LeaseOver(err error) bool {
	return errors.Is(err, fault.LeaseOver.Err()) || errors.Is(err, fault.RenewedTooLate.Err())
}

// What calls say when Redis cannot be asked, and when they try again.

// LockingCalls are the calls that lock TheKey.
var LockingCalls = map[string]func(context.Context, *lockregistry.Registry, ...lockregistry.LockOption) error{
	"lock": func(ctx context.Context, r *lockregistry.Registry, opts ...lockregistry.LockOption) error {
		return r.Obtain("42").Lock(ctx, opts...)
	},
	"trylock": func(ctx context.Context, r *lockregistry.Registry, opts ...lockregistry.LockOption) error {
		ok, err := r.Obtain("42").TryLock(ctx, opts...)
		if ok != (err == nil) {
			return errors.New("false without an error")
		}
		return err
	},
	"do": func(ctx context.Context, r *lockregistry.Registry, opts ...lockregistry.LockOption) error {
		inside := false
		err := r.Do(ctx, "42", func(context.Context) error {
			inside = true
			return nil
		}, opts...)
		if inside != (err == nil) {
			return errors.Join(err, errors.New("fn ran, or did not"))
		}
		return err
	},
}

// DeafDialer is a dialer whose connections that listen can be made to hear nothing any more.
type DeafDialer struct {
	W      *World
	Ears   atomic.Int32 // connections that listen
	deaf   atomic.Int32 // so many of them, the first ones, hear nothing
	Missed atomic.Int32 // how often they would have heard something
}

// Dial makes a connection.
func (d *DeafDialer) Dial(ctx context.Context) (net.Conn, error) {
	conn, err := d.W.Dial(ctx)
	return &deafConn{Conn: conn, deaf: d}, err
}

// Deafen makes those deaf that listen now.
func (d *DeafDialer) Deafen() { d.deaf.Store(d.Ears.Load()) }

type deafConn struct {
	net.Conn
	deaf *DeafDialer
	ear  atomic.Int32 // its number among those that listen; 0 when it does not
}

// Wrapper is a client that is not rueidis's own.
type Wrapper struct{ rueidis.Client }

func (c *deafConn) Write(p []byte) (int, error) {
	text := strings.ToUpper(string(p))
	if c.ear.Load() == 0 && (strings.Contains(text, "\r\nSUBSCRIBE\r\n") || strings.Contains(text, "\r\nPTTL\r\n")) {
		c.ear.Store(c.deaf.Ears.Add(1))
	}
	return c.Conn.Write(p)
}

func (c *deafConn) Read(p []byte) (int, error) {
	for {
		n, err := c.Conn.Read(p)
		if ear := c.ear.Load(); err != nil || ear == 0 || ear > c.deaf.deaf.Load() {
			return n, err
		}
		c.deaf.Missed.Add(1)
	}
}

// RefusedAfter is one that a server answers so only when until is closed.
func RefusedAfter(until <-chan struct{}, text string) Fate {
	what := Refused(text)
	what.Held = netfault.HoldUntil(until)
	return what
}

// HeldUp is the fate of commands that are delivered only when until is closed.
func HeldUp(until <-chan struct{}) Fate { return Fate{Held: netfault.HoldUntil(until)} }

// SlowReply is the fate of a command whose reply takes this long.
func SlowReply(d time.Duration) Fate { return Fate{Linger: d} }

// Flaky is a network to the server of a world, without faults as yet.
func (w *World) Flaky() *Flaky {
	f := &Flaky{netfault.New(w.Dial, nameOf), w}
	w.Cleanup(f.Close)
	return f
}

// Registry is one whose client talks through f.
func (f *Flaky) Registry(opts ...lockregistry.Option) *lockregistry.Registry {
	f.W.Helper()
	return f.W.RegistryOn(f.Client(), opts...)
}

// Client is one that talks through f.
func (f *Flaky) Client(change ...func(*rueidis.ClientOption)) rueidis.Client {
	f.W.Helper()
	return f.W.ClientWith(f.Dial, change...)
}

// Fates gives the next commands of a name these fates, one each.
func (f *Flaky) Fates(name string, fates ...Fate) { f.Next(netfault.Match{Name: name}, fates...) }

// Fate gives every command of a name a fate from now on.
func (f *Flaky) Fate(name string, what Fate) { f.All(netfault.Match{Name: name}, what) }

// Sent returns the commands of a name that were sent so far.
func (f *Flaky) Sent(name string) []Command { return f.Seen(netfault.Match{Name: name}) }

// Count is how many commands of a name were sent so far.
func (f *Flaky) Count(name string) int { return len(f.Sent(name)) }

// LockCommands returns how many commands about locks were sent so far.
func (f *Flaky) LockCommands() int { return f.Count("obtain") + f.Count("renew") + f.Count("release") }

// Reconnect makes everything work again, and breaks all connections: those that are mute would stay so.
func (f *Flaky) Reconnect() {
	f.W.Helper()
	f.Down()
	f.W.Settle() // clients have noticed
	f.Forget()
}

// ReconnectNow breaks all connections, and lets everybody connect again.
func (f *Flaky) ReconnectNow() {
	f.Down()
	f.Forget()
}

// Arrives executes a command, now: one that was lost may still be on its way somewhere.
func (w *World) Arrives(c Command) string {
	w.Helper()
	args := c.Args
	if body := scripts()[args[1]]; strings.EqualFold(args[0], "EVALSHA") && body != "" {
		args = append([]string{"EVAL", body}, args[2:]...)
	}
	return w.Do(args...)
}

// scripts are the bodies of this library's scripts by their digests.
var scripts = sync.OnceValue(func() map[string]string {
	bodies := map[string]string{}
	for _, body := range Sources() {
		bodies[Digest(body)] = body
	}
	return bodies
})

// Sources are the bodies of this library's scripts by their names.
var Sources = sync.OnceValue(func() map[string]string {
	bodies := map[string]string{}
	for name, script := range protocol.Scripts() {
		bodies[name] = script.Source
	}
	return bodies
})

// Digest is what EVALSHA calls a script.
func Digest(body string) string {
	sum := sha1.Sum([]byte(body))
	return hex.EncodeToString(sum[:])
}

// nameOf is what a command does to a lock, as its script is called without the layout: "write_obtain".
func nameOf(args []string) string {
	switch {
	case strings.EqualFold(args[0], "SET") && strings.HasSuffix(args[1], ":registry"):
		return record
	case strings.EqualFold(args[0], "HELLO") && len(args) == 1:
		return "bare HELLO"
	default:
		return scriptOf()(args)
	}
}

var scriptOf = sync.OnceValue(func() func(args []string) string {
	names := map[string]string{}
	for script, body := range Sources() {
		_, names[body], _ = strings.Cut(script, "_")
	}
	return netfault.Named(names)
})

// Flaky is the network between a client and the server of a world.
type Flaky struct {
	*netfault.Proxy
	W *World
}

// What package netfault has, for tests that name its types.
type (
	// Fate is what becomes of a command.
	Fate = netfault.Fate
	// Command is a command that was sent.
	Command = netfault.Command
	// Link is a connection.
	Link = netfault.Link
)

// Names of commands that are not what a script does.
const (
	// Anything stands for every command that has no fate of its own.
	Anything = ""
	// Grant is the name of a message that tells a waiting call of a grant.
	Grant = "grant"
	// record is the name of a command that writes the record of a registry, about no lock.
	record = "record"
)

// Fates that need no details.
var (
	// Delivered is no fault.
	Delivered = Fate{}
	// Cut breaks the connection before the command reaches the server, CutAfter once the server has executed it.
	Cut      = Fate{Cut: netfault.CutRequest(0)}
	CutAfter = Fate{Cut: netfault.CutReply(0)}
	// Silence is a server that hangs.
	Silence = Fate{Lost: true, Mute: true}
)

// Refused is the fate of a command that a server answers with an error.
func Refused(text string) Fate { return Fate{Lost: true, Reply: "-" + text + "\r\n"} }

// A server that never replies.

// OneConnection makes a client use the same connection for all commands but those that block or subscribe.
func OneConnection(o *rueidis.ClientOption) { o.PipelineMultiplex = -1 }
