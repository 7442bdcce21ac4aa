package page

import (
	"crypto/sha256"
	"encoding/base64"
	"net/http"
	"sync"
	"time"
)

const (
	sessionLength  = 12 * time.Hour
	mostSessions   = 1000 // beyond this the session that would end first is ended
	sessionStreams = 8    // tabs of a session, so that one browser does not take all places
)

// sessions has the sessions of browsers that have signed in. The server keeps them, so that after signing out a session is
// over, even with its cookie.
type sessions struct {
	mu  sync.Mutex
	all map[[sha256.Size]byte]*session // by the hash of the cookie: how long a search takes tells nothing about it
}

// session is one of them.
type session struct {
	granted right
	end     time.Time
	over    chan struct{} // closed when it has ended before that
	streams int           // guarded by the mutex of sessions
}

// begin makes a session, and returns the value of its cookie.
func (s *sessions) begin(granted right) string {
	cookie := base64.RawURLEncoding.EncodeToString(random())
	now := time.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.all == nil {
		s.all = map[[sha256.Size]byte]*session{}
	}
	var first [sha256.Size]byte
	for key, one := range s.all {
		if !now.Before(one.end) {
			delete(s.all, key) // its streams end by themselves
		} else if earliest := s.all[first]; earliest == nil || one.end.Before(earliest.end) {
			first = key
		}
	}
	if len(s.all) >= mostSessions {
		s.remove(first)
	}
	s.all[sha256.Sum256([]byte(cookie))] = &session{granted: granted, end: now.Add(sessionLength), over: make(chan struct{})}
	return cookie
}

// find returns the session of a cookie, or nil.
func (s *sessions) find(cookie string) *session {
	s.mu.Lock()
	defer s.mu.Unlock()
	one := s.all[sha256.Sum256([]byte(cookie))]
	if one == nil || !time.Now().Before(one.end) {
		return nil
	}
	return one
}

// finish ends the session of a cookie, and reports whether there was one.
func (s *sessions) finish(cookie string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.remove(sha256.Sum256([]byte(cookie)))
}

// remove ends a session. With the mutex.
func (s *sessions) remove(key [sha256.Size]byte) bool {
	one := s.all[key]
	if one == nil {
		return false
	}
	delete(s.all, key)
	close(one.over)
	return true
}

// join adds a stream to a session, if it may have another one.
func (s *sessions) join(one *session) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if one.streams >= sessionStreams {
		return false
	}
	one.streams++
	return true
}

func (s *sessions) part(one *session) {
	s.mu.Lock()
	defer s.mu.Unlock()
	one.streams--
}

// session returns the session of a request, or nil.
func (g *gate) session(r *http.Request) *session {
	if cookie, err := r.Cookie(g.name); err == nil && g.name != "" {
		return g.sessions.find(cookie.Value)
	}
	return nil
}

// forget ends the session of a request, and reports whether there was one.
func (g *gate) forget(r *http.Request) bool {
	cookie, err := r.Cookie(g.name)
	return err == nil && g.name != "" && g.sessions.finish(cookie.Value)
}
