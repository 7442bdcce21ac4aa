// Package lockhttp answers HTTP requests under a lock. It has a middleware that locks a path taken from the request, and the
// status that tells the client what happened with the lock. It needs only the standard library.
//
//	ship := lockhttp.Middleware{
//		Locks:   locks, // a *lockregistry.Registry
//		Path:    func(r *http.Request) string { return "order:" + r.PathValue("id") },
//		Options: []lockregistry.LockOption{lockregistry.Wait(time.Second)},
//	}
//	mux.Handle("POST /orders/{id}/ship", ship.Handler(shipOrder))
//
// Handler works with every router that takes func(http.Handler) http.Handler, such as chi, and with Echo through its
// WrapMiddleware.
package lockhttp

import (
	"bufio"
	"context"
	"errors"
	"net"
	"net/http"
	"slices"

	"github.com/lockregistry/lockregistry"
)

// Status is the HTTP status that tells a client what an error of a lock means for its request:
//
//   - 200 for nil
//   - 409 Conflict for [lockregistry.ErrTaken]: another owner had the lock until the call's wait was over
//   - 503 Service Unavailable for [lockregistry.ErrUnavailable], [lockregistry.ErrClosed] and [lockregistry.ErrCapacity], and
//     when the context of a call that locks has ended: nothing was done, and the same request may succeed later
//   - 500 Internal Server Error for all other errors
//
// # Details
//
// Errors of Unlock, Release and Renew are 500, even ErrUnavailable. They occur once the work has begun or is done, so a client
// must not be told to send the request again. [lockregistry.ErrLockLost] is 500, since another owner may have worked at the same
// time. A joined error, as Do returns it, has the status of its [lockregistry.LockError]. If it has several, 500 comes first: for
// instance when the lock of a nested call was taken, and the outer lock could not be released.
func Status(err error) int {
	var failed *lockregistry.LockError
	is := errors.As(err, &failed)
	switch {
	case err == nil:
		return http.StatusOK
	case held(err), errors.Is(err, lockregistry.ErrLockLost):
		return http.StatusInternalServerError
	case errors.Is(err, lockregistry.ErrUnavailable), errors.Is(err, lockregistry.ErrClosed),
		errors.Is(err, lockregistry.ErrCapacity):
		return http.StatusServiceUnavailable // before ErrTaken: an error may match several
	case errors.Is(err, lockregistry.ErrTaken):
		return http.StatusConflict
	case is && (errors.Is(failed, context.DeadlineExceeded) || errors.Is(failed, context.Canceled)):
		return http.StatusServiceUnavailable
	default:
		return http.StatusInternalServerError
	}
}

// held reports whether there is an error of a call about a lock that the caller had, among those that err joins or wraps.
func held(err error) bool {
	if failed, is := err.(*lockregistry.LockError); is { //nolint:errorlint // it looks at each
		return failed.Op == "unlock" || failed.Op == "release" || failed.Op == "renew"
	}
	switch err := err.(type) { //nolint:errorlint // the same
	case interface{ Unwrap() error }:
		return held(err.Unwrap())
	case interface{ Unwrap() []error }:
		return slices.ContainsFunc(err.Unwrap(), held)
	default:
		return false
	}
}

// Error answers a request with the [Status] of an error and a line of text that names neither the lock nor the server. With 503,
// it asks the client to try again after a second. Like [http.Error], it does not end the request.
func Error(w http.ResponseWriter, err error) {
	status, text := Status(err), "internal error"
	switch status {
	case http.StatusOK:
		w.WriteHeader(status)
		return
	case http.StatusConflict:
		text = "another request is working on this"
	case http.StatusServiceUnavailable:
		text = "try again"
		w.Header().Set("Retry-After", "1")
	}
	http.Error(w, text, status)
}

// Locks is what a [Middleware] uses of a [lockregistry.Registry].
type Locks interface {
	Acquire(ctx context.Context, path string, opts ...lockregistry.LockOption) (*lockregistry.Hold, error)
}

// Middleware makes handlers work under a lock. Its fields must not change once it is in use.
type Middleware struct {
	// Locks is the registry. Required.
	Locks Locks

	// Path returns the lock's path for a request. A request with an empty path is served without a lock. Required.
	Path func(*http.Request) string

	// Options are those of [lockregistry.Registry.Acquire]. Without Wait and NoWait, a request waits until its context ends.
	// That may be long after the client has given up: with HTTP/1, net/http notices this only once the request's body has been
	// read. So set [lockregistry.Wait].
	Options []lockregistry.LockOption

	// Failed gets each error, before the answer if there is none yet, and may log it. Optional.
	Failed func(r *http.Request, err error)
}

// Handler returns a handler that acquires the lock, has next serve the request, and releases the lock. If the lock cannot be
// acquired, next does not run, and the client gets the answer of [Error].
//
// Next gets the request with [lockregistry.Hold.Context]: the context ends with the request, and with the cause
// [lockregistry.ErrLockLost] as soon as the lock is lost. The lock is renewed until next returns, as after Acquire.
//
// # Details
//
// If the lock is lost before next has begun to answer, the client gets 500, and anything that next writes after that is dropped:
// Write returns an error that matches ErrLockLost. In the 500, the headers Cache-Control, Content-Encoding, ETag and
// Last-Modified are what they were before next ran. An answer that has begun cannot be taken back. So a handler should do its
// work before it answers.
//
// If a handler writes nothing, and so answers 200, its lock is released before the answer, so that a loss which only Redis knows
// about is also found in time. Some routers, such as Echo, answer on behalf of a handler that returned an error, and do so after
// the middleware has returned. Their answer is the same as without the middleware, unless the lock was lost.
//
// If the release fails for any other reason, the work is done, and the answer stays as it is.
//
// Put [http.TimeoutHandler] around this handler, not inside it: a TimeoutHandler may return while the handler in it is still at
// work, and the lock would be released.
func (m Middleware) Handler(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		path := m.Path(r)
		if path == "" {
			next.ServeHTTP(w, r)
			return
		}
		hold, err := m.Locks.Acquire(r.Context(), path, m.Options...)
		if err != nil {
			m.fail(r, err)
			Error(w, err)
			return
		}
		answer := &answer{ResponseWriter: w, hold: hold, ctx: r.Context()}
		for i, name := range aboutBody {
			answer.given[i] = w.Header()[name]
		}
		defer func() {
			if !answer.released { // next has panicked, or a method of the request's context
				if err := answer.release(); err != nil {
					m.fail(r, err)
				}
			}
		}()
		answer.ctx = hold.Context(answer.ctx)
		next.ServeHTTP(answer, r.WithContext(answer.ctx))
		lost := answer.lost()
		err = answer.release()
		if err == nil {
			err = lost // a handler may have outlived a hold that was released meanwhile
		}
		if err == nil {
			return
		}
		m.fail(r, err)
		if !answer.begun && errors.Is(err, lockregistry.ErrLockLost) {
			answer.refuse(err)
		}
	})
}

func (m Middleware) fail(r *http.Request, err error) {
	if m.Failed != nil {
		m.Failed(r, err)
	}
}

// answer looks at the lock before an answer begins. One goroutine uses it, as all ResponseWriters.
type answer struct {
	http.ResponseWriter

	hold     *lockregistry.Hold
	ctx      context.Context          //nolint:containedctx // of the request that it answers, then of the hold
	released bool                     // Release was called: what is written now comes from outside the middleware
	begun    bool                     // the status is sent
	refused  error                    // why it was 500
	given    [len(aboutBody)][]string // what these headers were before next ran
}

// aboutBody are the headers that would be wrong with a 500: caches may keep it, or clients may take its text for compressed.
// Those that were given before next ran stay, since a handler around the middleware may compress what it is given.
var aboutBody = [...]string{"Cache-Control", "Content-Encoding", "Etag", "Last-Modified"}

// Unwrap is for [http.ResponseController].
func (a *answer) Unwrap() http.ResponseWriter { return a.ResponseWriter }

func (a *answer) release() error {
	a.released = true
	return a.hold.Release(context.WithoutCancel(a.ctx)) //nolint:wrapcheck // a LockError
}

// refuse answers 500. What is written later is dropped.
func (a *answer) refuse(err error) {
	a.begun, a.refused = true, err
	for i, name := range aboutBody {
		if a.Header().Del(name); a.given[i] != nil {
			a.Header()[name] = a.given[i]
		}
	}
	Error(a.ResponseWriter, err)
}

// lost is why the lock is lost, if it is. A lock that is released cannot be lost, although its context has ended.
func (a *answer) lost() error {
	if !a.released && a.ctx.Err() != nil {
		if cause := context.Cause(a.ctx); errors.Is(cause, lockregistry.ErrLockLost) {
			return cause
		}
		if a.hold.Remaining() == 0 { // the request's context ended before, and has the other cause
			return lockregistry.ErrLockLost
		}
	}
	return nil
}

func (a *answer) WriteHeader(status int) {
	const firstFinal = 200
	switch {
	case a.begun, status < firstFinal && status != http.StatusSwitchingProtocols:
	default:
		if err := a.lost(); err != nil {
			a.refuse(err)
		}
		a.begun = true
	}
	if a.refused == nil {
		a.ResponseWriter.WriteHeader(status)
	}
}

func (a *answer) Write(p []byte) (int, error) {
	if !a.begun {
		a.WriteHeader(http.StatusOK)
	}
	if a.refused != nil {
		return 0, a.refused
	}
	return a.ResponseWriter.Write(p) //nolint:wrapcheck // the error of net/http
}

// FlushError begins the answer.
func (a *answer) FlushError() error {
	if !a.begun {
		a.WriteHeader(http.StatusOK)
	}
	return http.NewResponseController(a.ResponseWriter).Flush() //nolint:wrapcheck // the error of net/http
}

// Flush is FlushError for code that looks for an [http.Flusher].
func (a *answer) Flush() { _ = a.FlushError() }

// Hijack is for an [http.Hijacker]. With the connection next takes over the answer, unless the lock is lost.
func (a *answer) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	if err := a.lost(); err != nil && !a.begun {
		a.refuse(err)
	}
	if a.refused != nil {
		return nil, nil, a.refused
	}
	conn, buffer, err := http.NewResponseController(a.ResponseWriter).Hijack()
	a.begun = a.begun || err == nil
	return conn, buffer, err //nolint:wrapcheck // the error of net/http
}
