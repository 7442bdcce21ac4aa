package lockregistry_test

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha1"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/rueidis"

	"github.com/lockregistry/lockregistry"
	"github.com/lockregistry/lockregistry/internal/protocol"
)

// flaky is the network between a client and the server of a world. It delivers every command, and sees all of them, until
// a test gives some of them another fate.
type flaky struct {
	w *world

	mu    sync.Mutex
	seen  []command
	once  map[string][]fate // for the next commands of a name, or of a script, one each; see scriptOf
	every map[string]fate   // for all others of a name, see anything
	down  bool              // nobody can connect
	links map[*link]bool
}

// anything stands for the name of every command that has no fate of its own.
const anything = "*"

// grant stands for the name of a message that tells a waiting call of a grant. It can be held up, or be lost.
const grant = "grant"

// record is the name of a command that writes the record of a registry, about no lock.
const record = "record"

// command is one that a client sent.
type command struct {
	name string // what it does to a lock: "obtain", "renew" or "release"; else its own name
	args []string
	sent time.Time
	over *link
}

// fate is what becomes of a command.
type fate struct {
	wait     <-chan struct{} // until then the command is on its way; nothing overtakes it on its connection
	lost     bool            // the server never sees it
	reply    string          // who lost it replies this, when set
	linger   time.Duration   // for so long the reply is on its way
	thenCut  bool            // instead of the reply, the connection breaks
	thenMute bool            // instead of the reply, and for all that follows on this connection, there is silence
}

var (
	delivered = fate{}
	// cut breaks the connection before the command reaches the server, cutAfter once the server has executed it.
	cut      = fate{lost: true, thenCut: true}
	cutAfter = fate{thenCut: true}
	// silence is a server that hangs.
	silence = fate{lost: true, thenMute: true}
)

// refused is the fate of a command that a server answers with an error.
func refused(text string) fate { return fate{lost: true, reply: "-" + text + "\r\n"} }

// heldUp is the fate of a command that is delivered only when until is closed.
func heldUp(until <-chan struct{}) fate { return fate{wait: until} }

// slow is the fate of a command whose reply takes this long.
func slow(d time.Duration) fate { return fate{linger: d} }

func (w *world) flaky() *flaky {
	f := &flaky{w: w, links: map[*link]bool{}}
	f.heal()
	return f
}

// registry is one whose client talks through f.
func (f *flaky) registry(opts ...lockregistry.Option) *lockregistry.Registry {
	f.w.Helper()
	return f.w.registryOn(f.client(), opts...)
}

func (f *flaky) client(change ...func(*rueidis.ClientOption)) rueidis.Client {
	f.w.Helper()
	return f.w.clientWith(f.dial, change...)
}

// next gives the next commands of a name these fates, one each.
func (f *flaky) next(name string, fates ...fate) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.once[name] = append(f.once[name], fates...)
}

// all gives every command of a name a fate from now on.
func (f *flaky) all(name string, what fate) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.every[name] = what
}

// heal delivers everything from now on; connections that are mute stay so.
func (f *flaky) heal() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.once, f.every, f.down = map[string][]fate{}, map[string]fate{}, false
}

// cut breaks all connections, and lets nobody connect until heal.
func (f *flaky) cut() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.down = true
	for l := range f.links {
		l.close()
	}
}

// reconnect makes everything work again, and breaks all connections: those that are mute would stay so.
func (f *flaky) reconnect() {
	f.w.Helper()
	f.cut()
	f.w.settle() // clients have noticed
	f.heal()
}

// sent returns the commands of a name that were sent so far, count how many they are.
func (f *flaky) sent(name string) []command {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(f.seen), func(c command) bool { return c.name != name })
}

func (f *flaky) count(name string) int { return len(f.sent(name)) }

// lockCommands returns how many commands about locks were sent so far.
func (f *flaky) lockCommands() int { return f.count("obtain") + f.count("renew") + f.count("release") }

// arrives executes a command, now: one that was lost may still be on its way somewhere.
func (c command) arrives(w *world) string {
	w.Helper()
	args := c.args
	if body := scripts()[args[1]]; strings.EqualFold(args[0], "EVALSHA") && body != "" {
		args = append([]string{"EVAL", body}, args[2:]...)
	}
	return w.do(args...)
}

// reconnectNow breaks all connections, and lets everybody connect again.
func (f *flaky) reconnectNow() {
	f.cut()
	f.heal()
}

// hang makes every connection that there is mute, without breaking it, and lets no other one come: as if the process stood still.
func (f *flaky) hang() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.down = true
	for l := range f.links {
		l.mute.Store(true)
	}
}

// fateOfGrant notes a message that tells of a grant, and decides what becomes of it, which only fates for grants do.
func (f *flaky) fateOfGrant(c command) fate {
	f.mu.Lock()
	_, every := f.every[c.name]
	given := every || len(f.once[c.name]) > 0
	f.mu.Unlock()
	if !given {
		return delivered
	}
	return f.fateOf(c)
}

// fateOf notes a command and decides what becomes of it.
func (f *flaky) fateOf(c command) fate {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.seen = append(f.seen, c)
	if len(f.once) > 0 {
		if name := scriptOf(c.args); len(f.once[name]) > 0 {
			next := f.once[name]
			f.once[name] = next[1:]
			return next[0]
		}
	}
	if next := f.once[c.name]; len(next) > 0 {
		f.once[c.name] = next[1:]
		return next[0]
	}
	if what, ok := f.every[c.name]; ok {
		return what
	}
	return f.every[anything]
}

func (f *flaky) dial(ctx context.Context) (net.Conn, error) {
	f.mu.Lock()
	down := f.down
	f.mu.Unlock()
	if ctx.Err() != nil { // miniredis would not notice
		return nil, ctx.Err()
	}
	if down {
		return nil, &net.OpError{Op: "dial", Net: "tcp", Err: errors.New("the network is down")}
	}
	server, err := f.w.dial(ctx)
	if err != nil {
		return nil, err
	}
	client, inner := net.Pipe()
	l := &link{flaky: f, client: inner, server: server, replies: make(chan []byte), closed: make(chan struct{})}
	f.mu.Lock()
	f.links[l] = true
	f.mu.Unlock()
	go l.forth()
	go l.back()
	return client, nil
}

// link is one connection through a flaky network. It carries one command at a time, so that replies keep their order
// whoever makes them up.
type link struct {
	flaky   *flaky
	client  net.Conn
	server  net.Conn
	replies chan []byte
	mute    atomic.Bool
	writing sync.Mutex // guards writing to the client
	closing sync.Once
	closed  chan struct{}
}

func (l *link) close() {
	l.closing.Do(func() {
		close(l.closed)
		_ = l.client.Close()
		_ = l.server.Close()
	})
}

// await waits for something, and reports false if the connection ends first.
func await[T any](l *link, done <-chan T) bool {
	select {
	case <-done:
		return true
	case <-l.closed:
		return false
	}
}

// forth carries commands to the server.
func (l *link) forth() {
	defer func() {
		l.close()
		l.flaky.mu.Lock()
		delete(l.flaky.links, l)
		l.flaky.mu.Unlock()
	}()
	from := bufio.NewReader(l.client)
	for {
		raw, args, err := readCommand(from)
		if err != nil {
			return
		}
		what := l.flaky.fateOf(command{nameOf(args), args, time.Now(), l})
		if l.mute.Load() {
			continue
		}
		if what.wait != nil && !await(l, what.wait) {
			return
		}
		subscribes := strings.HasSuffix(strings.ToUpper(args[0]), "SUBSCRIBE")
		if subscribes && what.linger > 0 && !await(l, time.After(what.linger)) {
			return
		}
		if what.lost && !what.thenCut && !what.thenMute {
			if what.linger > 0 && !await(l, time.After(what.linger)) {
				return
			}
			l.toClient([]byte(what.reply))
			continue
		}
		var reply []byte
		if !what.lost {
			if _, err := l.server.Write(raw); err != nil {
				return
			}
			if subscribes && !what.thenCut && !what.thenMute {
				continue // answered by pushed messages, if at all
			}
			if !subscribes {
				select {
				case reply = <-l.replies:
				case <-l.closed:
					return
				}
			}
		}
		if what.linger > 0 && !await(l, time.After(what.linger)) {
			return
		}
		switch {
		case what.thenCut:
			return
		case what.thenMute:
			l.mute.Store(true)
		default:
			l.toClient(reply)
		}
	}
}

// back carries what the server says: replies to forth, which waits for them, and pushed messages to the client.
func (l *link) back() {
	defer l.close()
	from := bufio.NewReader(l.server)
	for {
		said, err := readValue(from, nil)
		if err != nil {
			return
		}
		if said[0] == '>' {
			what := delivered
			if bytes.Contains(said, []byte("\r\ng ")) {
				what = l.flaky.fateOfGrant(command{name: grant, sent: time.Now(), over: l})
			}
			if what.wait != nil && !await(l, what.wait) {
				return
			}
			if !what.lost && !l.mute.Load() {
				l.toClient(said)
			}
			continue
		}
		select {
		case l.replies <- said:
		case <-l.closed:
			return
		}
	}
}

func (l *link) toClient(said []byte) {
	l.writing.Lock()
	defer l.writing.Unlock()
	_, _ = l.client.Write(said)
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

// nameOf is what a command does to a lock, or its own name.
func nameOf(args []string) string {
	own := strings.ToUpper(args[0])
	switch own {
	case "SET":
		switch {
		case slices.Contains(args, "NX"):
			return "obtain"
		case strings.HasSuffix(args[1], ":registry"):
			return record
		}
	case "HELLO":
		if len(args) == 1 {
			return "bare HELLO"
		}
	case "EVAL", "EVALSHA":
		if script := scriptOf(args); script != "" {
			what, _, _ := strings.Cut(script, "_") // a variant may follow
			return what
		}
	}
	return own
}

// scriptOf is the script that a command runs, without the layout: "write_obtain"; empty when it runs none of this library's.
func scriptOf(args []string) string {
	if len(args) < 2 || !strings.HasPrefix(strings.ToUpper(args[0]), "EVAL") {
		return ""
	}
	for script, body := range sources() {
		if args[1] == body || args[1] == digest(body) {
			_, what, _ := strings.Cut(script, "_")
			return what
		}
	}
	return ""
}

// readCommand reads an array of strings.
func readCommand(from *bufio.Reader) (raw []byte, args []string, err error) {
	if raw, err = readValue(from, nil); err != nil {
		return nil, nil, err
	}
	text := string(raw)
	_, text, _ = strings.Cut(text, "\r\n")
	for len(text) > 0 {
		size, rest, _ := strings.Cut(text, "\r\n")
		n, err := strconv.Atoi(strings.TrimPrefix(size, "$"))
		if err != nil {
			return nil, nil, fmt.Errorf("no command: %q", raw)
		}
		args = append(args, rest[:n])
		text = rest[n+len("\r\n"):]
	}
	return raw, args, nil
}

// readValue appends one value of the Redis serialization protocol, version 2 or 3, to raw.
func readValue(from *bufio.Reader, raw []byte) ([]byte, error) {
	line, err := from.ReadBytes('\n')
	if err != nil {
		return nil, err
	}
	raw = append(raw, line...)
	size, _ := strconv.Atoi(strings.TrimSpace(string(line[1:])))
	values := 0
	switch line[0] {
	case '$', '=', '!':
		if size < 0 {
			return raw, nil
		}
		text := make([]byte, size+len("\r\n"))
		_, err = io.ReadFull(from, text)
		return append(raw, text...), err
	case '*', '~', '>':
		values = max(size, 0)
	case '%':
		values = 2 * size
	case '|':
		values = 2*size + 1
	}
	for range values {
		if raw, err = readValue(from, raw); err != nil {
			return nil, err
		}
	}
	return raw, nil
}
