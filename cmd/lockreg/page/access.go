package page

import (
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"time"
)

// ErrToken is the error of a token that is too weak, or the same as the other one. It does not contain the token.
var ErrToken = errors.New("page: bad token")

const (
	// A wrong token is answered and logged after penance. That many at most do penance at a time; further ones are refused at once.
	// This bounds the log and the requests that wait. What keeps a token from being guessed is its length.
	penance  = time.Second
	penitent = 16
)

// gate decides by a cookie what a request may do. The zero gate lets everyone look.
type gate struct {
	look, release []byte // SHA-256 of the tokens; nil: none
	secure        bool
	root          string
	name          string // of the cookie; cookies know no ports, and two pages on one host must not overwrite each other's
	sessions      sessions
	attempts      chan struct{}
}

func newGate(lookToken, releaseToken string, secure bool) (*gate, error) {
	g := &gate{secure: secure, attempts: make(chan struct{}, penitent)}
	g.name = "lockreg-" + hex.EncodeToString(random()[:4])
	for _, token := range []struct {
		text string
		sum  *[]byte
	}{{lookToken, &g.look}, {releaseToken, &g.release}} {
		if token.text == "" {
			continue
		}
		if bits := strength(token.text); bits < 128 {
			return nil, fmt.Errorf("%w: it has about %d bits, but needs 128: take 32 random hexadecimal digits", ErrToken, bits)
		}
		sum := sha256.Sum256([]byte(token.text))
		*token.sum = sum[:]
	}
	if lookToken != "" && lookToken == releaseToken {
		return nil, fmt.Errorf("%w: the tokens for looking and for releasing must differ", ErrToken)
	}
	return g, nil
}

// strength is how many bits a random token of that length and alphabet has. Repeated characters are no random token.
func strength(token string) int {
	distinct := map[rune]bool{}
	hexadecimal := true
	for _, c := range token {
		if c <= ' ' || c > '~' {
			return 0
		}
		distinct[c] = true
		hexadecimal = hexadecimal && strings.ContainsRune("0123456789abcdefABCDEF", c)
	}
	switch {
	case len(distinct) < 8:
		return len(distinct)
	case hexadecimal:
		return 4 * len(token)
	default:
		return 6 * len(token)
	}
}

// check returns the right of a token, in constant time.
func (g *gate) check(token string) right {
	sum := sha256.Sum256([]byte(token))
	granted := nothing
	if g.look != nil && subtle.ConstantTimeCompare(sum[:], g.look) == 1 {
		granted = look
	}
	if g.release != nil && subtle.ConstantTimeCompare(sum[:], g.release) == 1 {
		granted = release
	}
	return granted
}

func (g *gate) rights(r *http.Request) right {
	granted := nothing
	if g.look == nil {
		granted = look
	}
	if one := g.session(r); one != nil {
		granted = max(granted, one.granted)
	}
	return granted
}

// cookie makes a cookie that comes along when a link on another site, as in a chat, is followed, too: a GET changes nothing. It
// does not with a POST of another site, nor with a GET that only loads something into its page.
func (g *gate) cookie(value string, age int) *http.Cookie {
	return &http.Cookie{ //nolint:gosec // Secure if the page is reached by HTTPS; not needed on loopback
		Name: g.name, Value: value, Path: g.root, MaxAge: age, HttpOnly: true, SameSite: http.SameSiteLaxMode, Secure: g.secure,
	}
}

// login makes a cookie of a token.
func (h *Handler) login(w http.ResponseWriter, r *http.Request) {
	var in struct{ Token string }
	if !h.read(w, r, &in) {
		return
	}
	if h.gate.attempts == nil {
		h.refuse(w, r, http.StatusNotFound, "there is nothing to sign in to")
		return
	}
	granted := h.try(w, r, in.Token)
	if granted == nothing {
		return
	}
	h.gate.forget(r)
	http.SetCookie(w, h.gate.cookie(h.gate.sessions.begin(granted), int(sessionLength.Seconds())))
	callerIn(h.log, r).Info("signed in", "release", granted == release)
	h.answer(w, http.StatusOK, map[string]bool{"release": granted == release})
}

// logout ends the session, and takes the cookie back.
func (h *Handler) logout(w http.ResponseWriter, r *http.Request) {
	if !h.read(w, r, &struct{}{}) {
		return
	}
	if h.gate.forget(r) {
		callerIn(h.log, r).Info("signed out")
	}
	http.SetCookie(w, h.gate.cookie("", -1))
	h.answer(w, http.StatusOK, struct{}{})
}

// hosts are the names under which the page may be reached.
type hosts struct{ names []string }

func newHosts(names []string) *hosts {
	h := &hosts{}
	for _, name := range names {
		h.names = append(h.names, bare(name))
	}
	return h
}

func (h *hosts) accept(host string) bool {
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	host = bare(host)
	if address, err := netip.ParseAddr(host); err == nil && address.IsLoopback() {
		return true
	}
	return host == "localhost" || host != "" && slices.Contains(h.names, host)
}

// bare is a host without what may be written differently.
func bare(host string) string {
	return strings.TrimSuffix(strings.ToLower(strings.Trim(host, "[]")), ".")
}

// try returns what a token lets a request do. It answers those whose token is wrong.
func (h *Handler) try(w http.ResponseWriter, r *http.Request, token string) right {
	if granted := h.gate.check(token); granted != nothing { // it needs no place, so wrong tokens keep nobody out
		return granted
	}
	select {
	case h.gate.attempts <- struct{}{}:
		defer func() { <-h.gate.attempts }()
	default:
		w.Header().Set("Retry-After", "2")
		h.refuse(w, r, http.StatusTooManyRequests, "Too many attempts. Try again in a moment.")
		return nothing
	}
	// The place is kept also when the browser has gone: a new connection must not be a quicker way.
	time.Sleep(penance)
	callerIn(h.log, r).Warn("wrong token")
	h.refuse(w, r, http.StatusUnauthorized, "This token is not known.")
	return nothing
}
