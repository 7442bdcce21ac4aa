package peer

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os/exec"
	"strconv"
	"sync"
	"time"
)

// closeLimit is how long a process may take to end by itself.
const closeLimit = 10 * time.Second

// Peer is a running process and the requests that it has not answered yet.
type Peer struct {
	name   string
	cmd    *exec.Cmd
	stderr *tail
	stdin  io.WriteCloser
	gone   chan struct{} // closed once the process has ended
	exit   error         // how it ended; written before gone is closed
	limit  time.Duration // closeLimit, except in tests

	writing sync.Mutex // held while a request is written, which may take until the process reads
	mu      sync.Mutex
	last    int
	pending map[string]*Call // nil once the process has ended
}

// Call is a request under way.
type Call struct {
	peer *Peer
	what string
	done chan struct{} // closed once reply or err is set
	// reply and err are written once, before done is closed.
	reply Reply
	err   error
}

// Reply is the result of a command, and when it began and ended by the wall clock.
type Reply struct {
	Fields
	Begin, End time.Time
}

// Start runs a program that speaks the protocol. The name is for messages.
func Start(name string, cmd *exec.Cmd) (*Peer, error) {
	p := &Peer{name: name, cmd: cmd, stderr: &tail{}, gone: make(chan struct{}), limit: closeLimit, pending: map[string]*Call{}}
	cmd.Stderr = p.stderr
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("cannot start %s: %w", name, err)
	}
	p.stdin = stdin
	go p.readReplies(stdout)
	return p, nil
}

// Do sends a request and waits for its reply. An exception or error on the other
// side comes back as a *[RemoteError].
func (p *Peer) Do(ctx context.Context, thread, command string, fields Fields) (Reply, error) {
	return p.Send(thread, command, fields).Wait(ctx)
}

// Send sends a request and does not wait. Requests for one thread are carried out
// one after the other, those for different threads side by side.
func (p *Peer) Send(thread, command string, fields Fields) *Call {
	call := &Call{peer: p, what: fmt.Sprintf("%s %v on thread %s of %s", command, fields, thread, p.name), done: make(chan struct{})}
	request := Fields{"thread": thread, "do": command}
	maps.Copy(request, fields)
	if !p.enter(request, call) {
		call.end(Reply{}, p.obituary())
		return call
	}
	p.writing.Lock()
	defer p.writing.Unlock()
	if _, err := io.WriteString(p.stdin, request.line()); err != nil && p.leave(request["id"]) != nil {
		call.end(Reply{}, fmt.Errorf("cannot send to %s: %w", p.name, err))
	}
	return call
}

// enter gives a request its number, unless the process has ended.
func (p *Peer) enter(request Fields, call *Call) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.pending == nil {
		return false
	}
	p.last++
	request["id"] = strconv.Itoa(p.last)
	p.pending[request["id"]] = call
	return true
}

// leave returns the call with a number, which the caller must end; nil if it has ended.
func (p *Peer) leave(id string) *Call {
	p.mu.Lock()
	defer p.mu.Unlock()
	call := p.pending[id]
	delete(p.pending, id)
	return call
}

// Wait waits for the reply.
func (c *Call) Wait(ctx context.Context) (Reply, error) {
	select {
	case <-c.done:
		return c.reply, c.err
	case <-ctx.Done():
		return Reply{}, fmt.Errorf("no reply to %s: %w; its standard error ends:\n%s", c.what, ctx.Err(), c.peer.stderr)
	}
}

// What describes the call and its peer.
func (c *Call) What() string { return c.what }

// Stderr returns the end of the process's standard error so far.
func (c *Call) Stderr() string { return c.peer.stderr.String() }

// Done returns a channel that is closed once the reply is there.
func (c *Call) Done() <-chan struct{} { return c.done }

func (c *Call) end(reply Reply, err error) {
	c.reply, c.err = reply, err
	close(c.done)
}

// Kill ends the process as a crash does: nothing is released or said.
func (p *Peer) Kill() error {
	if err := p.cmd.Process.Kill(); err != nil {
		return fmt.Errorf("cannot kill %s: %w", p.name, err)
	}
	<-p.gone
	return nil
}

// Close asks the process to end by closing its standard input, and kills it if it does not. It returns an error if the process
// failed.
func (p *Peer) Close() error {
	_ = p.stdin.Close() // also ends a write that is under way
	select {
	case <-p.gone:
	case <-time.After(p.limit):
		return errors.Join(fmt.Errorf("%s did not end within %v", p.name, p.limit), p.Kill())
	}
	if p.exit != nil {
		return fmt.Errorf("%s: %w; its standard error ends:\n%s", p.name, p.exit, p.stderr)
	}
	return nil
}

func (p *Peer) readReplies(stdout io.Reader) {
	lines := bufio.NewScanner(stdout)
	lines.Buffer(nil, longest)
	for lines.Scan() {
		p.take(lines.Text())
	}
	p.exit = p.cmd.Wait()
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, call := range p.pending {
		call.end(Reply{}, p.obituary())
	}
	p.pending = nil
	close(p.gone)
}

// take gives a reply to the call that waits for it. Lines that are not replies are skipped: libraries print, too.
func (p *Peer) take(line string) {
	fields, err := parse(line)
	if err != nil {
		return
	}
	call := p.leave(fields["id"])
	if call == nil {
		return
	}
	begin, err1 := fields.Time("begin")
	end, err2 := fields.Time("end")
	err = errors.Join(err1, err2)
	if class, failed := fields["error"]; failed {
		err = &RemoteError{Class: class, Message: fields["message"], Cause: fields["cause"]}
	}
	call.end(Reply{Fields: fields, Begin: begin, End: end}, err)
}

func (p *Peer) obituary() error {
	how := "well"
	if p.exit != nil {
		how = p.exit.Error()
	}
	return fmt.Errorf("%s has ended (%s); its standard error ends:\n%s", p.name, how, p.stderr)
}
