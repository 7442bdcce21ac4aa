package page_test

import (
	"bytes"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry/cmd/lockreg/page"
)

const (
	lookToken    = "00112233445566778899aabbccddeeff"
	releaseToken = "ffeeddccbbaa99887766554433221100"
)

type answered struct{ *httptest.ResponseRecorder }

func (a answered) code() int    { return a.Code }
func (a answered) body() string { return a.Body.String() }

// request asks a page as its own script would. Text after the URL is the body, of a POST.
func request(h http.Handler, method, url string, changes ...any) answered {
	body := ""
	for _, change := range changes {
		if text, ok := change.(string); ok {
			body = text
		}
	}
	r := httptest.NewRequest(method, url, strings.NewReader(body))
	r.Host = "localhost:8080"
	if method == http.MethodPost {
		r.Header.Set("Content-Type", "application/json")
		r.Header.Set("Lockreg-Request", "1")
		r.Header.Set("Sec-Fetch-Site", "same-origin")
	}
	for _, change := range changes {
		if f, ok := change.(func(*http.Request)); ok {
			f(r)
		}
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return answered{w}
}

func with(name, value string) func(*http.Request) {
	return func(r *http.Request) { r.Header.Set(name, value) }
}

func host(name string) func(*http.Request) {
	return func(r *http.Request) { r.Host = name }
}

// signIn returns what adds the cookie of a token to a request.
func signIn(t *testing.T, h http.Handler, token string) func(*http.Request) {
	t.Helper()
	answer := request(h, "POST", "/login", `{"token":"`+token+`"}`)
	require.Equal(t, http.StatusOK, answer.code(), answer.body())
	cookies := answer.Result().Cookies()
	require.Len(t, cookies, 1)
	return func(r *http.Request) { r.AddCookie(cookies[0]) }
}

func everybody(*http.Request) (string, bool) { return "somebody", true }

const releaseOfA = `{"path":"a","holder":"r1:17","reason":"host is gone"}`

func TestHeaders(t *testing.T) {
	t.Parallel()
	h := newPage(t, newFake(), page.WithHosts(), page.WithTokens(lookToken, "", false))
	for _, url := range []string{"/", "/app.js", "/style.css", "/login", "/events", "/lock?path=a", "/nothing"} {
		for _, name := range []string{"localhost", "elsewhere.example"} {
			header := request(h, "GET", url, host(name)).Header()
			assert.Equal(t, "default-src 'self'; frame-ancestors 'none'; base-uri 'none'", header.Get("Content-Security-Policy"), url)
			assert.Equal(t, "nosniff", header.Get("X-Content-Type-Options"), url)
			assert.Equal(t, "no-referrer", header.Get("Referrer-Policy"), url)
			assert.Equal(t, "no-store", header.Get("Cache-Control"), url)
		}
	}
}

// The policy forbids what is inline, so a page that has some would not work; a browser says so only in its console.
func TestNothingIsInline(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"index.html", "login.html", "icon.svg"} {
		text, err := os.ReadFile("assets/" + name)
		require.NoError(t, err)
		own := strings.ReplaceAll(string(text), `<a href="https://github.com/lockregistry/`, "") // a link loads nothing
		assert.NotRegexp(t, `(?i)\son\w+=|style=|<style|javascript:|<script[^>]*>[^<]|https?://[^w]`, own, name)
	}
	scripts, err := filepath.Glob("assets/*.js")
	require.NoError(t, err)
	require.Greater(t, len(scripts), 2)
	for _, name := range scripts {
		text, err := os.ReadFile(name)
		require.NoError(t, err)
		assert.NotRegexp(t, `innerHTML|outerHTML|insertAdjacentHTML|document\.write`, string(text), name)
		assert.NotRegexp(t, `\beval\b|new Function|setAttribute\("(style|on)`, string(text), name)
	}
}

func TestHosts(t *testing.T) {
	t.Parallel()
	h := newPage(t, newFake(), page.WithHosts("10.1.2.3", "Locks.Example", "2001:db8::1"))
	for name, want := range map[string]int{
		"localhost": 200, "localhost:8080": 200, "LOCALHOST.": 200, "127.0.0.1:8080": 200, "127.9.9.9": 200, "[::1]:8080": 200,
		"10.1.2.3": 200, "10.1.2.3:8080": 200, "locks.example:443": 200, "[2001:db8::1]:8080": 200, "[2001:db8::1]": 200,
		"": 421, "10.1.2.4": 421, "evil.example": 421, "localhost.evil.example": 421, "locks.example.evil": 421,
		"127.0.0.1.evil.example:8080": 421, "0.0.0.0:8080": 421, "[::]": 421,
	} {
		for _, url := range []string{"/", "/app.js", "/lock?path=a"} {
			assert.Equal(t, want, request(h, "GET", url, host(name)).code(), "%s %s", name, url)
		}
	}
	anywhere := newPage(t, newFake())
	assert.Equal(t, 200, request(anywhere, "GET", "/", host("whatever.example")).code(), "whoever mounts it sees to that")
}

func TestRoot(t *testing.T) {
	t.Parallel()
	h := newPage(t, newFake(), page.WithRoot("/admin/locks/"), page.WithTokens(lookToken, "", false))
	assert.Equal(t, 200, request(h, "GET", "/admin/locks/app.js").code())
	for _, outside := range []string{"/app.js", "/", "/admin/locksapp.js", "/admin/"} {
		assert.Equal(t, 404, request(h, "GET", outside).code(), outside)
	}
	for url, to := range map[string]string{
		"/admin/locks": "/admin/locks/", "/admin/locks//app.js": "/admin/locks/app.js", "/admin/locks/x/../login": "/admin/locks/login",
	} {
		assert.Equal(t, to, request(h, "GET", url).Header().Get("Location"), "%s is under the root, and so is where it leads", url)
	}
	assert.Equal(t, "/admin/locks/login", request(h, "GET", "/admin/locks/").Header().Get("Location"))
	answer := request(h, "POST", "/admin/locks/login", `{"token":"`+lookToken+`"}`)
	assert.Equal(t, "/admin/locks/", answer.Result().Cookies()[0].Path)
	for _, root := range []string{"", "locks", "/locks", "locks/", "//locks/", "/a/../locks/", "/{a}/"} {
		_, err := page.New(newFake(), page.WithRoot(root))
		assert.Error(t, err, root)
	}
}

func TestReleaseNeedsTheRight(t *testing.T) {
	t.Parallel()
	source := newFake()
	source.set(someLock("a", 0))
	for name, h := range map[string]http.Handler{
		"without an option": newPage(t, source),
		"refused":           newPage(t, source, page.WithRelease(func(*http.Request) (string, bool) { return "", false })),
		"only to look":      newPage(t, source, page.WithTokens(lookToken, "", false)),
	} {
		code := request(h, "POST", "/release", releaseOfA).code()
		assert.Contains(t, []int{401, 403}, code, name)
	}
	h := newPage(t, source, page.WithTokens(lookToken, releaseToken, false))
	assert.Equal(t, 401, request(h, "POST", "/release", releaseOfA).code())
	assert.Equal(t, 403, request(h, "POST", "/release", releaseOfA, signIn(t, h, lookToken)).code(), "the token to look")
	assert.Empty(t, source.released)
	assert.Equal(t, 200, request(h, "POST", "/release", releaseOfA, signIn(t, h, releaseToken)).code())
	assert.Equal(t, []string{"a"}, source.released)
}

func TestReleaseIsLogged(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var text bytes.Buffer
		source := newFake()
		source.set(someLock("a", 0))
		log := slog.New(slog.NewTextHandler(&text, nil))
		h := newPage(t, source, page.WithRelease(everybody), page.WithLogger(log))
		const ofGo = "4d3c8a52-96c1-4d0e-9d6b-1f7f6f0f7a55:1795278376063721"
		assert.Equal(t, 409, request(h, "POST", "/release", `{"path":"a","holder":"`+ofGo+`"}`).code())
		assert.Contains(t, text.String(), `label="a Go process, not known"`, "nobody looks")
		look(t, h)
		synctest.Wait()
		assert.Equal(t, 409, request(h, "POST", "/release", `{"path":"a","holder":"r1:16"}`).code(), "it has changed hands")
		assert.Contains(t, text.String(), "holder=r1:16 label=unknown")
		assert.Empty(t, source.released)
		text.Reset()
		assert.Equal(t, 200, request(h, "POST", "/release", `{"path":"a","holder":"r1:17","reason":"gone \u202e\u001b[2J"}`).code())
		assert.Contains(t, text.String(), `caller=somebody path=a holder=r1:17 label="billing on web-1, process 4711" `+
			`reason="gone \u202e\x1b[2J"`)
		assert.Contains(t, text.String(), "time=")
	})
}

func TestChangesComeFromThePageItself(t *testing.T) {
	t.Parallel()
	source := newFake()
	source.set(someLock("a", 0))
	h := newPage(t, source, page.WithRelease(everybody))
	for name, try := range map[string]struct {
		code   int
		change func(*http.Request)
	}{
		"no header":     {403, func(r *http.Request) { r.Header.Del("Lockreg-Request") }},
		"another site":  {403, with("Sec-Fetch-Site", "cross-site")},
		"a sister site": {403, with("Sec-Fetch-Site", "same-site")},
		"an old browser": {403, func(r *http.Request) {
			r.Header.Del("Sec-Fetch-Site")
			r.Header.Set("Origin", "https://evil.example")
		}},
		"a form":              {415, with("Content-Type", "text/plain")},
		"no type":             {415, func(r *http.Request) { r.Header.Del("Content-Type") }},
		"a form with its own": {415, with("Content-Type", "application/x-www-form-urlencoded")},
	} {
		for _, url := range []string{"/release", "/login", "/logout"} {
			assert.Equal(t, try.code, request(h, "POST", url, releaseOfA, try.change).code(), "%s %s", url, name)
		}
	}
	for _, method := range []string{"GET", "PUT", "DELETE"} {
		assert.Contains(t, []int{403, 404, 405}, request(h, method, "/release?path=a&holder=r1:17", releaseOfA).code(), method)
	}
	assert.Empty(t, source.released)
}

func TestBodies(t *testing.T) {
	t.Parallel()
	source := newFake()
	source.set(someLock("a", 0))
	h := newPage(t, source, page.WithRelease(everybody))
	for body, code := range map[string]int{
		``: 400, `{`: 400, `[]`: 400, `{"path":"a"}`: 400, `{"holder":"r1:17"}`: 400, releaseOfA + releaseOfA: 400,
		`{"path":"a","holder":"r1:17","force":true}`:                                   400,
		`{"path":"a","holder":"r1:17","reason":"` + strings.Repeat("x", 501) + `"}`:    400,
		`{"path":"a","holder":"r1:17","reason":"` + strings.Repeat("x", 20_000) + `"}`: 413,
	} {
		assert.Equal(t, code, request(h, "POST", "/release", body).code(), "%.80s", body)
	}
	assert.Empty(t, source.released)
}

// Whoever announces a body and does not send it is not waited for, whatever the request is for.
func TestBodiesThatDoNotCome(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(newPage(t, newFake(), page.WithHosts(), page.WithPatience(300*time.Millisecond)))
	defer server.Close()
	for name, begin := range map[string]string{
		"wanted":       "POST /logout HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nLockreg-Request: 1\r\n",
		"no header":    "POST /logout HTTP/1.1\r\nHost: localhost\r\n",
		"another host": "POST /logout HTTP/1.1\r\nHost: evil.example\r\n",
		"of a GET":     "GET / HTTP/1.1\r\nHost: localhost\r\n",
		"of nothing":   "GET /nothing HTTP/1.1\r\nHost: localhost\r\n",
	} {
		conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", server.Listener.Addr().String())
		require.NoError(t, err)
		_, err = fmt.Fprint(conn, begin+"Content-Length: 1000\r\n\r\n{")
		require.NoError(t, err)
		require.NoError(t, conn.SetReadDeadline(time.Now().Add(20*time.Second)))
		_, err = io.Copy(io.Discard, conn)
		assert.NoError(t, err, "%s: the server ends the connection", name)
		assert.NoError(t, conn.Close())
	}
}

func TestStreamsAreNotForOtherSites(t *testing.T) {
	t.Parallel()
	h := newPage(t, newFake())
	for _, site := range []string{"cross-site", "same-site"} {
		b := look(t, h, with("Sec-Fetch-Site", site))
		<-b.left
		assert.Equal(t, 403, b.code)
	}
}

func TestNobodyLooksWithoutTheToken(t *testing.T) {
	t.Parallel()
	source := newFake()
	source.set(someLock("a", 0))
	h := newPage(t, source, page.WithTokens(lookToken, releaseToken, false))
	answer := request(h, "GET", "/")
	assert.Equal(t, 303, answer.code())
	assert.Equal(t, "/login", answer.Header().Get("Location"))
	assert.Equal(t, 401, request(h, "GET", "/events").code())
	assert.Equal(t, 401, request(h, "GET", "/lock?path=a").code())
	assert.Equal(t, 401, request(h, "GET", "/lock?path=a&token="+lookToken, with("Authorization", "Bearer "+lookToken)).code())
	assert.Zero(t, source.passes.Load())
	assert.Equal(t, 200, request(h, "GET", "/", signIn(t, h, lookToken)).code())
	assert.Equal(t, 200, request(h, "GET", "/", signIn(t, h, releaseToken)).code())
	assert.Equal(t, 200, request(h, "GET", "/lock?path=a", signIn(t, h, lookToken)).code())
}

func TestCookie(t *testing.T) {
	t.Parallel()
	for _, secure := range []bool{false, true} {
		h := newPage(t, newFake(), page.WithTokens(lookToken, releaseToken, secure))
		cookie := request(h, "POST", "/login", `{"token":"`+lookToken+`"}`).Result().Cookies()[0]
		assert.True(t, cookie.HttpOnly)
		assert.Equal(t, http.SameSiteLaxMode, cookie.SameSite, "a link on another site, as in a chat, leads to a lock")
		assert.Equal(t, secure, cookie.Secure)
		assert.Equal(t, "/", cookie.Path)
		assert.Empty(t, cookie.Domain)
		assert.NotContains(t, cookie.Value, lookToken)

		// It cannot be changed, nor used with another handler.
		forged := *cookie
		for _, value := range []string{"", ".", "2.99999999999.", "1", cookie.Value + "x", cookie.Value[1:]} {
			forged.Value = value
			assert.Equal(t, 401, request(h, "GET", "/lock?path=a", func(r *http.Request) { r.AddCookie(&forged) }).code(), value)
		}
		other := newPage(t, newFake(), page.WithTokens(lookToken, releaseToken, secure))
		mine := request(other, "POST", "/login", `{"token":"`+lookToken+`"}`).Result().Cookies()[0]
		assert.NotEqual(t, mine.Name, cookie.Name, "two pages on one host")
		mine.Value = cookie.Value
		assert.Equal(t, 401, request(other, "GET", "/lock?path=a", func(r *http.Request) { r.AddCookie(mine) }).code())

		gone := request(h, "POST", "/logout", `{}`).Result().Cookies()[0]
		assert.Equal(t, cookie.Name, gone.Name)
		assert.Negative(t, gone.MaxAge)
	}
}

func TestSessionEnds(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h := newPage(t, newFake(), page.WithTokens(lookToken, "", false), page.WithInterval(10*time.Minute))
		in := signIn(t, h, lookToken)
		b := look(t, h, in)
		<-time.After(12*time.Hour - 2*time.Second)
		require.Equal(t, 200, request(h, "GET", "/", in).code())
		<-time.After(3 * time.Second)
		require.Equal(t, 303, request(h, "GET", "/", in).code())
		<-b.left // the stream, too
	})
}

// After it has signed out a browser's cookie is worth nothing, also where somebody has a copy of it.
func TestSignOutEndsTheSession(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h := newPage(t, newFake(), page.WithTokens(lookToken, releaseToken, false))
		in, other := signIn(t, h, releaseToken), signIn(t, h, releaseToken)
		b, others := look(t, h, in), look(t, h, other)
		synctest.Wait()
		require.Equal(t, 200, request(h, "POST", "/logout", `{}`, in).code())
		<-b.left
		require.Equal(t, 401, request(h, "GET", "/lock?path=a", in).code())
		require.Equal(t, 401, request(h, "POST", "/release", releaseOfA, in).code())
		require.Equal(t, 200, request(h, "GET", "/lock?path=a", other).code())
		synctest.Wait()
		select {
		case <-others.left:
			t.Fatal("another session ends, too")
		default:
		}
		require.Equal(t, 200, request(h, "POST", "/logout", `{}`, in).code(), "again")

		// One that signs in anew, as for releasing, has its new session alone.
		anew := request(h, "POST", "/login", `{"token":"`+lookToken+`"}`, other).Result().Cookies()[0]
		<-others.left
		require.Equal(t, 401, request(h, "GET", "/lock?path=a", other).code())
		require.Equal(t, 200, request(h, "GET", "/lock?path=a", func(r *http.Request) { r.AddCookie(anew) }).code())
	})
}

// However often somebody signs in, the server keeps a bounded number of sessions, the newest ones.
func TestSessionsAreLimited(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h := newPage(t, newFake(), page.WithTokens(lookToken, "", false))
		first := signIn(t, h, lookToken)
		<-time.After(time.Second)
		second := signIn(t, h, lookToken)
		for range 998 {
			signIn(t, h, lookToken)
		}
		require.Equal(t, 200, request(h, "GET", "/lock?path=a", first).code())
		signIn(t, h, lookToken)
		require.Equal(t, 401, request(h, "GET", "/lock?path=a", first).code())
		require.Equal(t, 200, request(h, "GET", "/lock?path=a", second).code())
	})
}

// One session has eight streams, and leaves the other places to others.
func TestStreamsOfASessionAreLimited(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h := newPage(t, newFake(), page.WithTokens(lookToken, "", false))
		in, other := signIn(t, h, lookToken), signIn(t, h, lookToken)
		first := look(t, h, in)
		for range 7 {
			look(t, h, in)
		}
		synctest.Wait()
		refused := look(t, h, in)
		<-refused.left
		require.Equal(t, http.StatusServiceUnavailable, refused.code)
		require.NotEmpty(t, refused.header.Get("Retry-After"))
		require.Equal(t, 8, h.Streams())
		look(t, h, other)
		first.close()
		look(t, h, in)
		synctest.Wait()
		require.Equal(t, 9, h.Streams())
	})
}

// Who comes in, and which releases are refused, is in the log.
func TestSignInsAndRefusedReleasesAreLogged(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var text bytes.Buffer
		h := newPage(t, newFake(), page.WithTokens(lookToken, releaseToken, false), page.WithHosts(),
			page.WithLogger(slog.New(slog.NewTextHandler(&text, nil))))
		says := func(want string, code int, method, url string, changes ...any) {
			t.Helper()
			text.Reset()
			changes = append(changes, with("X-Forwarded-For", "10.9.8.7"))
			require.Equal(t, code, request(h, method, url, changes...).code())
			require.Contains(t, text.String(), want)
			require.Contains(t, text.String(), "caller=192.0.2.1:1234 forwarded=10.9.8.7")
			require.NotContains(t, text.String(), releaseToken)
		}
		looks := signIn(t, h, lookToken)
		says(`msg="signed in"`, 200, "POST", "/login", `{"token":"`+releaseToken+`"}`)
		require.Contains(t, text.String(), "release=true")
		says(`msg="wrong token"`, 401, "POST", "/login", `{"token":"no"}`)
		says(`msg="release refused"`, 401, "POST", "/release", releaseOfA)
		says(`msg="release refused"`, 403, "POST", "/release", releaseOfA, looks)
		says(`msg="release refused"`, 403, "POST", "/release", releaseOfA, looks, with("Sec-Fetch-Site", "cross-site"))
		says(`msg="release refused"`, 421, "POST", "/release", releaseOfA, looks, host("evil.example"))
		says(`msg="signed out"`, 200, "POST", "/logout", `{}`, looks)
	})
}

// A proxy that adds a header of its own to the one that came has the last word, so all of them are logged.
func TestForwardedByAProxyThatAddsAHeader(t *testing.T) {
	t.Parallel()
	var text bytes.Buffer
	h := newPage(t, newFake(), page.WithTokens(lookToken, releaseToken, false),
		page.WithLogger(slog.New(slog.NewTextHandler(&text, nil))))
	twice := func(r *http.Request) { r.Header["X-Forwarded-For"] = []string{"1.2.3.4", "10.9.8.7"} }
	require.Equal(t, 401, request(h, "POST", "/release", releaseOfA, twice).code())
	require.Contains(t, text.String(), `forwarded="1.2.3.4, 10.9.8.7"`)
}

func TestWrongTokensAreSlow(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h := newPage(t, newFake(), page.WithTokens(lookToken, releaseToken, false))
		try := func(token string) (int, time.Duration) {
			began := time.Now()
			return request(h, "POST", "/login", `{"token":"`+token+`"}`).code(), time.Since(began)
		}
		code, took := try("wrong")
		require.Equal(t, 401, code)
		require.GreaterOrEqual(t, took, time.Second)
		code, took = try(lookToken)
		require.Equal(t, 200, code)
		require.Zero(t, took)

		// Nor does it help to try many at a time: a minute's worth of tries by a hundred browsers fills neither memory nor log.
		waited := 0
		results := make(chan int, 100)
		began := time.Now()
		for time.Since(began) < time.Minute {
			for range 100 {
				go func() {
					code, _ := try("wrong")
					results <- code
				}()
			}
			for range 100 {
				if <-results == 401 {
					waited++
				}
			}
		}
		require.LessOrEqual(t, waited, 16*61)
		require.Positive(t, waited)
	})
}

func TestTokens(t *testing.T) {
	t.Parallel()
	for _, token := range []string{
		"short", "0123456789abcdef0123456789abcde", "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
		"with a space 0123456789abcdef0123456789",
		"ABCDEFGHIJKLMNOPQRSTU", "päärynä0123456789abcdefghijklmnopq",
	} {
		for _, option := range []page.Option{page.WithTokens(token, "", false), page.WithTokens(lookToken, token, false)} {
			_, err := page.New(newFake(), option)
			require.ErrorIs(t, err, page.ErrToken, token)
			require.NotContains(t, err.Error(), token)
		}
	}
	_, err := page.New(newFake(), page.WithTokens(lookToken, lookToken, false))
	require.ErrorIs(t, err, page.ErrToken)
	newPage(t, newFake(), page.WithTokens("q3-Zk1_vYpQe7RtU0mAxBw", releaseToken, false))
}
