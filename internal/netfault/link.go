package netfault

import (
	"bufio"
	"net"
	"strings"
	"sync"
)

// Link is one connection through a proxy.
type Link struct {
	proxy  *Proxy
	client net.Conn
	server net.Conn

	writing sync.Mutex // guards writes to the client

	mu      sync.Mutex
	changed sync.Cond // pending has become empty, or over true
	pending []Fate    // of commands that the server has received and not answered
	mute    bool      // nothing reaches the client any more
	deaf    bool      // nothing reaches the server any more
	left    bool      // the client will send nothing more
	over    bool      // the server will answer nothing more
}

func newLink(p *Proxy, client, server net.Conn) *Link {
	l := &Link{proxy: p, client: client, server: server}
	l.changed.L = &l.mu
	return l
}

// Cut breaks the client's end. The goroutines notice, and close the server's end once nothing is under way any more.
func (l *Link) Cut() { _ = l.client.Close() }

// forth carries commands to the server.
func (l *Link) forth() {
	defer l.leave()
	from := bufio.NewReader(l.client)
	for {
		raw, args, err := readCommand(from)
		if err != nil {
			return
		}
		c := l.proxy.sent(args)
		f := l.proxy.fate(c, l)
		l.proxy.pause(f.Delay)
		l.proxy.flow()
		if h := f.Held; h != nil && !l.holds(h) {
			return
		}
		if !l.passes(f, raw, strings.HasSuffix(strings.ToUpper(args[0]), "SUBSCRIBE")) {
			return
		}
	}
}

// holds waits until h may be delivered. It reports false if it never may.
func (l *Link) holds(h *Held) bool {
	h.arrive()
	if h.cut {
		l.Cut()
	}
	select {
	case <-h.deliver:
		return true
	case <-l.proxy.closed:
		h.finish(nil)
		return false
	}
}

// passes does to a command what its fate says. It reports false if that was the connection's last command. A subscribing
// command gets no reply: pushed messages answer it.
func (l *Link) passes(f Fate, raw []byte, subscribes bool) bool {
	l.mu.Lock()
	deaf := l.deaf
	l.mu.Unlock()
	switch {
	case deaf:
		return true
	case f.Lost:
		return l.makeUp(f)
	}
	whole := raw
	if f.Cut.place == inRequest {
		whole = f.Cut.of(raw)
		l.Cut() // first, or the reply could still get through
	}
	if len(whole) < len(raw) && f.Held != nil {
		f.Held.finish(nil)
	}
	if len(whole) == len(raw) && !subscribes && !l.expect(f) {
		return false
	}
	_, err := l.server.Write(whole)
	if err != nil || subscribes && f.Cut.place == inReply {
		l.Cut()
	}
	return err == nil && f.Cut.place != inRequest
}

// makeUp waits until the server has replied to earlier commands. Then it makes up the reply to a lost command, if its fate has
// one, and falls silent if its fate is mute.
func (l *Link) makeUp(f Fate) bool {
	if f.Held != nil {
		f.Held.finish(nil)
	}
	l.mu.Lock()
	for len(l.pending) > 0 {
		l.changed.Wait()
	}
	if f.Mute {
		l.mute, l.deaf = true, true
	}
	over := l.over
	l.mu.Unlock()
	l.proxy.pause(f.Linger)
	l.proxy.flow()
	if f.Reply != "" {
		l.toClient([]byte(f.Reply))
	}
	return !over
}

// back carries the server's data to the client. If the client is gone, it continues until the server has answered everything.
func (l *Link) back() {
	defer l.end()
	from := bufio.NewReader(l.server)
	for {
		said, err := readValue(from)
		if err != nil {
			return
		}
		if pushed(said) {
			l.pushes(said)
			continue
		}
		f := l.answered()
		l.proxy.pause(f.Linger)
		l.proxy.flow()
		if f.Held != nil {
			f.Held.finish(said)
		}
		l.mu.Lock()
		l.mute = l.mute || f.Mute
		l.mu.Unlock()
		l.says(f, said)
		l.settle()
	}
}

// pushes carries a pushed message.
func (l *Link) pushes(said []byte) {
	f := l.proxy.fate(push(said), l)
	l.proxy.pause(f.Linger)
	l.proxy.flow()
	l.mu.Lock()
	l.mute = l.mute || f.Mute
	l.mu.Unlock()
	if f.Held == nil {
		l.says(f, said)
		return
	}
	l.proxy.running.Go(func() { // what follows does not wait
		if l.holds(f.Held) {
			l.proxy.flow()
			l.says(f, said)
			f.Held.finish(said)
		}
	})
}

// says passes on a reply or message of the server.
func (l *Link) says(f Fate, said []byte) {
	switch {
	case f.Lost:
	case f.Cut.place == inReply:
		l.toClient(f.Cut.of(said))
		l.Cut()
	case f.Twice:
		l.toClient(append(said, said...))
	default:
		l.toClient(said)
	}
}

func (l *Link) toClient(said []byte) {
	l.mu.Lock()
	mute := l.mute
	l.mu.Unlock()
	if mute {
		return
	}
	l.writing.Lock()
	defer l.writing.Unlock()
	_, _ = l.client.Write(said)
}

// expect records that the reply to a command is due. It reports false if there will be none.
func (l *Link) expect(f Fate) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.over && f.Held != nil {
		f.Held.finish(nil)
	}
	if !l.over {
		l.pending = append(l.pending, f)
	}
	return !l.over
}

// answered returns the fate of the command whose reply has arrived. It stays pending until settle.
func (l *Link) answered() Fate {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.pending) == 0 {
		return Fate{}
	}
	return l.pending[0]
}

// settle removes the first pending command.
func (l *Link) settle() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.pending) > 0 {
		l.pending = l.pending[1:]
	}
	l.rest()
}

// leave records that the client will send nothing more.
func (l *Link) leave() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.left = true
	l.rest()
}

// rest closes the server's end once nothing is under way any more. The caller holds mu.
func (l *Link) rest() {
	if len(l.pending) > 0 {
		return
	}
	l.changed.Broadcast()
	if l.left {
		_ = l.server.Close()
	}
}

// end records that the server will say nothing more.
func (l *Link) end() {
	l.Cut()
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
	l.changed.Broadcast()
}
