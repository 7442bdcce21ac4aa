package lockregistry

import (
	"context"
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
	batch   []func()      // to be called next
	queue   []func()      // to be called after batch; no more than backlog
	dropped int           // since queue was full
	idle    chan struct{} // closed when the goroutine has made every call; nil when there is none
}

const (
	backlog      = 1024                   // calls that may wait; as many again may be in the batch
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
	if len(j.queue) == backlog {
		j.dropped++
		return
	}
	j.queue = append(j.queue, call)
	if j.idle == nil {
		j.idle = make(chan struct{})
		go j.run()
	}
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
	if len(j.batch) == 0 {
		j.batch, j.queue = j.queue, nil
		if n := j.dropped; n > 0 { // they came after what was in the queue
			j.dropped = 0
			line := slog.NewRecord(time.Now(), slog.LevelWarn, "log lines dropped: the handler did not keep up", 0)
			line.AddAttrs(slog.Int("lines", n))
			j.batch = append(j.batch, func() { j.write(line) })
		}
	}
	if len(j.batch) == 0 {
		close(j.idle)
		j.idle = nil
		return nil
	}
	call := j.batch[0]
	j.batch[0] = nil
	j.batch = j.batch[1:]
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
