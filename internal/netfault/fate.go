package netfault

import (
	"math"
	"strings"
	"sync"
	"time"
)

// Fate is what happens to a command, its reply, and their connection. A pushed message is treated like a reply.
type Fate struct {
	Delay  time.Duration // how much later the command, and everything behind it, reaches the server
	Held   *Held         // the test decides when it arrives; what is behind a pushed message does not wait for it
	Lost   bool          // it does not reach its destination
	Reply  string        // the reply to a lost command, as the server would send it; empty: none
	Linger time.Duration // how much later its reply, and everything behind that, arrives
	Mute   bool          // its reply and everything behind that are lost; what is sent behind a lost command is lost, too
	Twice  bool          // a pushed message arrives twice
	Cut    Cut
}

// Cut breaks a connection at some place. The zero Cut breaks nothing.
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

// End is the place behind the last byte.
const End = math.MaxInt

// CutRequest breaks the connection once at bytes of a command have passed; a negative at counts from the end.
func CutRequest(at int) Cut { return Cut{inRequest, at} }

// CutReply breaks the connection once at bytes of the reply to a command have passed. By then the server has executed it.
func CutReply(at int) Cut { return Cut{inReply, at} }

// InRequest reports whether the connection breaks on the way to the server.
func (c Cut) InRequest() bool { return c.place == inRequest }

func (c Cut) of(whole []byte) []byte {
	at := c.at
	if at < 0 {
		at += len(whole)
	}
	return whole[:min(max(at, 0), len(whole))]
}

// Held is a command, or a pushed message, that the network holds back until Release or Deliver. If several commands share a
// fate, Held is about the first.
type Held struct {
	cut       bool
	deliver   <-chan struct{}
	release   func()
	arrived   chan struct{} // closed when the command has arrived
	done      chan struct{} // closed when the reply has arrived, or never will
	arriving  sync.Once
	finishing sync.Once
	reply     string
}

// Hold returns a Held for one command. With cut, the client's connection breaks as soon as the command is held back. Without it
// the client waits; if it goes away, the command is still delivered.
func Hold(cut bool) *Held {
	deliver := make(chan struct{})
	h := HoldUntil(deliver)
	h.cut, h.release = cut, sync.OnceFunc(func() { close(deliver) })
	return h
}

// HoldUntil returns a Held for commands that are delivered when a channel is closed.
func HoldUntil(deliver <-chan struct{}) *Held {
	return &Held{deliver: deliver, release: func() {}, arrived: make(chan struct{}), done: make(chan struct{})}
}

// Arrived is closed once the command is held back.
func (h *Held) Arrived() <-chan struct{} { return h.arrived }

// Release lets the command go on its way.
func (h *Held) Release() { h.release() }

// Deliver delivers the command and returns the server's reply, empty if the command was never executed. For a pushed message it
// returns the message.
func (h *Held) Deliver() string {
	h.release()
	<-h.done
	return h.reply
}

// arrive records that the command has arrived.
func (h *Held) arrive() { h.arriving.Do(func() { close(h.arrived) }) }

func (h *Held) finish(reply []byte) {
	h.finishing.Do(func() {
		h.reply = strings.TrimSpace(string(reply))
		close(h.done)
	})
}
