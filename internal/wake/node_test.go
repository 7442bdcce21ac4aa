package wake

import (
	"errors"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// TestNode plays events to a node with one waiter, w, and notes what it does. Events:
//
//	arm, hear     the waiter asks; "waits" if an answer comes
//	begin n       connection n serves; "no" if that is too late
//	lose          it is lost
//	suspect       a message was missed
//	message n     one arrives on an own channel, on connection n; "taken" if it counts
//	pass          a second goes by
//	refuse        the server allows no way to listen
//	end           the node is ended
//
// "start" starts its goroutine, "work" tells that there is something to do, "drop" ends a connection, and "!" wakes the waiter.
func TestNode(t *testing.T) {
	for name, c := range map[string]struct{ events, said string }{
		"a call that waits begins it": {"arm, begin 1, arm", "start work ! waits work"},
		"a call that hears begins it": {"hear, begin 1, hear", "start work ! waits work"},
		"it is started once":          {"arm, begin 1, lose, hear", "start work ! work"},
		"a loss wakes who relied":     {"arm, begin 1, arm, lose, arm", "start work ! waits work ! work"},
		"a loss wakes nobody else":    {"arm, begin 1, lose", "start work !"},
		"missed twice":                {"arm, begin 1, pass, suspect, suspect again", "start work ! drop"},
		"missed once, and then heard": {
			"hear, begin 1, hear, pass, suspect, message 1, suspect",
			"start work ! waits work taken"},
		"missed on a new connection":  {"arm, begin 1, suspect, suspect again", "start work !"},
		"missed on two connections":   {"arm, begin 1, pass, suspect, lose, arm, begin 2, pass, suspect", "start work ! work !"},
		"missed without a connection": {"suspect, suspect again", ""},
		"a message of a former connection": {
			"hear, begin 1, lose, hear, begin 2, hear, message 1, message 2",
			"start work ! work ! waits work taken"},
		"a user is refused": {
			"hear, begin 1, hear, refuse, arm, hear, lose, arm, hear",
			"start work ! waits work ! deaf ! deaf"},
		"after its end it does not begin": {"arm, end, begin 1, arm, hear", "start work cancel no"},
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
				n := newNode(new(sync.Mutex), "", map[*user]struct{}{u: {}})
				n.start = func() { say("start", true) }
				n.endRunner = func(error) { say("cancel", true) }
				w := &Waiter{Wait: Wait{Key: "key", Own: "own"}, user: u, wakeup: newSignal()}
				require.True(t, n.add(w))
				for event := range strings.SplitSeq(c.events, ", ") {
					word, object, _ := strings.Cut(event, " ")
					number, _ := strconv.ParseUint(object, 10, 64)
					switch word {
					case "arm":
						say("waits", n.arm(w))
					case "hear":
						hearing, asked := n.hear(w)
						say("waits", asked)
						say("deaf", hearing == Deaf)
					case "begin":
						say("no", !n.begin(number, func(err error) { say("drop", errors.Is(err, errSuspect)) }))
					case "lose":
						n.loseConnection()
					case "suspect":
						n.suspect(time.Now(), trusted)
					case "message":
						to, _ := n.published(number, "own", "message")
						say("taken", to == u)
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
					say("!", len(w.wakeup) > 0)
					n.wakeup.clear()
					w.wakeup.clear()
				}
				require.Equal(t, c.said, strings.Join(said, " "))
			})
		})
	}
}

// What does not work is told to one of the users that write to the same place.
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
