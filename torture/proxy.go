// Package torture tests the lock registry on a network and a server that fail in every way that they can.
package torture

import (
	"bufio"
	"context"
	"crypto/sha1"
	"encoding/hex"
	"fmt"
	"math"
	"net"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/lockregistry/lockregistry/internal/protocol"
)

// Proxy is the network between some clients and a server. It understands commands and replies, and gives each the fate
// that a test has chosen for it, and so to what the server pushes. What it was not told to harm it carries, in order and
// pipelined as it came.
//
// A connection has two ends. To cut it is to break the client's: what the server has been sent it executes, and a command
// that is still on its way arrives later all the same, as it would through a network that has lost only the way back.
type Proxy struct {
	scripts  map[string]string // names by digests
	listener net.Listener
	running  sync.WaitGroup
	closed   chan struct{}

	mu      sync.Mutex
	backend string // where connections lead that are made from now on
	rules   []*rule
	decide  func(Command) Fate
	down    bool
	thawed  chan struct{} // closed unless the network is frozen
	links   map[*link]bool
	seen    []Command
}

// Command is one that a client sent, or something that the server pushed.
type Command struct {
	Name   string // what it does to a lock: "obtain", "renew" or "release"; else its own name, in capitals
	Key    string // of a lock
	Value  string // of a hold
	Asks   string // to obtain: of the queue, if anything: "enqueue", "check" or "due"
	Args   []string
	Sent   time.Time
	Pushed bool // the name is "grant", "next" or "gone" for messages of the queue, see [queueMessages]; else the server's word
}

// queueMessages are what the messages of the queue are called here, by how they begin.
var queueMessages = map[string]string{"g": "grant", "n": "next", "d": "gone"}

// Match chooses commands by all of its fields that are not empty.
type Match struct{ Name, Key, Value, Asks string }

// Fate is what becomes of a command, of its reply, and of the connection that they take. What is pushed is like a reply.
type Fate struct {
	Delay  time.Duration // it takes so long to get to the server, and everything behind it too
	Held   *Held         // it takes as long as the test says; what is behind something pushed does not wait for it
	Linger time.Duration // its reply takes so long, and everything behind it too
	Mute   bool          // it is executed, but neither its reply nor anything behind that comes back
	Lost   bool          // pushed: it does not come
	Twice  bool          // pushed: it comes twice
	Cut    Cut
}

// Cut breaks a connection at a place. The zero Cut breaks nothing.
type Cut struct {
	place place
	at    int
}

type place uint8

const (
	nowhere place = iota
	inRequest
	inReply
)

// End is behind the last byte.
const End = math.MaxInt

// CutRequest breaks the connection when at bytes of a command have passed; a negative at counts from the last byte back.
func CutRequest(at int) Cut { return Cut{inRequest, at} }

// CutReply breaks the connection when at bytes of the reply to a command have passed. The server has executed it then.
func CutReply(at int) Cut { return Cut{inReply, at} }

func (c Cut) of(whole []byte) []byte {
	at := c.at
	if at < 0 {
		at += len(whole)
	}
	return whole[:min(max(at, 0), len(whole))]
}

// Held is a command, or something pushed, that the network holds back until it is told to deliver it.
type Held struct {
	cut     bool
	arrived chan struct{} // closed when the command is there
	deliver chan struct{}
	done    chan struct{} // closed when reply is there, or never will be
	once    sync.Once
	reply   string
}

// Hold returns a Held for one command. With cut the client's connection breaks as soon as the command is held back;
// otherwise the client waits, and when it goes away the command is delivered all the same.
func Hold(cut bool) *Held {
	return &Held{cut: cut, arrived: make(chan struct{}), deliver: make(chan struct{}), done: make(chan struct{})}
}

// Arrived is closed when the command is held back.
func (h *Held) Arrived() <-chan struct{} { return h.arrived }

// Release lets the command go on its way.
func (h *Held) Release() { h.once.Do(func() { close(h.deliver) }) }

// Deliver lets the command go on its way, and returns what the server replied; empty when it was never executed. Of what is
// pushed it returns that.
func (h *Held) Deliver() string {
	h.Release()
	<-h.done
	return h.reply
}

func (h *Held) finish(reply []byte) {
	h.reply = strings.TrimSpace(string(reply))
	close(h.done)
}

type rule struct {
	match Match
	fate  Fate
	once  bool
}

// Listen starts a proxy to the server at an address. Scripts are what scripts do to a lock by
// their bodies, see [Scripts].
func Listen(backend string, scripts map[string]string) (*Proxy, error) {
	listener, err := new(net.ListenConfig).Listen(context.Background(), "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	p := &Proxy{
		backend:  backend,
		scripts:  map[string]string{},
		listener: listener,
		closed:   make(chan struct{}),
		thawed:   make(chan struct{}),
		links:    map[*link]bool{},
	}
	for body, name := range scripts {
		p.scripts[digest(body)] = name
	}
	close(p.thawed)
	p.running.Go(p.accept)
	return p, nil
}

// Scripts are what the library's scripts do to a lock, by their bodies.
func Scripts() map[string]string {
	scripts := map[string]string{}
	for name, script := range protocol.Scripts() {
		for _, variant := range []string{"_queued", "_heir", "_ticket"} { // for a part of the cases
			name = strings.TrimSuffix(name, variant)
		}
		scripts[script.Source] = name[strings.LastIndexByte(name, '_')+1:]
	}
	return scripts
}

func digest(body string) string {
	sum := sha1.Sum([]byte(body))
	return hex.EncodeToString(sum[:])
}

// Addr is where clients connect.
func (p *Proxy) Addr() string { return p.listener.Addr().String() }

// Lead leads the connections that are made from now on to another server. Those that exist stay with theirs.
func (p *Proxy) Lead(backend string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.backend = backend
}

// Next gives a fate to the next command that matches and that no earlier rule takes.
func (p *Proxy) Next(m Match, f Fate) { p.add(&rule{m, f, true}) }

// All gives a fate to every command that matches and that no earlier rule takes.
func (p *Proxy) All(m Match, f Fate) { p.add(&rule{m, f, false}) }

func (p *Proxy) add(r *rule) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.rules = append(p.rules, r)
}

// Decide sets who decides the fates of the commands that no rule takes; nil: all are delivered. It is called under the
// proxy's mutex.
func (p *Proxy) Decide(decide func(Command) Fate) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.decide = decide
}

// Heal forgets all rules, thaws, lets clients connect, and breaks the connections that exist, mute ones among them.
func (p *Proxy) Heal() {
	p.mu.Lock()
	p.rules, p.decide, p.down = nil, nil, false
	p.mu.Unlock()
	p.Thaw()
	p.CutAll()
}

// CutAll breaks every connection.
func (p *Proxy) CutAll() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for l := range p.links {
		l.cut()
	}
}

// Down breaks every connection and lets nobody connect until [Proxy.Heal].
func (p *Proxy) Down() {
	p.mu.Lock()
	p.down = true
	p.mu.Unlock()
	p.CutAll()
}

// Freeze stops everything on its way, in both directions, and connections stay open.
func (p *Proxy) Freeze() {
	p.mu.Lock()
	defer p.mu.Unlock()
	select {
	case <-p.thawed:
		p.thawed = make(chan struct{})
	default:
	}
}

// Thaw lets it go on.
func (p *Proxy) Thaw() {
	p.mu.Lock()
	defer p.mu.Unlock()
	select {
	case <-p.thawed:
	default:
		close(p.thawed)
	}
}

// Seen returns the latest commands that match.
func (p *Proxy) Seen(m Match) []Command {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(p.seen), func(c Command) bool { return !m.matches(c) })
}

// Close breaks everything, and waits until nothing of the proxy is left. What is held back is never delivered.
func (p *Proxy) Close() {
	p.mu.Lock()
	select {
	case <-p.closed:
		p.mu.Unlock()
		return
	default:
	}
	close(p.closed)
	_ = p.listener.Close()
	for l := range p.links {
		l.cut()
		_ = l.server.Close()
	}
	p.mu.Unlock()
	p.running.Wait()
}

func (m Match) matches(c Command) bool {
	fits := func(wanted, is string) bool { return wanted == "" || wanted == is }
	return fits(m.Name, c.Name) && fits(m.Key, c.Key) && fits(m.Value, c.Value) && fits(m.Asks, c.Asks)
}

func (p *Proxy) command(args []string) Command {
	c := Command{Name: strings.ToUpper(args[0]), Args: args, Sent: time.Now()}
	switch {
	case c.Name == "SET" && slices.Contains(args, "NX"):
		c.Name, c.Key, c.Value = "obtain", args[1], args[2]
	case strings.HasPrefix(c.Name, "EVAL") && len(args) > 4:
		sum := args[1]
		if c.Name == "EVAL" {
			sum = digest(args[1])
		}
		if name := p.scripts[sum]; name != "" {
			c.Name, c.Key, c.Value = name, args[3], args[4]
		}
		if i := slices.IndexFunc(args, func(arg string) bool { return arg == "enqueue" || arg == "check" || arg == "due" }); i > 0 {
			c.Asks = args[i]
		}
	}
	return c
}

// push reads what the server pushed.
func push(said []byte) Command {
	args := elements(said)
	c := Command{Name: args[0], Args: args, Sent: time.Now(), Pushed: true}
	if len(args) < 2 {
		return c
	}
	c.Key = args[1]
	if fields := strings.SplitN(args[len(args)-1], " ", 4); len(fields) == 4 && queueMessages[fields[0]] != "" {
		_, registry, _ := strings.Cut(c.Key, "-channel@")
		c.Name, c.Key, c.Value = queueMessages[fields[0]], fields[3], registry+":"+fields[1]
	}
	return c
}

const mostSeen = 1 << 14

// fate notes a command and decides what becomes of it.
func (p *Proxy) fate(c Command) Fate {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.seen) == mostSeen {
		p.seen = append(p.seen[:0], p.seen[mostSeen/2:]...)
	}
	p.seen = append(p.seen, c)
	for i, r := range p.rules {
		if r.match.matches(c) {
			if r.once {
				p.rules = slices.Delete(p.rules, i, i+1)
			}
			return r.fate
		}
	}
	if p.decide != nil {
		return p.decide(c)
	}
	return Fate{}
}

// flow waits while the network is frozen.
func (p *Proxy) flow() {
	p.mu.Lock()
	thawed := p.thawed
	p.mu.Unlock()
	select {
	case <-thawed:
	case <-p.closed:
	}
}

// pause waits for a while, less when the proxy is closed.
func (p *Proxy) pause(d time.Duration) {
	if d <= 0 {
		return
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-p.closed:
	}
}

func (p *Proxy) accept() {
	for {
		client, err := p.listener.Accept()
		if err != nil {
			return
		}
		p.running.Go(func() { p.connect(client.(*net.TCPConn)) })
	}
}

func (p *Proxy) connect(client *net.TCPConn) {
	p.flow()
	dialer := net.Dialer{Timeout: 10 * time.Second}
	p.mu.Lock()
	down, backend := p.down, p.backend
	p.mu.Unlock()
	if down {
		_ = client.Close()
		return
	}
	server, err := dialer.DialContext(context.Background(), "tcp", backend)
	if err != nil {
		_ = client.Close()
		return
	}
	l := &link{proxy: p, client: client, server: server.(*net.TCPConn)}
	p.mu.Lock()
	select {
	case <-p.closed:
		down = true
	default:
		down = p.down
	}
	if down {
		p.mu.Unlock()
		_ = client.Close()
		_ = server.Close()
		return
	}
	p.links[l] = true
	p.running.Go(l.forth)
	p.running.Go(l.back)
	p.mu.Unlock()
}

// link is one connection through a proxy.
type link struct {
	proxy  *Proxy
	client *net.TCPConn
	server *net.TCPConn

	mu      sync.Mutex
	pending []Fate // of the commands that the server has been sent and has not answered
	over    bool   // the server will answer nothing more
}

// cut breaks the client's end. The goroutines notice, and close the server's when nothing is on its way any more.
func (l *link) cut() { _ = l.client.Close() }

// forth carries commands to the server.
func (l *link) forth() {
	defer func() { _ = l.server.CloseWrite() }()
	from := bufio.NewReader(l.client)
	for {
		raw, args, err := readCommand(from)
		if err != nil {
			return
		}
		f := l.proxy.fate(l.proxy.command(args))
		l.proxy.pause(f.Delay)
		l.proxy.flow()
		if h := f.Held; h != nil {
			close(h.arrived)
			if h.cut {
				l.cut()
			}
			select {
			case <-h.deliver:
			case <-l.proxy.closed:
				h.finish(nil)
				return
			}
		}
		if !strings.HasSuffix(strings.ToUpper(args[0]), "SUBSCRIBE") && !l.expect(f) { // that is answered by a push
			return
		}
		if f.Cut.place == inRequest {
			l.cut() // first, or the reply could still get through
			_, _ = l.server.Write(f.Cut.of(raw))
			return
		}
		if _, err := l.server.Write(raw); err != nil {
			l.cut()
			return
		}
	}
}

// back carries what the server says to the client. When the client is gone it goes on until the server has answered all.
func (l *link) back() {
	defer l.end()
	from := bufio.NewReader(l.server)
	mute := false
	for {
		said, err := readValue(from)
		if err != nil {
			return
		}
		var f Fate
		pushed := pushed(said)
		if pushed {
			f = l.proxy.fate(push(said))
		} else {
			f = l.answered()
		}
		l.proxy.pause(f.Linger)
		l.proxy.flow()
		if f.Held != nil && pushed {
			l.aside(f.Held, said)
			continue
		}
		if f.Held != nil {
			f.Held.finish(said)
		}
		if f.Twice {
			said = append(said, said...)
		}
		mute = mute || f.Mute
		switch {
		case mute || f.Lost:
		case f.Cut.place == inReply:
			_, _ = l.client.Write(f.Cut.of(said))
			l.cut()
		default:
			_, _ = l.client.Write(said)
		}
	}
}

// aside holds something back that was pushed, while the rest goes on.
func (l *link) aside(h *Held, said []byte) {
	close(h.arrived)
	if h.cut {
		l.cut()
	}
	l.proxy.running.Go(func() {
		select {
		case <-h.deliver:
		case <-l.proxy.closed:
			h.finish(nil)
			return
		}
		l.proxy.flow()
		_, _ = l.client.Write(said)
		h.finish(said)
	})
}

// expect notes that the reply to a command is to come. It reports false when none will.
func (l *link) expect(f Fate) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.over && f.Held != nil {
		f.Held.finish(nil)
	}
	l.pending = append(l.pending, f)
	return !l.over
}

func (l *link) answered() Fate {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.pending) == 0 {
		return Fate{}
	}
	f := l.pending[0]
	l.pending = l.pending[1:]
	return f
}

// end is when the server will say nothing more.
func (l *link) end() {
	l.cut()
	_ = l.server.Close()
	l.proxy.mu.Lock()
	delete(l.proxy.links, l)
	l.proxy.mu.Unlock()
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, f := range l.pending {
		if f.Held != nil {
			f.Held.finish(nil)
		}
	}
	l.pending, l.over = nil, true
}

func (c Command) String() string { return fmt.Sprintf("%s %s %s", c.Name, c.Key, c.Value) }
