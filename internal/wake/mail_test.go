package wake

import (
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// script plays events to a mail, and notes what it wants and says. An event is a word and its object:
//
//	hear a1     a waiter of the user a hears on its channel a1
//	leave a1    the one that heard there last is closed
//	send        what is wanted is subscribed to: "+a1"
//	has a1      the server confirms the subscription
//	probe       what is not proven is sent a probe: "?a1"
//	proves a1   the message of the proof arrives
//	refuses a   the server forbids it, or the proof has not arrived
//	answer      the server has answered, or cannot
//	ends a1     the server ends the subscription
//	tidy, busy  it is time to leave channels, which is safe or not: "-a1" is left
//	lost        the connection is lost
//
// A waiter that is answered or woken is noted as "!a1 " and what it hears then.
type script struct {
	*testing.T
	mail    mail
	users   map[string]*user
	waiters []*Waiter
	sent    []*own
	said    []string
}

func (s *script) user(name string) *user {
	if s.users[name] == nil {
		s.users[name] = &user{closed: make(chan struct{})}
	}
	return s.users[name]
}

func (s *script) say(mark string, channels ...string) {
	for _, c := range channels {
		s.said = append(s.said, mark+c)
	}
}

func names(channels []*own) (names []string) {
	for _, o := range channels {
		names = append(names, o.name)
	}
	return names
}

// last is the waiter that heard on a channel last.
func (s *script) last(channel string) *Waiter {
	for _, w := range slices.Backward(s.waiters) {
		if w.Own == channel {
			return w
		}
	}
	s.Fatal("nobody waits for " + channel)
	return nil
}

func (s *script) play(event string) {
	word, object, _ := strings.Cut(event, " ")
	switch word {
	case "hear":
		w := &Waiter{Wait: Wait{Own: object}, user: s.user(object[:1]), wakeup: newSignal()}
		s.waiters = append(s.waiters, w)
		s.hear(w)
	case "leave":
		w := s.last(object)
		s.mail.remove(w)
		s.waiters = slices.DeleteFunc(s.waiters, func(o *Waiter) bool { return o == w })
	case "send":
		s.sent = s.mail.next()
		s.say("+", names(s.mail.unsubscribed(s.sent))...)
	case "has":
		s.mail.subscribed(object)
	case "probe":
		s.say("?", names(s.mail.unproven(s.sent))...)
	case "proves":
		s.mail.proven(s.mail.channels[object])
	case "refuses":
		s.mail.deafen(s.user(object))
	case "answer":
		s.mail.answerAll(s.sent)
	case "ends":
		s.mail.ended(object)
	case "tidy", "busy":
		s.say("-", s.mail.tidy(word == "tidy")...)
	case "lost":
		s.mail = newMail()
		for _, w := range s.waiters {
			w.lost()
		}
	default:
		s.Fatal("no such event: " + event)
	}
	s.answers()
}

func (s *script) hear(w *Waiter) {
	hearing, asked, _ := s.mail.hear(w)
	if !asked {
		s.say("!", w.Own+" "+[]string{"not yet", "heard", "deaf"}[hearing])
	}
}

// answers has the waiters that were answered or woken hear again.
func (s *script) answers() {
	for _, w := range s.waiters {
		select {
		case <-w.answered:
			w.waits = false
			s.say("!", w.Own+" "+[]string{"not yet", "heard", "deaf"}[s.mail.answer(w)])
		default:
		}
		select {
		case <-w.wakeup:
			s.say("!", w.Own+" woken")
		default:
		}
	}
}

func TestMail(t *testing.T) {
	for name, c := range map[string]struct{ events, said string }{
		"is proven once": {"hear a1, send, has a1, probe, proves a1, answer, hear a1", "+a1 ?a1 !a1 heard !a1 heard"},
		"asks once":      {"hear a1, hear a1, send, has a1, probe, proves a1, answer", "+a1 ?a1 !a1 heard !a1 heard"},
		"is confirmed late": {"hear a1, send, probe, answer, tidy, send, has a1, probe, proves a1, answer",
			"+a1 !a1 not yet +a1 ?a1 !a1 woken"},
		"the proof is for all channels of a user": {
			"hear a1, send, has a1, probe, proves a1, answer, hear a2, send, has a2, probe, answer",
			"+a1 ?a1 !a1 heard +a2 !a2 heard"},
		"one channel of each user is proven": {
			"hear a1, hear a2, hear b1, send, has a1, has a2, has b1, probe, proves a1, refuses b, answer",
			"+a1 +a2 +b1 ?a1 ?b1 !a1 heard !a2 heard !b1 deaf"},
		"another user has other rights": {
			"hear a1, send, has a1, probe, proves a1, answer, hear b1, send, has b1, probe, refuses b, answer, hear b2, hear a2",
			"+a1 ?a1 !a1 heard +b1 ?b1 !b1 deaf !b2 deaf"},
		"a proof that comes too late": {
			"hear a1, send, has a1, probe, refuses a, answer, proves a1, hear a1", "+a1 ?a1 !a1 deaf !a1 deaf"},
		"the server cannot say": {
			"hear a1, send, answer, busy, send, has a1, probe, proves a1, answer", "+a1 !a1 not yet +a1 ?a1 !a1 woken"},
		"deaf for a connection": {"hear a1, send, refuses a, answer, lost, hear a1, send, has a1, probe, proves a1, answer",
			"+a1 !a1 deaf !a1 woken +a1 ?a1 !a1 heard"},
		"lost": {"hear a1, send, has a1, probe, proves a1, answer, lost, hear a1, send, has a1, probe",
			"+a1 ?a1 !a1 heard !a1 woken +a1 ?a1"},
		"lost before the answer": {"hear a1, send, has a1, lost", "+a1 !a1 not yet !a1 woken"},
		"the server ends it": {"hear a1, send, has a1, probe, proves a1, answer, ends a1, hear a1, send, has a1, probe, answer",
			"+a1 ?a1 !a1 heard !a1 woken +a1 !a1 heard"},
		"the server ends an earlier one": {"hear a1, send, ends a1, has a1, probe, proves a1, answer", "+a1 ?a1 !a1 heard"},
		"the server ends it before the proof": {"hear a1, send, has a1, ends a1, probe, answer, hear a1, send",
			"+a1 !a1 not yet !a1 woken +a1"},
		"the server ends it during the proof": {
			"hear a1, send, has a1, probe, ends a1, probe again, answer, hear a1, send, has a1, probe, proves a1, answer",
			"+a1 ?a1 !a1 not yet !a1 woken +a1 ?a1 !a1 heard"},
		"is left after two looks": {
			"hear a1, send, has a1, probe, proves a1, answer, tidy, leave a1, tidy, tidy again, tidy, hear a1, send",
			"+a1 ?a1 !a1 heard -a1 +a1"},
		"is not left while it is used": {
			"hear a1, send, has a1, probe, proves a1, answer, leave a1, tidy, hear a1, leave a1, tidy, tidy again",
			"+a1 ?a1 !a1 heard !a1 heard -a1"},
		"is not left while that is not safe": {
			"hear a1, send, has a1, probe, proves a1, answer, leave a1, tidy, busy, busy again, tidy",
			"+a1 ?a1 !a1 heard -a1"},
	} {
		t.Run(name, func(t *testing.T) {
			s := &script{T: t, mail: newMail(), users: map[string]*user{}}
			for event := range strings.SplitSeq(c.events, ", ") {
				s.play(event)
			}
			require.Equal(t, c.said, strings.Join(s.said, " "))
		})
	}
}

// A listener that is closed while it waits is not answered, and another one does not get its channel.
func TestMail_OfAClosedListener(t *testing.T) {
	s := &script{T: t, mail: newMail(), users: map[string]*user{}}
	s.play("hear a1")
	close(s.user("a").closed)
	s.play("send")
	s.play("answer")
	other := &Waiter{Wait: Wait{Own: "a1"}, user: s.user("b"), wakeup: newSignal()}
	hearing, asked, wanted := s.mail.hear(other)
	require.Equal(t, NotYet, hearing)
	require.False(t, asked || wanted)
	require.Equal(t, []string{"+a1"}, s.said)
	require.Equal(t, []string{"a1"}, slices.Collect(maps.Keys(s.mail.channels)))
}

// A registry that is closed must not stay in memory for what a connection knows of it.
func TestMail_ForgetsAClosedUser(t *testing.T) {
	t.Parallel()
	m, proven, deaf := newMail(), &user{closed: make(chan struct{})}, &user{closed: make(chan struct{})}
	m.proven(&own{user: proven})
	m.deafen(deaf)
	require.Len(t, m.hearing, 2)
	for _, u := range []*user{proven, deaf} {
		close(u.closed)
		m.removeUser(u)
		m.proven(&own{user: u}) // late
		m.deafen(u)
	}
	require.Empty(t, m.hearing)
}
