package wake

import (
	"errors"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"
)

// TestNode plays events to a node with one waiter, w, and notes what it does. Events:
//
//	watch, subscribe  the waiter asks; "waits" if an answer comes
//	begin n           connection n serves; "no" if that is too late
//	lose              it is lost
//	suspect           a message was missed
//	message n         one arrives on an own channel, on connection n; "taken" if it counts
//	has n, ends n     the server confirms the subscription to the own channel, and ends it, on connection n
//	pass              a second goes by
//	refuse            the server allows no way to listen
//	end               the node is ended
//
// "start" starts its goroutine, "work" tells that there is something to do, "drop" ends a connection, "moved" has the hub look
// which server has the slot, and "!" wakes the waiter.
func TestNode(t *testing.T) {
	for name, c := range map[string]struct{ events, said string }{
		"a call that waits begins it":      {"watch, begin 1, watch", "start work ! waits work"},
		"a call that subscribes begins it": {"subscribe, begin 1, subscribe", "start work ! waits work"},
		"it is started once":               {"watch, begin 1, lose, subscribe", "start work ! work"},
		"a loss wakes who relied":          {"watch, begin 1, watch, lose, watch", "start work ! waits work ! work"},
		"a loss wakes nobody else":         {"watch, begin 1, lose", "start work !"},
		"missed twice":                     {"watch, begin 1, pass, suspect, suspect again", "start work ! drop"},
		"missed once, and then not": {
			"subscribe, begin 1, subscribe, pass, suspect, message 1, suspect",
			"start work ! waits work taken"},
		"missed on a new connection":  {"watch, begin 1, suspect, suspect again", "start work !"},
		"missed on two connections":   {"watch, begin 1, pass, suspect, lose, watch, begin 2, pass, suspect", "start work ! work !"},
		"missed without a connection": {"suspect, suspect again", ""},
		"a message of a former connection": {
			"subscribe, begin 1, lose, subscribe, begin 2, subscribe, message 1, message 2",
			"start work ! work ! waits work taken"},
		"the server ends a subscription": {
			"subscribe, begin 1, subscribe, has 1, ends 1, ends 1, subscribe", "start work ! waits work moved ! waits work"},
		"the end of one that is not confirmed": {"subscribe, begin 1, subscribe, ends 1", "start work ! waits work"},
		"a subscription of a former connection": {
			"subscribe, begin 1, lose, subscribe, begin 2, subscribe, has 1, ends 2, has 2, ends 1, message 2, ends 2",
			"start work ! work ! waits work taken moved !"},
		"a user is refused": {
			"subscribe, begin 1, subscribe, refuse, watch, subscribe, lose, watch, subscribe",
			"start work ! waits work ! deaf ! deaf"},
		"after its end it does not begin": {"watch, end, begin 1, watch, subscribe", "start work cancel no"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var said []string
				say := func(what string, happened bool) {
					if happened {
						said = append(said, what)
					}
				}
				u := &user{closed: make(chan struct{})}
				u.Message = func(string, string) { say("taken", true) }
				n := newNode(new(sync.Mutex), "", map[*user]struct{}{u: {}})
				n.moved = newSignal()
				n.start = func() { say("start", true) }
				n.endRunner = func(error) { say("cancel", true) }
				w := &Waiter{Wait: Wait{Key: "key", Own: "own"}, user: u, wakeup: newSignal()}
				n.add(w)
				for event := range strings.SplitSeq(c.events, ", ") {
					word, object, _ := strings.Cut(event, " ")
					number, _ := strconv.ParseUint(object, 10, 64)
					switch word {
					case "watch":
						say("waits", n.watch(w))
					case "subscribe":
						is, asked := n.subscribe(w)
						say("waits", asked)
						say("deaf", is == Deaf)
					case "begin":
						say("no", !n.begin(number, func(err error) { say("drop", errors.Is(err, errSuspect)) }))
					case "lose":
						n.loseConnection()
					case "suspect":
						n.suspect(time.Now(), trusted)
					case "message":
						n.published(number, rueidis.PubSubMessage{Channel: "own", Message: "message"})
					case "has", "ends":
						kind := map[string]string{"has": "ssubscribe", "ends": "sunsubscribe"}[word]
						n.announced(number, rueidis.PubSubSubscription{Kind: kind, Channel: "own"})
					case "pass":
						<-time.After(trusted)
					case "refuse":
						n.refuse(u)
					case "end":
						n.end(nil)
					}
					w.answered.clear()
					w.waits = false
					say("work", len(n.wakeup) > 0)
					say("moved", len(n.moved) > 0)
					say("!", len(w.wakeup) > 0)
					n.wakeup.clear()
					n.moved.clear()
					w.wakeup.clear()
				}
				require.Equal(t, c.said, strings.Join(said, " "))
			})
		})
	}
}

// Of the users that write to the same place, only one is told that a way does not work.
func TestNode_TellsOfAWayOnce(t *testing.T) {
	a, b, elsewhere := &user{notified: map[string]bool{}}, &user{notified: map[string]bool{}}, &user{notified: map[string]bool{}}
	elsewhere.Sink = "elsewhere"
	n := newNode(new(sync.Mutex), "", map[*user]struct{}{a: {}, b: {}, elsewhere: {}})
	require.True(t, n.notifies(a, "tracking"))
	require.False(t, n.notifies(a, "tracking"))
	require.False(t, n.notifies(b, "tracking"))
	require.True(t, n.notifies(b, "subscribing"))
	require.True(t, n.notifies(elsewhere, "tracking"))
	n.removeUser(b)
	require.False(t, n.notifies(b, "queueing"), "it is closed")
}

// A waiter whose key moves to a server that refuses its user learns that, and polls. Otherwise it would ask all servers for the
// key's again and again.
func TestHub_MovesAWaiterToAServerThatRefusesItsUser(t *testing.T) {
	u := &user{closed: make(chan struct{})}
	h := &hub{
		shared: shared{cluster: true, moved: newSignal()}, users: map[*user]struct{}{u: {}},
		nodes: map[string]*node{}, at: map[*Waiter]*node{}, servers: servers{following: true},
	}
	from, to := newNode(&h.mu, "from", h.users), newNode(&h.mu, "to", h.users)
	to.refuse(u)
	w := &Waiter{Wait: Wait{Key: "key", Own: "own"}, user: u, hub: h, wakeup: newSignal()}
	from.add(w)
	h.at[w] = from
	h.move(w, from, to)
	is, asked := h.subscribe(w)
	require.Equal(t, Deaf, is)
	require.False(t, asked)
	require.False(t, h.watch(w))
	require.Empty(t, h.moved, "it is known where the key is")
	h.remove(w)
	require.True(t, from.idle() && to.idle())
}
