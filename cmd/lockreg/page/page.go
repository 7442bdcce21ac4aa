// Package page is the page of `lockreg serve`: a live view of locks, holders, waiters and deadlocks, with a button that frees a
// lock. [New] makes it an [http.Handler], for programs that mount it behind their own login:
//
//	handler, err := page.New(inspect.Of(registry), page.WithRoot("/admin/locks/"))
//	mux.Handle("/admin/locks/", requireAdmin(handler))
//
// Redis is asked once for all connected browsers, and not at all while none is connected, unless GET lock?path= asks for a path.
// Other sites in a browser cannot change anything: a release is a POST of JSON with a special header, from the same origin.
package page

import (
	"context"
	"crypto/rand"
	"embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"log/slog"
	"mime"
	"net/http"
	"net/url"
	"path"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/redis/rueidis"

	"github.com/lockregistry/lockregistry"
	"github.com/lockregistry/lockregistry/cmd/lockreg/internal/printable"
	"github.com/lockregistry/lockregistry/cmd/lockreg/internal/view"
	"github.com/lockregistry/lockregistry/inspect"
	"github.com/lockregistry/lockregistry/observe"
)

// The page's parts, as they are sent.
//
//go:embed assets
var assets embed.FS

const (
	maxBody         = 16 << 10
	defaultPatience = 10 * time.Second // the timeout of one write to a browser, and of reading a request

	// requestHeader must be 1 in every request that changes something. A form cannot send it, and a script of another origin
	// has to ask first.
	requestHeader = "Lockreg-Request"
)

// Source has the locks that the page shows: an [*inspect.Inspector].
type Source interface {
	Locks(ctx context.Context) iter.Seq2[inspect.Lock, error]
	Deadlocks(ctx context.Context) ([]observe.Deadlock, error)
	ForceUnlockHolder(ctx context.Context, path, holder string) error
}

// Handler serves the page and its requests. Close it when it is no longer served.
type Handler struct {
	root     string
	title    string
	release  func(*http.Request) (string, bool)
	patience time.Duration
	log      *slog.Logger
	feed     *feed
	gate     *gate
	hosts    *hosts
	handler  http.Handler
	metrics  http.Handler // nil: none
}

// Option changes what [New] makes.
type Option func(*Handler) error

// WithRoot sets the path under which the page is mounted, such as /admin/locks/. It must begin and end with a slash. Default: /.
func WithRoot(root string) Option {
	return func(h *Handler) error {
		if !strings.HasPrefix(root, "/") || !strings.HasSuffix(root, "/") {
			return fmt.Errorf("page: the root %q does not begin and end with a slash", root)
		}
		if root != "/" && path.Clean(root)+"/" != root || strings.ContainsAny(root, "{}") {
			return fmt.Errorf("page: the root %q has empty parts, dots or braces", root)
		}
		h.root = root
		return nil
	}
}

// WithTitle sets the title, such as the prefix and the server. Default: none.
func WithTitle(title string) Option {
	return func(h *Handler) error { h.title = title; return nil }
}

// WithRelease lets a request free locks if allowed accepts the request; caller is the name of the caller, for the log. Then the
// page does not ask for a token for releases. Default: without such a token nobody can free locks, and the source needs no
// permission to write.
func WithRelease(allowed func(r *http.Request) (caller string, ok bool)) Option {
	return func(h *Handler) error { h.release = allowed; return nil }
}

// WithTokens makes the page ask for a token. A session ends after twelve hours, when the browser signs out, or with the handler.
// The token look permits looking, and release also permits freeing locks. If look is empty, everyone may look; if release is
// empty, nobody may free a lock. A token must have at least 128 bits, as 32 random hexadecimal digits have, and the two must
// differ; otherwise New fails with [ErrToken]. Secure means that browsers reach the page over HTTPS, and send the cookie only
// over HTTPS.
func WithTokens(look, release string, secure bool) Option {
	return func(h *Handler) error {
		var err error
		h.gate, err = newGate(look, release, secure)
		return err
	}
}

// WithHosts refuses requests to other hosts with 421, so that a browser cannot reach the page by a name that an attacker points
// to this machine (DNS rebinding). Names of the loopback interface are always accepted. A host is a name or an address without a
// port. Default: every host is accepted.
func WithHosts(names ...string) Option {
	return func(h *Handler) error { h.hosts = newHosts(names); return nil }
}

// WithInterval sets the pause between two passes over the locks. The pause grows by up to half after a pass that took a while,
// and is as long as the pass if that took longer still. Default: half a second.
func WithInterval(d time.Duration) Option {
	return func(h *Handler) error {
		if d <= 0 {
			return fmt.Errorf("page: the interval %s is not positive", d)
		}
		h.feed.interval = d
		return nil
	}
}

// WithClient gives the page the source's client. On a cluster, the page then says which of the masters do not answer. Default:
// the page notices only one of them, since it asks for one path.
func WithClient(client rueidis.Client) Option {
	return func(h *Handler) error { h.feed.client = client; return nil }
}

// WithLogger sets where releases, sign-ins, refused requests and failures are logged. Default: [slog.Default].
func WithLogger(log *slog.Logger) Option {
	return func(h *Handler) error { h.log = log; return nil }
}

// WithRecord makes the page read Redis every ten seconds even while nobody looks at the page, so that its charts show the last
// six hours. With or without this option, the page keeps at most 3 000 samples, 0.25 MB for one prefix and 0.12 MB for each
// further one. Default: while nobody looks, Redis is not asked, and the charts say so.
func WithRecord() Option {
	return func(h *Handler) error { h.feed.record = true; return nil }
}

// New makes the page of a source, which then has no name, or, if source is nil, of the sources of [WithPrefix]. Without options
// it is at /, everybody may look, and nobody may free a lock. New fails only for bad options.
func New(source Source, options ...Option) (*Handler, error) {
	h, err := newHandler(source, options)
	if err != nil {
		return nil, err
	}
	h.feed.log = h.log
	h.feed.ask = h.feed.asker()

	mux := http.NewServeMux()
	h.serveFiles(mux)
	if h.root != "/" {
		mux.Handle("GET "+strings.TrimSuffix(h.root, "/"), http.RedirectHandler(h.root, http.StatusSeeOther))
	}
	mux.HandleFunc("GET "+h.root+"events", h.events)
	mux.HandleFunc("GET "+h.root+"lock", h.lock)
	mux.HandleFunc("POST "+h.root+"login", h.login)
	mux.HandleFunc("POST "+h.root+"logout", h.logout)
	mux.HandleFunc("POST "+h.root+"release", h.free)
	if h.metrics != nil {
		mux.HandleFunc("GET "+h.root+"metrics", h.scrape)
	}
	protection := http.NewCrossOriginProtection()
	protection.SetDenyHandler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h.refuse(w, r, http.StatusForbidden, "not from another site")
	}))
	h.handler = protection.Handler(mux)
	h.feed.records()
	return h, nil
}

// newHandler applies the options. What it returns serves nothing yet.
func newHandler(source Source, options []Option) (*Handler, error) {
	h := &Handler{root: "/", patience: defaultPatience, log: slog.Default(), gate: &gate{}, feed: newFeed()}
	for _, option := range options {
		if err := option(h); err != nil {
			return nil, err
		}
	}
	switch {
	case source == nil:
	case len(h.feed.prefixes) > 0:
		return nil, errors.New("page: New has a source, and WithPrefix has others: give all of them by WithPrefix")
	default:
		h.feed.prefixes = []prefix{{"", source}}
	}
	h.gate.root = h.root
	return h, nil
}

// Close ends all streams, and waits until the source is no longer asked. It is safe to call it twice.
func (h *Handler) Close() {
	h.feed.close()
}

// ServeHTTP serves the page.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	header := w.Header()
	header.Set("Content-Security-Policy", "default-src 'self'; frame-ancestors 'none'; base-uri 'none'")
	header.Set("X-Content-Type-Options", "nosniff")
	header.Set("Referrer-Policy", "no-referrer")
	header.Set("Cache-Control", "no-store")
	header.Set("Cross-Origin-Resource-Policy", "same-origin")
	if r.ContentLength != 0 { // the server reads the whole body before it answers, even if it is not used
		_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(h.patience))
	}
	if h.hosts != nil && !h.hosts.accept(r.Host) {
		h.refuse(w, r, http.StatusMisdirectedRequest, "this is not a host that the page is served for; see --host")
		return
	}
	_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(h.patience))
	h.handler.ServeHTTP(w, r)
}

// serveFiles serves the page's parts. The page and the login have names of their own.
func (h *Handler) serveFiles(mux *http.ServeMux) {
	files, err := assets.ReadDir("assets")
	if err != nil {
		panic(err)
	}
	for _, file := range files {
		name := file.Name()
		switch name {
		case "index.html":
			name = "{$}"
		case "login.html":
			name = "login"
		}
		mux.Handle("GET "+h.root+name, h.file(file.Name()))
	}
}

func (h *Handler) file(name string) http.Handler {
	content, err := assets.ReadFile("assets/" + name)
	if err != nil {
		panic(err)
	}
	types := map[string]string{
		"html": "text/html; charset=utf-8", "js": "text/javascript; charset=utf-8", "css": "text/css; charset=utf-8",
		"svg": "image/svg+xml",
	}
	_, extension, _ := strings.Cut(name, ".")
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if name == "index.html" && h.rights(r) < look {
			login := h.root + "login"
			if r.URL.RawQuery != "" { // of the lock that is looked for
				login += "?" + r.URL.RawQuery
			}
			http.Redirect(w, r, login, http.StatusSeeOther) //nolint:gosec // it begins with the page's own path
			return
		}
		w.Header().Set("Content-Type", types[extension])
		_, _ = w.Write(content)
	})
}

// right is what a request may do; each right includes the previous ones.
type right int

const (
	nothing right = iota
	look
	release
)

func (h *Handler) rights(r *http.Request) right {
	granted := h.gate.rights(r)
	if h.release != nil {
		granted = min(granted, look)
		if _, ok := h.release(r); ok && granted == look {
			return release
		}
	}
	return granted
}

// require answers requests that may do less.
func (h *Handler) require(w http.ResponseWriter, r *http.Request, needed right) bool {
	switch granted := h.rights(r); {
	case granted >= needed:
		return true
	case granted == nothing:
		h.refuse(w, r, http.StatusUnauthorized, "sign in first")
	default:
		h.refuse(w, r, http.StatusForbidden, "this needs the right to release")
	}
	return false
}

// lock tells all that the last pass found out about a path. If it found nothing, or nobody looks and there is no pass, it asks
// the source for this path once. That a lock is free is no error: it will be taken again. Browsers also ask it what an address
// names.
func (h *Handler) lock(w http.ResponseWriter, r *http.Request) {
	if !h.require(w, r, look) {
		return
	}
	var answer struct {
		ID   string     `json:"id,omitempty"`   // of the lock, see prefix.id
		Path string     `json:"path,omitempty"` // for people
		At   int64      `json:"at"`             // when it was read, Unix ms; 0: it was not
		Lock *view.Lock `json:"lock"`           // null: see Note
		Note string     `json:"note,omitempty"` // why there is none
	}
	query, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		h.refuse(w, r, http.StatusBadRequest, "the address is not one of a lock: "+err.Error())
		return
	}
	of, err := h.feed.named(query.Get("prefix"))
	if err != nil {
		h.refuse(w, r, http.StatusNotFound, err.Error())
		return
	}
	name := query.Get("path")
	if name != "" {
		answer.ID, answer.Path = h.feed.prefixes[of].id(name), printable.Valid(name)
	}
	info, at, ok := h.feed.find(key{of, name})
	if source, asks := h.feed.prefixes[of].source.(inspector); !ok && asks && name != "" {
		ctx, cancel := context.WithTimeout(r.Context(), 5*time.Second)
		defer cancel()
		if info, err = source.Inspect(ctx, name); err != nil {
			h.refuse(w, r, http.StatusBadGateway, err.Error())
			return
		}
		at, ok = time.Now(), info.Kind != observe.KindNone
	}
	if !at.IsZero() {
		answer.At = at.UnixMilli()
	}
	switch lock := view.OfLock(info); {
	case ok:
		answer.Lock = &lock
	case name == "":
		answer.Note = "no path is given: write lock?path=PATH"
	case at.IsZero():
		answer.Note = "not among the locks that are shown, if any are"
	default:
		answer.Note = "nobody holds it, and nobody waits in Redis"
	}
	h.answer(w, http.StatusOK, answer)
}

// free frees a lock that a holder still has.
func (h *Handler) free(w http.ResponseWriter, r *http.Request) {
	if !h.require(w, r, release) {
		return
	}
	// An id counts where there is one: a text may not be faithful.
	var in struct{ Prefix, PrefixID, Path, ID, Holder, HolderID, Reason string }
	if !h.read(w, r, &in) {
		return
	}
	for _, text := range []struct{ id, into *string }{
		{&in.PrefixID, &in.Prefix}, {&in.ID, &in.Path}, {&in.HolderID, &in.Holder},
	} {
		if *text.id != "" {
			*text.into, _ = view.OfID(*text.id) // empty when it is none
		}
	}
	if in.Path == "" || in.Holder == "" || utf8.RuneCountInString(in.Reason) > 500 {
		h.refuse(w, r, http.StatusBadRequest, "path and holder are needed, and a reason has 500 characters at most")
		return
	}
	of, err := h.feed.named(in.Prefix)
	if err != nil {
		h.refuse(w, r, http.StatusNotFound, err.Error())
		return
	}
	caller := r.RemoteAddr
	if h.release != nil {
		caller, _ = h.release(r)
	}
	// A release that has begun goes on without its browser: whether it took place must not depend on that.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(r.Context()), 5*time.Second)
	defer cancel()
	label := h.feed.labelOf(key{of, in.Path}, in.Holder) // before the release, which ends what is known of it
	err = h.feed.prefixes[of].source.ForceUnlockHolder(ctx, in.Path, in.Holder)
	log := h.log.With("caller", caller)
	if name := h.feed.prefixes[of].name; name != "" {
		log = log.With("prefix", printable.Valid(name))
	}
	log = forwardedIn(log.With("path", printable.Valid(in.Path), "holder", printable.Valid(in.Holder), "label", label,
		"reason", in.Reason), r)
	switch {
	case err == nil:
		log.Warn("lock released by hand")
		h.feed.hurry()
		h.answer(w, http.StatusOK, map[string]bool{"released": true})
	case errors.Is(err, lockregistry.ErrNotOwner):
		log.Info("lock not released: that holder no longer has it")
		h.feed.hurry()
		h.answer(w, http.StatusConflict, map[string]string{"error": "That holder no longer has it. Nothing was released."})
	default:
		log.Error("lock not released", "error", err)
		h.answer(w, http.StatusBadGateway, map[string]string{"error": err.Error()})
	}
}

// read decodes the JSON of a request that changes something, or answers it.
func (h *Handler) read(w http.ResponseWriter, r *http.Request, into any) bool {
	if kind, _, _ := mime.ParseMediaType(r.Header.Get("Content-Type")); kind != "application/json" {
		h.refuse(w, r, http.StatusUnsupportedMediaType, "application/json only")
		return false
	}
	if r.Header.Get(requestHeader) != "1" {
		h.refuse(w, r, http.StatusForbidden, "the header "+requestHeader+" is missing")
		return false
	}
	decoder := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxBody))
	decoder.DisallowUnknownFields()
	err := decoder.Decode(into)
	if err == nil {
		if _, err = decoder.Token(); errors.Is(err, io.EOF) {
			return true
		}
	}
	if _, large := errors.AsType[*http.MaxBytesError](err); large {
		h.refuse(w, r, http.StatusRequestEntityTooLarge, "too large")
	} else {
		h.refuse(w, r, http.StatusBadRequest, "not the JSON that is expected")
	}
	return false
}

// refuse answers a refused request. A refused release is logged for the operators.
func (h *Handler) refuse(w http.ResponseWriter, r *http.Request, status int, reason string) {
	level, what := slog.LevelDebug, "request refused"
	if r.URL.Path == h.root+"release" && r.Method == http.MethodPost {
		level, what = slog.LevelWarn, "release refused"
	}
	callerIn(h.log, r).Log(r.Context(), level, what, "host", r.Host, "url", r.URL.Path, "status", status, "reason", reason)
	h.answer(w, status, map[string]string{"error": reason})
}

// callerIn returns a log whose lines name the sender of a request.
func callerIn(log *slog.Logger, r *http.Request) *slog.Logger {
	return forwardedIn(log.With("caller", r.RemoteAddr), r)
}

// forwardedIn returns a log whose lines name the client for which a proxy has sent a request, as far as the proxy can be
// believed. The last address is what the proxy has seen: it adds that to the header, or as another header, behind what came.
func forwardedIn(log *slog.Logger, r *http.Request) *slog.Logger {
	if forwarded := strings.Join(r.Header.Values("X-Forwarded-For"), ", "); forwarded != "" {
		return log.With("forwarded", forwarded)
	}
	return log
}

func (h *Handler) answer(w http.ResponseWriter, status int, body any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = w.Write(append(encode(body), '\n'))
}

func random() []byte {
	key := make([]byte, 32)
	_, _ = rand.Read(key) // never fails
	return key
}
