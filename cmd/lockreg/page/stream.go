package page

import (
	"bytes"
	"net/http"
	"time"
)

// events is a stream, until the browser goes, the right to look ends, or the handler is closed.
func (h *Handler) events(w http.ResponseWriter, r *http.Request) {
	// Another site's page cannot read it, but it could take all the places.
	if site := r.Header.Get("Sec-Fetch-Site"); site != "" && site != "same-origin" && site != "none" {
		h.refuse(w, r, http.StatusForbidden, "not from another site")
		return
	}
	if !h.require(w, r, look) {
		return
	}
	var end <-chan time.Time
	var over <-chan struct{}
	if one := h.gate.session(r); one != nil {
		if !h.gate.sessions.join(one) {
			w.Header().Set("Retry-After", "5")
			h.refuse(w, r, http.StatusServiceUnavailable, "too many streams of this session")
			return
		}
		defer h.gate.sessions.part(one)
		timer := time.NewTimer(time.Until(one.end))
		defer timer.Stop()
		end, over = timer.C, one.over
	}
	s, history, err := h.feed.subscribe()
	if err != nil {
		w.Header().Set("Retry-After", "5")
		h.refuse(w, r, http.StatusServiceUnavailable, err.Error())
		return
	}
	defer h.feed.unsubscribe(s)

	send := h.sender(w)
	var hello bytes.Buffer
	event(&hello, "hello", struct {
		Title    string     `json:"title"`
		Release  string     `json:"release"` // yes, no, or login
		SignIn   bool       `json:"signedIn"`
		Prefixes []prefixOf `json:"prefixes"` // empty: the only one has no name
		History  []sample   `json:"history"`
	}{h.title, h.releaseState(r), end != nil, h.feed.names(), history})
	beat := time.NewTicker(heartbeat)
	defer beat.Stop()
	for ok := send(hello.Bytes()); ok; {
		select {
		case <-s.wake:
			ok = send(h.feed.take(s))
		case <-beat.C:
			ok = send([]byte(":\n\n"))
		case <-end:
			return
		case <-over:
			return
		case <-h.feed.closing:
			return
		case <-r.Context().Done():
			return
		}
	}
}

// sender begins an answer that is a stream, and returns what sends on it; false: it is over.
func (h *Handler) sender(w http.ResponseWriter) func(text []byte) bool {
	w.Header().Set("Content-Type", "text/event-stream")
	w.Header().Set("X-Accel-Buffering", "no") // proxies pass it on at once
	control := http.NewResponseController(w)
	return func(text []byte) bool {
		for len(text) > 0 {
			if err := control.SetWriteDeadline(time.Now().Add(h.patience)); err != nil {
				h.log.Error("cannot stream: no deadline for writes", "error", err)
				return false
			}
			n := min(piece, len(text))
			if _, err := w.Write(text[:n]); err != nil {
				return false
			}
			text = text[n:]
		}
		// Until the next one there is none: with HTTP/2 it would end the stream.
		return control.Flush() == nil && control.SetWriteDeadline(time.Time{}) == nil
	}
}

func (h *Handler) releaseState(r *http.Request) string {
	switch {
	case h.rights(r) >= release:
		return "yes"
	case h.release == nil && h.gate.release != nil:
		return "login"
	default:
		return "no"
	}
}
