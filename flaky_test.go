package lockregistry_test

import (
	"crypto/sha1"
	"encoding/hex"
	"strings"
	"sync"
	"time"

	"github.com/redis/rueidis"

	"github.com/lockregistry/lockregistry"
	"github.com/lockregistry/lockregistry/internal/netfault"
	"github.com/lockregistry/lockregistry/internal/protocol"
)

// flaky is the network between a client and the server of a world.
type flaky struct {
	*netfault.Proxy
	w *world
}

type (
	fate    = netfault.Fate
	command = netfault.Command
	link    = netfault.Link
)

const (
	// anything stands for every command that has no fate of its own.
	anything = ""
	// grant is the name of a message that tells a waiting call of a grant.
	grant = "grant"
	// record is the name of a command that writes the record of a registry, about no lock.
	record = "record"
)

var (
	delivered = fate{}
	// cut breaks the connection before the command reaches the server, cutAfter once the server has executed it.
	cut      = fate{Cut: netfault.CutRequest(0)}
	cutAfter = fate{Cut: netfault.CutReply(0)}
	// silence is a server that hangs.
	silence = fate{Lost: true, Mute: true}
)

// refused is the fate of a command that a server answers with an error.
func refused(text string) fate { return fate{Lost: true, Reply: "-" + text + "\r\n"} }

// refusedAfter is one that a server answers so only when until is closed.
func refusedAfter(until <-chan struct{}, text string) fate {
	what := refused(text)
	what.Held = netfault.HoldUntil(until)
	return what
}

// heldUp is the fate of commands that are delivered only when until is closed.
func heldUp(until <-chan struct{}) fate { return fate{Held: netfault.HoldUntil(until)} }

// slow is the fate of a command whose reply takes this long.
func slow(d time.Duration) fate { return fate{Linger: d} }

func (w *world) flaky() *flaky {
	f := &flaky{netfault.New(w.dial, nameOf), w}
	w.Cleanup(f.Close)
	return f
}

// registry is one whose client talks through f.
func (f *flaky) registry(opts ...lockregistry.Option) *lockregistry.Registry {
	f.w.Helper()
	return f.w.registryOn(f.client(), opts...)
}

func (f *flaky) client(change ...func(*rueidis.ClientOption)) rueidis.Client {
	f.w.Helper()
	return f.w.clientWith(f.Dial, change...)
}

// next gives the next commands of a name these fates, one each.
func (f *flaky) next(name string, fates ...fate) { f.Next(netfault.Match{Name: name}, fates...) }

// all gives every command of a name a fate from now on.
func (f *flaky) all(name string, what fate) { f.All(netfault.Match{Name: name}, what) }

// sent returns the commands of a name that were sent so far, count how many they are.
func (f *flaky) sent(name string) []command { return f.Seen(netfault.Match{Name: name}) }

func (f *flaky) count(name string) int { return len(f.sent(name)) }

// lockCommands returns how many commands about locks were sent so far.
func (f *flaky) lockCommands() int { return f.count("obtain") + f.count("renew") + f.count("release") }

// reconnect makes everything work again, and breaks all connections: those that are mute would stay so.
func (f *flaky) reconnect() {
	f.w.Helper()
	f.Down()
	f.w.settle() // clients have noticed
	f.Forget()
}

// reconnectNow breaks all connections, and lets everybody connect again.
func (f *flaky) reconnectNow() {
	f.Down()
	f.Forget()
}

// arrives executes a command, now: one that was lost may still be on its way somewhere.
func (w *world) arrives(c command) string {
	w.Helper()
	args := c.Args
	if body := scripts()[args[1]]; strings.EqualFold(args[0], "EVALSHA") && body != "" {
		args = append([]string{"EVAL", body}, args[2:]...)
	}
	return w.do(args...)
}

// scripts are the bodies of this library's scripts by their digests.
var scripts = sync.OnceValue(func() map[string]string {
	bodies := map[string]string{}
	for _, body := range sources() {
		bodies[digest(body)] = body
	}
	return bodies
})

// sources are the bodies of this library's scripts by their names.
var sources = sync.OnceValue(func() map[string]string {
	bodies := map[string]string{}
	for name, script := range protocol.Scripts() {
		bodies[name] = script.Source
	}
	return bodies
})

func digest(body string) string {
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
	for script, body := range sources() {
		_, names[body], _ = strings.Cut(script, "_")
	}
	return netfault.Named(names)
})
