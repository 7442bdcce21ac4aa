// Package dispatch makes calls of user code that must not delay anything: lines for a log handler, and functions of an
// observer. It knows nothing about locks.
package dispatch

import (
	"context"
	"fmt"
	"log/slog"
	"runtime"
	"sync"
	"time"

	"github.com/lockregistry/lockregistry/internal/clock"
)

// Queue calls a log handler or an observer, which may block forever or panic. One goroutine makes the calls in order, without a
// mutex; it exists only while there are calls. So logging never blocks, and may be done with a mutex held. The queue may be
// full because a call does not return. Then further calls are dropped and counted, and the count is logged once the calls go
// on.
//
// The zero Queue is silent: it allocates nothing and starts no goroutine.
type Queue struct {
	Handler slog.Handler // nil: no log; not changed after the first call

	mu      sync.Mutex
	queue   []func()
	dropped int           // how many calls were dropped; unless 0, the line that says so is in the queue
	idle    chan struct{} // closed when the goroutine has made every call; nil without a goroutine
}

const (
	backlog = 1024                   // calls that may wait
	grace   = 100 * time.Millisecond // how long Flush waits for them
)

// Log queues a line, unless there is no handler. The goroutine asks the handler whether it is enabled, since that is user code,
// too. Lines are rare (a loss, a change), so an unwanted line may take a place for a moment.
func (q *Queue) Log(level slog.Level, message string, attrs ...slog.Attr) {
	if q.Handler == nil {
		return
	}
	var caller [1]uintptr
	runtime.Callers(2, caller[:]) // past Callers and Log
	line := slog.NewRecord(time.Now(), level, message, caller[0])
	line.AddAttrs(attrs...)
	q.Put(func() { q.write(line) })
}

// write makes the handler write a line, in the goroutine.
func (q *Queue) write(line slog.Record) {
	ctx := context.Background()
	if q.Handler != nil && q.Handler.Enabled(ctx, line.Level) {
		_ = q.Handler.Handle(ctx, line) // nowhere to report it
	}
}

// Put queues a call, or drops it.
func (q *Queue) Put(call func()) {
	q.mu.Lock()
	defer q.mu.Unlock()
	room := backlog
	if q.dropped > 0 {
		room++ // for the line that says so
	}
	if len(q.queue) < room {
		q.queue = append(q.queue, call)
	} else if q.dropped++; q.dropped == 1 {
		q.queue = append(q.queue, q.tellDropped)
	}
	if q.idle == nil {
		q.idle = make(chan struct{})
		go q.run()
	}
}

// tellDropped logs how many calls were dropped. In the queue it stands where the first of them would have been.
func (q *Queue) tellDropped() {
	q.mu.Lock()
	n := q.dropped
	q.dropped = 0
	q.mu.Unlock()
	line := slog.NewRecord(time.Now(), slog.LevelWarn, "log lines dropped: the handler did not keep up", 0)
	line.AddAttrs(slog.Int("lines", n))
	q.write(line)
}

// run is the goroutine. If a call panics, or ends its goroutine, another goroutine goes on.
func (q *Queue) run() {
	finished := false
	defer func() {
		if !finished {
			_ = recover() // a panic of user code must not end the program
			go q.run()
		}
	}()
	for call := q.next(); call != nil; call = q.next() {
		call()
	}
	finished = true
}

// next takes the next call; nil if there is none: then the goroutine ends.
func (q *Queue) next() func() {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.queue) == 0 {
		close(q.idle)
		q.idle, q.queue = nil, nil
		return nil
	}
	call := q.queue[0]
	q.queue[0] = nil // releases what it refers to
	q.queue = q.queue[1:]
	return call
}

// Flush waits until every call is made, for a tenth of a second at most.
func (q *Queue) Flush() {
	q.mu.Lock()
	idle := q.idle
	q.mu.Unlock()
	if idle != nil {
		clock.Await(idle, grace)
	}
}

// Caught recovers and logs the panic of an observer's function. It must be deferred.
func (q *Queue) Caught(function string) {
	if panicked := recover(); panicked != nil {
		q.Log(slog.LevelError, "a function of the observer panicked",
			slog.String("function", function), slog.String("panic", fmt.Sprint(panicked)))
	}
}
