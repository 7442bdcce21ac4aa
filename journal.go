package lockregistry

import (
	"context"
	"fmt"
	"log/slog"
	"runtime"
	"sync"
	"time"
)

// journal calls code of the user that nobody may wait for, a log handler or an observer: it may block forever, and it may panic.
// Calls are queued, and one goroutine, which exists only while there are some, makes them in order, under no mutex. So
// logging never blocks, and may be done with a mutex held. When the queue is full, because a call does not return, further
// calls are dropped and counted; the count is logged once the calls go on.
//
// The zero journal is silent: it allocates nothing and starts no goroutine.
type journal struct {
	handler slog.Handler // nil: nobody reads

	mu      sync.Mutex
	queue   []func()
	dropped int           // calls that found the queue full; the line that tells so is in the queue while there are some
	idle    chan struct{} // closed when the goroutine has made every call; nil when there is none
}

const (
	backlog      = 1024                   // calls that may wait
	journalGrace = 100 * time.Millisecond // how long Close waits for them
)

// log queues a line. It does not ask the handler whether it is enabled: that is code of the user too, and is asked by the
// goroutine. Lines are rare (a loss, a change), so it does not matter that one which nobody wants takes a place for a
// moment.
func (j *journal) log(level slog.Level, message string, attrs ...slog.Attr) {
	if j.handler == nil {
		return
	}
	var caller [1]uintptr
	runtime.Callers(2, caller[:]) // past Callers and log
	line := slog.NewRecord(time.Now(), level, message, caller[0])
	line.AddAttrs(attrs...)
	j.put(func() { j.write(line) })
}

// write has the handler write a line, in the goroutine.
func (j *journal) write(line slog.Record) {
	ctx := context.Background()
	if j.handler != nil && j.handler.Enabled(ctx, line.Level) {
		_ = j.handler.Handle(ctx, line) // nowhere to report it
	}
}

// put queues a call, or drops it.
func (j *journal) put(call func()) {
	j.mu.Lock()
	defer j.mu.Unlock()
	room := backlog
	if j.dropped > 0 {
		room++ // for the line that tells so
	}
	if len(j.queue) < room {
		j.queue = append(j.queue, call)
	} else if j.dropped++; j.dropped == 1 {
		j.queue = append(j.queue, j.tellDropped)
	}
	if j.idle == nil {
		j.idle = make(chan struct{})
		go j.run()
	}
}

// tellDropped logs how many calls were dropped. It stands in the queue after those that came before them.
func (j *journal) tellDropped() {
	j.mu.Lock()
	n := j.dropped
	j.dropped = 0
	j.mu.Unlock()
	line := slog.NewRecord(time.Now(), slog.LevelWarn, "log lines dropped: the handler did not keep up", 0)
	line.AddAttrs(slog.Int("lines", n))
	j.write(line)
}

// run is the goroutine. A call that panics, or ends its goroutine, ends this one only: another one goes on.
func (j *journal) run() {
	finished := false
	defer func() {
		if !finished {
			_ = recover() // it is the user's panic, and must not end the program
			go j.run()
		}
	}()
	for call := j.next(); call != nil; call = j.next() {
		call()
	}
	finished = true
}

// next takes the next call, or nil when there is none: the goroutine ends then.
func (j *journal) next() func() {
	j.mu.Lock()
	defer j.mu.Unlock()
	if len(j.queue) == 0 {
		close(j.idle)
		j.idle, j.queue = nil, nil
		return nil
	}
	call := j.queue[0]
	j.queue[0] = nil // what it holds on to can go
	j.queue = j.queue[1:]
	return call
}

// flush waits until every call is made, for journalGrace at most.
func (j *journal) flush() {
	j.mu.Lock()
	idle := j.idle
	j.mu.Unlock()
	if idle == nil {
		return
	}
	limit := time.NewTimer(journalGrace)
	defer limit.Stop()
	select {
	case <-idle:
	case <-limit.C:
	}
}

// caught logs the panic of a function of an observer. It is to be deferred.
func (j *journal) caught(function string) {
	if panicked := recover(); panicked != nil {
		j.log(slog.LevelError, "a function of the observer has panicked",
			slog.String("function", function), slog.String("panic", fmt.Sprint(panicked)))
	}
}
