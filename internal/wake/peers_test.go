package wake

import (
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// keys plays events to peers, and notes what they want and say. An event is a word and its object; a waiter is named by its user
// and its key, as t:k. The user t listens by tracking, s by subscribing, e by either; all have the common channel "common".
//
//	ask t:k        a waiter asks to be watched; it is made when it is new
//	close t:k      it is closed
//	tracks         the server tracks on this connection
//	send           what is wanted is sent: "k?" is read, "k?2" for two waiters, "+k" is subscribed to, "++k" also in its slot
//	look k 100     the reply of PTTL
//	refuse k       the server refuses the channel
//	answer         the server has answered the rest
//	changed k      the server reports a change; "changed" alone: of all keys
//	message c k    a message on a channel
//	resume t:k     a pause is over
//	tidy           it is time to leave channels: "-k" is left
//	lost           the connection is lost
//
// An answer is noted as "t:k=" and what it says, a wake-up as "!t:k". After a pause the answer is for the next call that asks.
type keys struct {
	*testing.T
	peers   peers
	users   map[string]*user
	waiters map[string]*Waiter
	sent    enlisted
	now     time.Time
	said    []string
}

// paused is a hub for which pauses are over when a test says so.
type paused struct{ requests }

func (paused) resume(*Waiter) {}

func newKeys(t *testing.T) *keys {
	t.Helper()
	return &keys{T: t, peers: newPeers(), now: after(0), waiters: map[string]*Waiter{}, users: map[string]*user{
		"t": {Options: Options{Track: true, Common: "common"}},
		"s": {Options: Options{Subscribe: true, Common: "common"}},
		"e": {Options: Options{Track: true, Subscribe: true, Common: "common"}},
		"r": {}, // is refused
	}}
}

func (k *keys) say(marks string, names ...string) {
	for _, name := range names {
		k.said = append(k.said, strings.ReplaceAll(marks, "*", name))
	}
}

func (k *keys) waiter(name string) *Waiter {
	w := k.waiters[name]
	if w == nil {
		u, key, _ := strings.Cut(name, ":")
		w = &Waiter{Wait: Wait{Key: key, Channel: key}, user: k.users[u], sharded: key == "slot", wakeup: newSignal(), hub: paused{}}
		w.watches, w.throttle.poll = true, time.Minute
		k.waiters[name] = w
		k.peers.add(w)
	}
	return w
}

func (k *keys) play(event string) {
	word, object, _ := strings.Cut(event, " ")
	k.now = k.now.Add(time.Millisecond)
	switch word {
	case "ask":
		k.peers.ask(k.waiter(object))
	case "close":
		w := k.waiter(object)
		w.unpause()
		k.peers.remove(w)
	case "tracks":
		k.peers.tracks = true
	case "send":
		asked := k.peers.next()
		slices.SortFunc(asked, func(a, b *Waiter) int { return strings.Compare(a.Key, b.Key) })
		k.sent = k.peers.enlist(asked, func(u *user) bool { return u != k.users["r"] })
		reads := map[string]int{}
		for _, w := range k.sent.tracked {
			reads[w.Key]++
		}
		for _, key := range slices.Sorted(maps.Keys(reads)) {
			k.say("*?"+strings.TrimPrefix(strconv.Itoa(reads[key]), "1"), key)
		}
		k.say("+*", k.sent.channels...)
		k.say("++*", k.sent.inSlots...)
	case "look":
		k.look(object)
	case "refuse":
		for _, u := range k.peers.channels.answered(object, true) {
			k.say("refused:*", map[*user]string{k.users["s"]: "s", k.users["e"]: "e"}[u])
		}
	case "answer":
		k.peers.subscribed(k.sent.others)
	case "changed":
		if object == "" {
			k.peers.allChanged(k.now)
		} else {
			k.peers.changed(object, k.now)
		}
	case "message":
		channel, key, _ := strings.Cut(object, " ")
		k.peers.published(channel, key)
	case "resume":
		w := k.waiters[object]
		require.NotNil(k, w.paused)
		w.paused.Stop()
		k.peers.resume(w)
	case "tidy":
		names, inSlots := k.peers.channels.unused()
		k.say("-*", names...)
		k.say("--*", inSlots...)
	case "lost":
		k.peers.lost()
	default:
		k.Fatal("no such event: " + event)
	}
	k.answers()
}

func (k *keys) look(object string) {
	key, reply, _ := strings.Cut(object, " ")
	var of []*Waiter
	for _, w := range k.sent.tracked {
		if w.Key == key {
			of = append(of, w)
		}
	}
	looks := make([]look, len(of))
	for i := range looks {
		pttl, err := strconv.ParseInt(reply, 10, 64)
		looks[i] = look{pttl, err != nil}
	}
	k.peers.looked(of, looks, k.now, k.now)
}

func (k *keys) answers() {
	for _, name := range slices.Sorted(maps.Keys(k.waiters)) {
		w := k.waiters[name]
		select {
		case s := <-w.ready:
			switch {
			case s.Taken && s.Watched:
				k.say("*=taken", name)
			case s.Watched:
				k.say("*=watched", name)
			default:
				k.say("*=no", name)
			}
		default:
		}
		select {
		case <-w.wakeup:
			k.say("!*", name)
		default:
		}
	}
}

func TestPeers(t *testing.T) {
	for name, c := range map[string]struct{ events, said string }{
		"tracks, and reads the key": {"tracks, ask t:k, send, look k 100, answer, changed k", "k? t:k=taken !t:k"},
		"a free key":                {"tracks, ask t:k, send, look k -2, changed k", "k? t:k=watched !t:k"},
		"a change wakes once":       {"tracks, ask t:k, send, look k 100, changed k, changed k", "k? t:k=taken !t:k"},
		"a change before the reply": {"tracks, ask t:k, send, changed k, look k 100", "k? !t:k t:k=no !t:k"},
		"all keys may have changed": {
			"tracks, ask t:k, ask t:l, send, look k 9, look l 9, changed", "k? l? t:k=taken t:l=taken !t:k !t:l"},
		"a key that may not be read":       {"tracks, ask t:k, send, look k NOPERM, changed k", "k? t:k=no"},
		"subscribes without tracking":      {"ask e:k, send, answer, message k k, message common k", "+k e:k=watched !e:k !e:k"},
		"does not subscribe while tracked": {"tracks, ask e:k, send, look k 100, message common k, changed k", "k? e:k=taken !e:k"},
		"each by its own way": {
			"tracks, ask t:k, ask s:k, send, look k 100, answer, message k k", "k? +k t:k=taken s:k=watched !s:k"},
		"nobody is watched without a way": {"ask r:k, send", "r:k=no"},
		"also in the slot":                {"ask s:slot, send, answer, close s:slot, tidy", "+slot ++slot s:slot=watched -slot --slot"},
		"a channel is subscribed once": {
			"ask s:k, send, answer, ask s:k, ask e:k, send, answer", "+k s:k=watched e:k=watched s:k=watched"},
		"a channel is kept for the next": {
			"ask s:k, send, answer, close s:k, ask e:k, send, answer, tidy", "+k s:k=watched e:k=watched"},
		"a channel is left":              {"ask s:k, send, answer, close s:k, tidy, tidy again, message k k", "+k s:k=watched -k"},
		"a refused channel":              {"ask s:k, send, refuse k, answer, message k k", "+k refused:s s:k=no"},
		"a closed waiter is not watched": {"ask s:k, close s:k, send, answer", ""},
		"closed while it is watched":     {"tracks, ask t:k, send, close t:k, look k 100, changed k", "k?"},
		"another one of the same key":    {"tracks, ask t:k, ask e:k, send, close t:k, look k 100, changed k", "k?2 e:k=taken !e:k"},
		"throttled it pauses": {
			"tracks, ask t:k, send, look k -1, changed k, ask t:k, send, look k -1, changed k, resume t:k, send, look k -1",
			"k? t:k=taken !t:k k? t:k=taken k? t:k=taken"},
		"throttled, until there is a reason": {
			"tracks, ask t:k, send, look k -1, changed k, ask t:k, send, look k -1, changed k, resume t:k, send, look k -2",
			"k? t:k=taken !t:k k? t:k=taken k? t:k=watched !t:k"},
		"throttled, and nobody knows whether there is a reason": {
			"tracks, ask t:k, send, look k -1, changed k, ask t:k, send, look k -1, changed k, resume t:k, send, look k BUSY",
			"k? t:k=taken !t:k k? t:k=taken k? t:k=no !t:k"},
		"a loss wakes whom it concerns": {
			"tracks, ask t:k, send, look k 100, ask t:l, ask s:m, send, answer, lost, changed k, message m m",
			"k? t:k=taken l? +m s:m=watched !s:m !t:k t:l=no !t:l"},
		"after a loss all is new": {
			"tracks, ask e:k, send, look k 100, lost, ask e:k, send, answer", "k? e:k=taken !e:k +k e:k=watched"},
	} {
		t.Run(name, func(t *testing.T) {
			k := newKeys(t)
			for event := range strings.SplitSeq(c.events, ", ") {
				k.play(event)
			}
			require.Equal(t, c.said, strings.Join(k.said, " "))
		})
	}
}

// Many channels are subscribed to with one command, and only the first that is idle wakes the runner.
func TestPeers_ManyChannels(t *testing.T) {
	k := newKeys(t)
	for i := range batch {
		k.play("ask s:" + strconv.Itoa(i))
	}
	k.play("send")
	require.Len(t, k.sent.channels, batch)
	for i := range batch {
		require.Equal(t, i == 0, k.peers.remove(k.waiter("s:"+strconv.Itoa(i))))
	}
	names, _ := k.peers.channels.unused()
	require.Len(t, names, batch)
}
