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

// The server or the network fails to do its part.

// Loading is an error that passes by itself.
const Loading = "LOADING Redis is loading the dataset in memory"

// Apart makes a client use a connection of its own for each command, so that none waits for another.
func Apart(client rueidis.Client) rueidis.Client { return apart{client} }

type apart struct{ rueidis.Client }

func (c apart) Do(ctx context.Context, command rueidis.Completed) rueidis.RedisResult {
	return c.DoMulti(ctx, command)[0]
}

func (c apart) DoMulti(ctx context.Context, commands ...rueidis.Completed) []rueidis.RedisResult {
	replied := make(chan []rueidis.RedisResult, 1)
	go func() {
		over, giveBack := c.Dedicate()
		defer giveBack()
		replied <- over.DoMulti(context.Background(), commands...) // also after the end of ctx
	}()
	select {
	case results := <-replied:
		return results
	case <-ctx.Done():
		return slices.Repeat([]rueidis.RedisResult{rueidis.NewErrorResult(ctx.Err())}, len(commands))
	}
}

// Pipelining makes a client read replies while it writes commands. A connection without a buffer needs that when one pipeline
// has many commands.
func Pipelining(o *rueidis.ClientOption) { o.AlwaysPipelining = true }

// User makes a user with these rules and returns a client that logs in as that user.
func (w *World) User(rules ...string) rueidis.Client {
	w.Helper()
	name := fmt.Sprintf("user%d", len(strings.Fields(w.Do("ACL", "USERS"))))
	w.Do(append([]string{"ACL", "SETUSER", name, "on", ">secret", "~*", "&*", "+@all"}, rules...)...)
	return w.ClientWith(w.Dial, func(o *rueidis.ClientOption) {
		o.Username, o.Password = name, "secret"
		o.DisableCache = slices.Contains(rules, "-client") // rueidis needs CLIENT for its cache
	})
}

// ChecksRights reports whether the server can say what a user may do without doing it, as it can from version 7.0 on.
func (w *World) ChecksRights() bool {
	w.Helper()
	return w.Do("EVAL", "return redis.acl_check_cmd and 1 or 0", "0") == "1"
}

// Stall makes the server execute and answer nothing until thaw is called: then it continues with what it was sent meanwhile.
func (f *Flaky) Stall() (thaw func()) {
	until := make(chan struct{})
	f.Fate(Anything, HeldUp(until))
	thaw = sync.OnceFunc(func() { close(until) })
	f.W.Cleanup(thaw)
	return thaw
}

// Known teaches a registry what it asks its server only once, and the server the scripts.
func (w *World) Known(r *lockregistry.Registry) {
	w.Helper()
	l := r.Obtain("known")
	for range 2 {
		w.Lock(l)
		require.NoError(w, w.Answer(func() error { return l.Renew(w.Context(), time.Minute) }))
		w.Unlock(l)
	}
}

// Unavailable checks that an error says that Redis could not be reached, and nothing else.
func (w *World) Unavailable(err error, op string) {
	w.Helper()
	w.Fails(err, lockregistry.ErrUnavailable, op, TheKey)
	for _, other := range []error{
		context.Canceled, context.DeadlineExceeded, lockregistry.ErrTaken, lockregistry.ErrLockLost, lockregistry.ErrNotOwner,
	} {
		require.NotErrorIs(w, err, other)
	}
}

// TookLong reports whether a call failed because its reply took too long. On a real server that happens to any call when the
// machine is busy: the steps that only prepare a test are then repeated.
func TookLong(err error) bool {
	is := func(kind error) bool { return errors.Is(err, kind) }
	return slices.ContainsFunc([]error{fault.NoAnswer, fault.Late, fault.NotSent, fault.Unproven}, is)
}

// UnlessLate returns the error of a releasing call on a real server, or nil if it says only that the reply took too long. The
// key is removed all the same, a moment later.
func UnlessLate(err error) error {
	if TookLong(err) {
		return nil
	}
	return err
}

// UnlessBusy is UnlessLate for calls that keep taking a lock from each other, see LeaseOver.
func UnlessBusy(err error) error {
	if LeaseOver(err) {
		return nil
	}
	return UnlessLate(err)
}

// LeaseOver reports whether a hold was lost because it was not renewed in time. That happens when the machine is so busy that a
// section and the first renewal take longer than the second for which a release grants the lock to a waiter.
func LeaseOver(err error) bool {
	return errors.Is(err, fault.LeaseOver.Err()) || errors.Is(err, fault.RenewedTooLate.Err())
}

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

// DeafDialer is a dialer that can make those of its connections deaf that subscribe or have keys tracked.
type DeafDialer struct {
	W      *World
	Ears   atomic.Int32 // connections that subscribe or have keys tracked
	deaf   atomic.Int32 // the first so many of them hear nothing
	Missed atomic.Int32 // how often one of them would have heard something
}

// Dial makes a connection.
func (d *DeafDialer) Dial(ctx context.Context) (net.Conn, error) {
	conn, err := d.W.Dial(ctx)
	return &deafConn{Conn: conn, deaf: d}, err
}

// Deafen makes all such connections that exist now deaf.
func (d *DeafDialer) Deafen() { d.deaf.Store(d.Ears.Load()) }

type deafConn struct {
	net.Conn
	deaf *DeafDialer
	ear  atomic.Int32 // its number among such connections; 0: it is none
}

// Wrapper is a client of a type that is not rueidis's own.
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

// RefusedAfter is Refused, delivered only once until is closed.
func RefusedAfter(until <-chan struct{}, text string) Fate {
	what := Refused(text)
	what.Held = netfault.HoldUntil(until)
	return what
}

// HeldUp is the fate of commands that are delivered only once until is closed.
func HeldUp(until <-chan struct{}) Fate { return Fate{Held: netfault.HoldUntil(until)} }

// SlowReply is the fate of a command whose reply takes this much longer.
func SlowReply(d time.Duration) Fate { return Fate{Linger: d} }

// Flaky returns a network to the server of a world, without faults as yet.
func (w *World) Flaky() *Flaky {
	f := &Flaky{netfault.New(w.Dial, nameOf), w}
	w.Cleanup(f.Close)
	return f
}

// Registry returns a registry whose client talks through f.
func (f *Flaky) Registry(opts ...lockregistry.Option) *lockregistry.Registry {
	f.W.Helper()
	return f.W.RegistryOn(f.Client(), opts...)
}

// Client returns a client that talks through f.
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

// Count returns how many commands of a name were sent so far.
func (f *Flaky) Count(name string) int { return len(f.Sent(name)) }

// LockCommands returns how many commands about locks were sent so far.
func (f *Flaky) LockCommands() int { return f.Count("obtain") + f.Count("renew") + f.Count("release") }

// Reconnect ends all faults and breaks all connections: mute ones would stay mute.
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

// Arrives executes a command now, such as a lost one that was still under way somewhere.
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

// Digest returns the name of a script for EVALSHA.
func Digest(body string) string {
	sum := sha1.Sum([]byte(body))
	return hex.EncodeToString(sum[:])
}

// nameOf returns what a command does to a lock: the name of its script without the layout, such as "write_obtain".
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

// Types of package netfault, for tests that name them.
type (
	// Fate is what happens to a command.
	Fate = netfault.Fate
	// Command is a command that was sent.
	Command = netfault.Command
	// Link is a connection.
	Link = netfault.Link
)

// Names of commands that run no script.
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

// OneConnection makes a client use one connection for all commands that neither block nor subscribe.
func OneConnection(o *rueidis.ClientOption) { o.PipelineMultiplex = -1 }
