package http_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"net/textproto"
	"runtime"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry"
	"github.com/lockregistry/lockregistry/inspect"
	"github.com/lockregistry/lockregistry/lockhttp"
	"github.com/lockregistry/lockregistry/locktest"
)

func TestStatus(t *testing.T) {
	t.Parallel()
	of := func(op string, err error) error { return &lockregistry.LockError{Op: op, Key: "orders:42", Err: err} }
	for name, c := range map[string]struct {
		err  error
		want int
	}{
		"no error":                     {nil, 200},
		"taken":                        {of("acquire", lockregistry.ErrTaken), 409},
		"taken, wrapped":               {fmt.Errorf("shipping: %w", of("do", lockregistry.ErrTaken)), 409},
		"no answer":                    {of("acquire", lockregistry.ErrUnavailable), 503},
		"no answer until the deadline": {of("lock", errors.Join(context.DeadlineExceeded, lockregistry.ErrUnavailable)), 503},
		"taken until the deadline":     {of("lock", context.DeadlineExceeded), 503},
		"the client is gone":           {of("acquire", context.Canceled), 503},
		"closed":                       {of("acquire", lockregistry.ErrClosed), 503},
		"too many locks":               {of("acquire", lockregistry.ErrCapacity), 503},
		"a deadlock":                   {of("lock", lockregistry.ErrDeadlock), 500},
		"lost":                         {of("unlock", lockregistry.ErrLockLost), 500},
		"lost, by a context's cause":   {lockregistry.ErrLockLost, 500},
		"no answer to the unlock":      {of("unlock", lockregistry.ErrUnavailable), 500},
		"no answer to the release":     {of("release", lockregistry.ErrUnavailable), 500},
		"the work and the unlock fail": {errors.Join(io.ErrUnexpectedEOF, of("unlock", lockregistry.ErrUnavailable)), 500},
		"no answer to a renewal":       {of("renew", lockregistry.ErrUnavailable), 500},
		"the deadline of a renewal":    {of("renew", context.DeadlineExceeded), 500},
		"a nested lock is taken":       {fmt.Errorf("shipping: %w", errors.Join(of("do", lockregistry.ErrTaken), nil)), 409},
		"no answer to both": {
			fmt.Errorf("shipping: %w", errors.Join(of("do", lockregistry.ErrUnavailable), of("unlock", lockregistry.ErrUnavailable))), 500,
		},
		"the work's own deadline": {context.DeadlineExceeded, 500},
		"another error":           {io.ErrUnexpectedEOF, 500},
	} {
		require.Equal(t, c.want, lockhttp.Status(c.err), name)
	}
}

func TestError(t *testing.T) {
	t.Parallel()
	for err, want := range map[error][3]string{
		nil:                         {"200", "", ""},
		lockregistry.ErrTaken:       {"409", "", "another request is working on this\n"},
		lockregistry.ErrUnavailable: {"503", "1", "try again\n"},
		lockregistry.ErrLockLost:    {"500", "", "internal error\n"},
	} {
		answer := httptest.NewRecorder()
		lockhttp.Error(answer, err)
		require.Equal(t, want, [3]string{
			strconv.Itoa(answer.Code), answer.Header().Get("Retry-After"), answer.Body.String(),
		}, "%v", err)
	}
}

// served is a middleware on a test registry, with what it has told Failed.
type served struct {
	*locktest.Registry

	t      *testing.T
	failed []error
	m      lockhttp.Middleware
}

func newServed(t *testing.T, opts ...lockregistry.LockOption) *served {
	t.Helper()
	s := &served{Registry: locktest.New(t), t: t}
	s.m = lockhttp.Middleware{
		Locks:   s.Registry,
		Path:    func(r *http.Request) string { return r.URL.Query().Get("order") },
		Options: opts,
		Failed:  func(_ *http.Request, err error) { s.failed = append(s.failed, err) },
	}
	return s
}

// ask has a handler serve a request about order 42, or with another query.
func (s *served) ask(next http.HandlerFunc, query ...string) *httptest.ResponseRecorder {
	s.t.Helper()
	target := "/ship?order=42"
	if len(query) > 0 {
		target = "/ship?" + query[0]
	}
	answer := httptest.NewRecorder()
	s.m.Handler(next).ServeHTTP(answer, httptest.NewRequestWithContext(s.t.Context(), http.MethodPost, target, nil))
	return answer
}

func unexpected(http.ResponseWriter, *http.Request) { panic("the handler runs") }

func TestMiddleware_TheHandlerHasTheLock(t *testing.T) {
	t.Parallel()
	s := newServed(t)
	answer := s.ask(func(w http.ResponseWriter, r *http.Request) {
		assert.True(t, s.Obtain("42").IsHeld())
		assert.NoError(t, r.Context().Err())
		_, err := s.Acquire(r.Context(), "42", lockregistry.NoWait())
		assert.ErrorIs(t, err, lockregistry.ErrDeadlock, "the context carries the hold")
		w.Header().Set("Location", "/orders/42")
		w.WriteHeader(http.StatusCreated)
		_, err = io.WriteString(w, "shipped")
		assert.NoError(t, err)
	})
	require.Equal(t, http.StatusCreated, answer.Code)
	require.Equal(t, "/orders/42", answer.Header().Get("Location"))
	require.Equal(t, "shipped", answer.Body.String())
	require.False(t, s.Obtain("42").IsHeld())
	require.Empty(t, s.failed)
}

func TestMiddleware_WithoutAPathThereIsNoLock(t *testing.T) {
	t.Parallel()
	s := newServed(t)
	answer := s.ask(func(w http.ResponseWriter, _ *http.Request) {
		assert.False(t, s.Obtain("42").IsHeld())
		w.WriteHeader(http.StatusAccepted)
	}, "")
	require.Equal(t, http.StatusAccepted, answer.Code)
}

func TestMiddleware_Taken(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) { // a busy machine would answer late
		s := newServed(t, lockregistry.Wait(time.Second))
		defer s.HoldElsewhere("42", time.Minute)()
		require.Equal(t, http.StatusConflict, s.ask(unexpected).Code)
		require.Len(t, s.failed, 1)
		require.ErrorIs(t, s.failed[0], lockregistry.ErrTaken)
	})
}

func TestMiddleware_Unavailable(t *testing.T) {
	t.Parallel()
	s := newServed(t)
	require.NoError(t, s.Close())
	answer := s.ask(unexpected)
	require.Equal(t, http.StatusServiceUnavailable, answer.Code)
	require.Equal(t, "1", answer.Header().Get("Retry-After"))
}

// The handler learns of the loss, and so does the client, unless the response has begun.
func TestMiddleware_TheLockIsLostBeforeTheAnswer(t *testing.T) {
	t.Parallel()
	for name, write := range map[string]func(w http.ResponseWriter) error{
		"a status": func(w http.ResponseWriter) error {
			w.WriteHeader(http.StatusCreated)
			return lockregistry.ErrLockLost
		},
		"a text": func(w http.ResponseWriter) error {
			_, err := io.WriteString(w, "shipped")
			return err
		},
		"nothing": func(http.ResponseWriter) error { return lockregistry.ErrLockLost },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newServed(t)
			answer := s.ask(func(w http.ResponseWriter, r *http.Request) {
				s.Lose("42")
				assert.ErrorIs(t, context.Cause(r.Context()), lockregistry.ErrLockLost)
				assert.ErrorIs(t, write(w), lockregistry.ErrLockLost)
			})
			require.Equal(t, http.StatusInternalServerError, answer.Code)
			require.Equal(t, "internal error\n", answer.Body.String())
			require.Len(t, s.failed, 1)
			assert.ErrorIs(t, s.failed[0], lockregistry.ErrLockLost)
		})
	}
}

// Headers that the handler has set for another answer are not those of the 500. Those from outside stay.
func TestMiddleware_TheHeadersOfALoss(t *testing.T) {
	t.Parallel()
	s := newServed(t)
	inner := s.m.Handler(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		for _, name := range []string{"Cache-Control", "Content-Encoding", "ETag", "Last-Modified", "Location"} {
			w.Header().Set(name, "inner")
		}
		s.Lose("42")
		w.WriteHeader(http.StatusCreated)
	}))
	answer := httptest.NewRecorder()
	answer.Header().Set("Content-Encoding", "outer")
	inner.ServeHTTP(answer, httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/ship?order=42", nil))
	require.Equal(t, http.StatusInternalServerError, answer.Code)
	got := answer.Result().Header
	require.Equal(t, "outer", got.Get("Content-Encoding"))
	require.Equal(t, "inner", got.Get("Location"))
	for _, name := range []string{"Cache-Control", "ETag", "Last-Modified"} {
		require.Empty(t, got.Values(name), name)
	}
}

// Net/http notices that a client has gone once the body has been read, and a request that waits has not read it.
func TestMiddleware_TheClientIsGone(t *testing.T) {
	t.Parallel()
	for request, ends := range map[string]error{
		"GET /ship?order=42 HTTP/1.1\r\nHost: shop\r\n\r\n":                                  context.Canceled,
		"POST /ship?order=42 HTTP/1.1\r\nHost: shop\r\nContent-Length: 10\r\n\r\n0123456789": lockregistry.ErrTaken,
	} {
		synctest.Test(t, func(t *testing.T) {
			s, failed := newServed(t, lockregistry.Wait(time.Minute)), make(chan error, 1)
			s.m.Failed = func(_ *http.Request, err error) { failed <- err }
			defer s.HoldElsewhere("42", 10*time.Minute)()
			ours, theirs := net.Pipe()
			conns := make(chan net.Conn, 1)
			conns <- theirs
			server := &http.Server{Handler: s.m.Handler(http.HandlerFunc(unexpected)), ReadHeaderTimeout: time.Hour}
			served := make(chan error, 1)
			go func() { served <- server.Serve(piped(conns)) }()
			_, err := io.WriteString(ours, request)
			require.NoError(t, err)
			synctest.Wait()
			require.NoError(t, ours.Close())
			began := time.Now()
			require.ErrorIs(t, <-failed, ends)
			require.Equal(t, errors.Is(ends, lockregistry.ErrTaken), time.Since(began) >= time.Minute)
			require.NoError(t, server.Close())
			require.ErrorIs(t, <-served, http.ErrServerClosed)
		})
	}
}

// piped is a listener for connections within the process. It is closed once.
type piped chan net.Conn

func (p piped) Accept() (net.Conn, error) {
	if conn, open := <-p; open {
		return conn, nil
	}
	return nil, net.ErrClosed
}

func (p piped) Close() error {
	close(p)
	return nil
}

func (p piped) Addr() net.Addr { return &net.UnixAddr{Name: "piped", Net: "unix"} }

func TestMiddleware_TheLockIsLostAfterTheAnswer(t *testing.T) {
	t.Parallel()
	s := newServed(t)
	answer := s.ask(func(w http.ResponseWriter, _ *http.Request) {
		_, err := io.WriteString(w, "shipped")
		assert.NoError(t, err)
		s.Lose("42")
		_, err = io.WriteString(w, "!")
		assert.NoError(t, err, "it cannot be taken back")
	})
	require.Equal(t, http.StatusOK, answer.Code)
	require.Equal(t, "shipped!", answer.Body.String())
	require.Len(t, s.failed, 1, "but it is told")
	require.ErrorIs(t, s.failed[0], lockregistry.ErrLockLost)
}

// Only Redis knows of the loss: the client gets status 500 if the handler has not responded yet.
func TestMiddleware_TheReleaseFindsTheLoss(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		answers bool
		want    int
	}{"no answer yet": {false, 500}, "an answer": {true, 201}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newServed(t)
			elsewhere := s.Peer()
			answer := s.ask(func(w http.ResponseWriter, r *http.Request) {
				assert.NoError(t, inspect.Of(elsewhere.Registry).ForceUnlock(r.Context(), "42"))
				assert.NoError(t, r.Context().Err(), "nothing here knows")
				if c.answers {
					w.WriteHeader(http.StatusCreated)
				}
			})
			require.Equal(t, c.want, answer.Code)
			require.Len(t, s.failed, 1)
			assert.ErrorIs(t, s.failed[0], lockregistry.ErrLockLost)
		})
	}
}

func TestMiddleware_APanicReleases(t *testing.T) {
	t.Parallel()
	s := newServed(t)
	require.PanicsWithValue(t, "of the handler", func() {
		s.ask(func(http.ResponseWriter, *http.Request) { panic("of the handler") })
	})
	require.False(t, s.Obtain("42").IsHeld())
	require.Equal(t, http.StatusOK, s.ask(func(http.ResponseWriter, *http.Request) {}).Code)
}

// bomb is a context one of whose method calls panics in the goroutine that serves a request.
type bomb struct {
	context.Context
	left *atomic.Int32 // calls until the panic; 0: none panics
}

func (b bomb) count() {
	var stack [64]uintptr
	frames := runtime.CallersFrames(stack[:runtime.Callers(2, stack[:])])
	for more := true; more; {
		var f runtime.Frame
		if f, more = frames.Next(); strings.Contains(f.Function, "Middleware.Handler.") && b.left.Add(-1) == 0 {
			panic("a method of the context")
		}
	}
}

func (b bomb) Deadline() (time.Time, bool) { b.count(); return b.Context.Deadline() }
func (b bomb) Done() <-chan struct{}       { b.count(); return b.Context.Done() }
func (b bomb) Err() error                  { b.count(); return b.Context.Err() }
func (b bomb) Value(key any) any           { b.count(); return b.Context.Value(key) }

// Wherever a method of the request's context panics, which other middleware may have made, the lock is free afterwards.
func TestMiddleware_ContextThatPanics(t *testing.T) {
	t.Parallel()
	s := newServed(t)
	places := 0
	for n, ended := int32(0), false; !ended; n++ { // until no more calls are made
		left := new(atomic.Int32)
		left.Store(n)
		func() {
			defer func() { _ = recover() }()
			request := httptest.NewRequestWithContext(bomb{t.Context(), left}, http.MethodPost, "/ship?order=42", nil)
			s.m.Handler(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) })).
				ServeHTTP(httptest.NewRecorder(), request)
		}()
		if ended = left.Load() > 0; !ended {
			places++
		}
		hold, err := s.Acquire(t.Context(), "42", lockregistry.Wait(20*time.Second))
		require.NoError(t, err, "after call %d", n)
		require.NoError(t, hold.Release(t.Context()))
	}
	require.Greater(t, places, 5)
}

// What net/http's ResponseWriters offer besides is still there.
func TestMiddleware_Flush(t *testing.T) {
	t.Parallel()
	s := newServed(t)
	answer := s.ask(func(w http.ResponseWriter, _ *http.Request) {
		assert.NoError(t, http.NewResponseController(w).Flush())
		flusher, is := w.(http.Flusher)
		assert.True(t, is)
		flusher.Flush()
		s.Lose("42")
	})
	require.True(t, answer.Flushed)
	require.Equal(t, http.StatusOK, answer.Code, "it has begun")

	lost := s.ask(func(w http.ResponseWriter, _ *http.Request) {
		s.Lose("42")
		assert.NoError(t, http.NewResponseController(w).Flush())
	})
	require.Equal(t, http.StatusInternalServerError, lost.Code)
}

// A handler that takes over the connection writes the response itself, even if the lock is lost afterwards.
func TestMiddleware_Hijack(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		lose func(s *served, step string)
		want string
	}{
		"it has the lock": {func(*served, string) {}, "mine"},
		"lost afterwards": {func(s *served, step string) {
			if step == "after" {
				s.Lose("42")
			}
		}, "mine"},
		"lost before": {func(s *served, step string) {
			if step == "before" {
				s.Lose("42")
			}
		}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newServed(t)
			taken, own := &hijacked{ResponseRecorder: httptest.NewRecorder()}, ""
			s.m.Handler(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				c.lose(s, "before")
				hijacker, is := w.(http.Hijacker)
				assert.True(t, is)
				if _, _, err := hijacker.Hijack(); err != nil {
					assert.ErrorIs(t, err, lockregistry.ErrLockLost)
					return
				}
				own = "mine"
				c.lose(s, "after")
			})).ServeHTTP(taken, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/ship?order=42", nil))
			require.Equal(t, c.want, own)
			if own == "" {
				require.Equal(t, http.StatusInternalServerError, taken.Code)
				return
			}
			require.Equal(t, 1, taken.times)
			require.Empty(t, taken.Body.String(), "nothing is written to a connection that is the handler's")
		})
	}
}

// hijacked is a ResponseWriter whose connection a handler may take over.
type hijacked struct {
	*httptest.ResponseRecorder

	times int
}

func (h *hijacked) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	h.times++
	return nil, nil, nil
}

// Early hints do not begin the response.
func TestMiddleware_EarlyHints(t *testing.T) {
	t.Parallel()
	s := newServed(t)
	server := httptest.NewServer(s.m.Handler(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusEarlyHints)
		s.Lose("42")
		w.WriteHeader(http.StatusCreated)
	})))
	defer server.Close()
	hints := 0
	ctx := httptrace.WithClientTrace(t.Context(), &httptrace.ClientTrace{Got1xxResponse: func(int, textproto.MIMEHeader) error {
		hints++
		return nil
	}})
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, server.URL+"/ship?order=42", nil)
	require.NoError(t, err)
	answer, err := server.Client().Do(request)
	require.NoError(t, err)
	require.NoError(t, answer.Body.Close())
	require.Equal(t, 1, hints)
	require.Equal(t, http.StatusInternalServerError, answer.StatusCode)
}

// If the request's context ends first, its cause stays. The loss is found all the same.
func TestMiddleware_TheRequestEndsBeforeTheLock(t *testing.T) {
	t.Parallel()
	s := newServed(t)
	ctx, cancel := context.WithCancel(t.Context())
	handler := s.m.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		cancel()
		<-r.Context().Done()
		s.Lose("42")
		w.WriteHeader(http.StatusCreated)
	}))
	answer := httptest.NewRecorder()
	handler.ServeHTTP(answer, httptest.NewRequestWithContext(ctx, http.MethodPost, "/ship?order=42", nil))
	require.Equal(t, http.StatusInternalServerError, answer.Code)
}

// Echo responds to an error of its handler after the middleware has returned, with the writer that the handler had. By then the
// lock is released, and not lost.
func TestMiddleware_AnAnswerAfterTheRelease(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		lose func(s *served, r *http.Request)
		want int
	}{
		"released": {func(*served, *http.Request) {}, 404},
		"lost":     {func(s *served, _ *http.Request) { s.Lose("42") }, 500},
		"lost, as the release finds": {func(s *served, r *http.Request) {
			assert.NoError(t, inspect.Of(s.Peer().Registry).ForceUnlock(r.Context(), "42"))
		}, 500},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newServed(t)
			var inside http.ResponseWriter
			answer := s.ask(func(w http.ResponseWriter, r *http.Request) {
				inside = w
				c.lose(s, r)
			})
			inside.WriteHeader(http.StatusNotFound)
			_, err := io.WriteString(inside, "no such order\n")
			require.Equal(t, c.want, answer.Code)
			if c.want == http.StatusNotFound {
				require.NoError(t, err)
				require.Equal(t, "no such order\n", answer.Body.String())
				require.Empty(t, s.failed)
			} else {
				require.ErrorIs(t, err, lockregistry.ErrLockLost)
				require.Equal(t, "internal error\n", answer.Body.String())
				require.Len(t, s.failed, 1)
			}
		})
	}
}
