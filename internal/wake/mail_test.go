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
//	subscribe a1  a waiter of the user a subscribes on its channel a1
//	leave a1      the newest waiter there is closed
//	send          what is wanted is subscribed to: "+a1"
//	has a1        the server confirms the subscription
//	probe         a probe is sent on channels that are not proven: "?a1"
//	proves a1     the message of the proof arrives
//	refuses a     the server forbids it, or the proof has not arrived
//	answer        the server has answered, or cannot
//	ends a1       the server ends the subscription
//	tidy, busy    it is time to leave channels, which is safe or not: "-a1" is left
//	lost          the connection is lost
//
// A waiter that is answered or woken is noted as "!a1 " and what its subscription is then.
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

// last returns the newest waiter of a channel.
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
	case "subscribe":
		w := &Waiter{Wait: Wait{Own: object}, user: s.user(object[:1]), wakeup: newSignal()}
		s.waiters = append(s.waiters, w)
		s.subscribe(w)
	case "leave":
		w := s.last(object)
		s.mail.remove(w)
		s.waiters = slices.DeleteFunc(s.waiters, func(o *Waiter) bool { return o == w })
	case "send":
		wanted, unsubscribed := s.mail.next()
		s.sent = wanted
		s.say("+", names(unsubscribed)...)
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

func (s *script) subscribe(w *Waiter) {
	is, asked, _ := s.mail.subscribe(w)
	if !asked {
		s.say("!", w.Own+" "+[]string{"not yet", "proven", "deaf"}[is])
	}
}

// answers makes the waiters subscribe again that were answered or woken.
func (s *script) answers() {
	for _, w := range s.waiters {
		select {
		case <-w.answered:
			w.waits = false
			s.say("!", w.Own+" "+[]string{"not yet", "proven", "deaf"}[s.mail.answer(w)])
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
		"is proven once": {"subscribe a1, send, has a1, probe, proves a1, answer, subscribe a1", "+a1 ?a1 !a1 proven !a1 proven"},
		"asks once":      {"subscribe a1, subscribe a1, send, has a1, probe, proves a1, answer", "+a1 ?a1 !a1 proven !a1 proven"},
		"is confirmed late": {"subscribe a1, send, probe, answer, tidy, send, has a1, probe, proves a1, answer",
			"+a1 !a1 not yet +a1 ?a1 !a1 woken"},
		"the proof is for all channels of a user": {
			"subscribe a1, send, has a1, probe, proves a1, answer, subscribe a2, send, has a2, probe, answer",
			"+a1 ?a1 !a1 proven +a2 !a2 proven"},
		"one channel of each user is proven": {
			"subscribe a1, subscribe a2, subscribe b1, send, has a1, has a2, has b1, probe, proves a1, refuses b, answer",
			"+a1 +a2 +b1 ?a1 ?b1 !a1 proven !a2 proven !b1 deaf"},
		"another user has other rights": {
			"subscribe a1, send, has a1, probe, proves a1, answer, subscribe b1, send, has b1, probe, refuses b, answer, subscribe b2, " +
				"subscribe a2",
			"+a1 ?a1 !a1 proven +b1 ?b1 !b1 deaf !b2 deaf"},
		"a proof that comes too late": {
			"subscribe a1, send, has a1, probe, refuses a, answer, proves a1, subscribe a1", "+a1 ?a1 !a1 deaf !a1 deaf"},
		"the server cannot say": {
			"subscribe a1, send, answer, busy, send, has a1, probe, proves a1, answer", "+a1 !a1 not yet +a1 ?a1 !a1 woken"},
		"deaf for a connection": {"subscribe a1, send, refuses a, answer, lost, subscribe a1, send, has a1, probe, proves a1, answer",
			"+a1 !a1 deaf !a1 woken +a1 ?a1 !a1 proven"},
		"lost": {"subscribe a1, send, has a1, probe, proves a1, answer, lost, subscribe a1, send, has a1, probe",
			"+a1 ?a1 !a1 proven !a1 woken +a1 ?a1"},
		"lost before the answer": {"subscribe a1, send, has a1, lost", "+a1 !a1 not yet !a1 woken"},
		"the server ends it": {
			"subscribe a1, send, has a1, probe, proves a1, answer, ends a1, subscribe a1, send, has a1, probe, answer",
			"+a1 ?a1 !a1 proven !a1 woken +a1 !a1 proven"},
		"the server ends an earlier one": {"subscribe a1, send, ends a1, has a1, probe, proves a1, answer", "+a1 ?a1 !a1 proven"},
		"the server ends it before the proof": {"subscribe a1, send, has a1, ends a1, probe, answer, subscribe a1, send",
			"+a1 !a1 not yet !a1 woken +a1"},
		"the server ends it during the proof": {
			"subscribe a1, send, has a1, probe, ends a1, probe again, answer, subscribe a1, send, has a1, probe, proves a1, answer",
			"+a1 ?a1 !a1 not yet !a1 woken +a1 ?a1 !a1 proven"},
		"is left after two looks": {
			"subscribe a1, send, has a1, probe, proves a1, answer, tidy, leave a1, tidy, tidy again, tidy, subscribe a1, send",
			"+a1 ?a1 !a1 proven -a1 +a1"},
		"is not left while it is used": {
			"subscribe a1, send, has a1, probe, proves a1, answer, leave a1, tidy, subscribe a1, leave a1, tidy, tidy again",
			"+a1 ?a1 !a1 proven !a1 proven -a1"},
		"is not left while that is not safe": {
			"subscribe a1, send, has a1, probe, proves a1, answer, leave a1, tidy, busy, busy again, tidy",
			"+a1 ?a1 !a1 proven -a1"},
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
	s.play("subscribe a1")
	close(s.user("a").closed)
	s.play("send")
	s.play("answer")
	other := &Waiter{Wait: Wait{Own: "a1"}, user: s.user("b"), wakeup: newSignal()}
	is, asked, wanted := s.mail.subscribe(other)
	require.Equal(t, NotYet, is)
	require.False(t, asked || wanted)
	require.Equal(t, []string{"+a1"}, s.said)
	require.Equal(t, []string{"a1"}, slices.Collect(maps.Keys(s.mail.channels)))
}

// A connection must not keep a closed registry in memory.
func TestMail_ForgetsAClosedUser(t *testing.T) {
	t.Parallel()
	m, proven, deaf := newMail(), &user{closed: make(chan struct{})}, &user{closed: make(chan struct{})}
	m.proven(&own{user: proven})
	m.deafen(deaf)
	require.Len(t, m.proofs, 2)
	for _, u := range []*user{proven, deaf} {
		close(u.closed)
		m.removeUser(u)
		m.proven(&own{user: u}) // late
		m.deafen(u)
	}
	require.Empty(t, m.proofs)
}
