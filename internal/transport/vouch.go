package transport

import (
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/rueidis"

	"github.com/lockregistry/lockregistry/internal/belief"
	"github.com/lockregistry/lockregistry/internal/clock"
	"github.com/lockregistry/lockregistry/internal/sentinel"
	"github.com/lockregistry/lockregistry/internal/topology"
)

// vouching is how a client for Sentinel learns whether its server is still the master.
//
// A master may freeze, be deposed, and resume. It then answers as a master until it is demoted, some 10 s later, over old and
// new connections, even to a process that noticed nothing because it sent nothing. Only the Sentinels know better. So, while
// there is a watch:
//
//   - The events that they publish before a failover raise a doubt, even if the node is idle. Replies to earlier commands are
//     late then.
//   - On a suspect node a way is used only once the Sentinels vouch for the server that it leads to; see sentinel.Judge. They
//     are asked after that server has greeted.
//   - A process that was frozen has missed events. That raises a doubt, too, which a timer or the next command notices.
//   - The client may go back to a former master, if the Sentinel that it follows ends, and the next one lags. So a reply that may
//     obtain a lock counts only if the client uses the server for which they vouched.
//   - A broken connection makes the node suspect, since the process may have been cut off from the Sentinels, too.
//
// Without a watch the client's own change to another master is all that is known. It comes up to 2 s after the promotion, and
// later if the Sentinel that it follows leads the failover and waits for replicas.
//
//	deposed master   |--- frozen ---|-------- answers as a master ---------| demoted
//	Sentinels                +sdown +odown +try-failover   promotion
//	node            healthy | doubted: nothing is sent                    |
//	client                                                  changes to the successor, for which they vouch
//
// If most Sentinels do not answer, find the server down, or do not agree, it is believed in the end all the same: see
// sentinel.Verdict.Suffices.
type vouching struct {
	mu     sync.Mutex                // guards the beginning of the watch
	watch  atomic.Pointer[Sentinels] // nil: there is none; set after log
	log    func(level slog.Level, message string, about ...slog.Attr)
	logged atomic.Bool // it was logged that they do not vouch
	young  atomic.Bool // the client's connections were made just before the watch, with an address that a Sentinel named
	over   atomic.Bool // the watch has ended
}

// Sentinels are those of a client's master set; see sentinel.Watch.
type Sentinels interface {
	Begin(using func() string, doubt func())
	Ask(address string, limit, rest time.Duration) sentinel.Verdict
	Absent() []string
	Against() []string
	Close()
}

const (
	answerWait = 3 * belief.Tick    // for the Sentinels, plus two round trips
	firstWord  = 3 * belief.Connect // for the Sentinels when the watch begins: each may hang once, and be dialled again
)

// LedBySentinel notes that the client's connections have just been made, to the master that a Sentinel names.
func (t *Client) LedBySentinel() { t.vouching.young.Store(true) }

// Watch begins to ask the client's Sentinels, unless a watch has begun before. The client's server is in doubt until they vouch
// for it: a failover may be under way, and connections that other registries have made on the client may lead to a deposed
// master. Heard is closed when the Sentinels have answered for the first time, or the time for that is over.
func (t *Client) Watch(
	w Sentinels, log func(level slog.Level, message string, about ...slog.Attr),
) (heard <-chan struct{}) {
	v, first := &t.vouching, make(chan struct{})
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.watch.Load() != nil {
		close(first)
		return first
	}
	v.log = log
	v.watch.Store(&w)
	s, now, used := t.First, t.Clock.Now(), t.First.present()
	s.belief.Watched(now)
	w.Begin(s.present, s.doubted)
	time.AfterFunc(belief.BeatEvery, t.onBeat)
	go func() {
		defer close(first)
		t.hearFirstWord(w, used, now)
	}()
	return first
}

// hearFirstWord asks the Sentinels about the server at the address that the client used when the watch began, see
// [belief.State.FirstWord]. If that does not end the doubt, the first call waits, see sentinel.LongestDoubt.
func (t *Client) hearFirstWord(w Sentinels, used string, began clock.Instant) {
	s := t.First
	verdict := w.Ask(used, firstWord, answerWait)
	s.noticeStandstill()
	s.belief.FirstWord(word(verdict, 0), used, s.present() == used, t.vouching.young.Load(), began, t.Clock.Now())
	if verdict == sentinel.Unknown && !t.vouching.over.Load() {
		t.vouching.log(slog.LevelWarn, "most Sentinels do not answer: until they do, a failover may go unnoticed",
			slog.Any("silent", w.Absent()))
	}
}

// onBeat notes that the process runs, and notices if it stood still.
func (t *Client) onBeat() {
	if !t.vouching.over.Load() {
		now := t.Clock.Now()
		t.First.act(t.First.belief.Beat(now), now)
		time.AfterFunc(belief.BeatEvery, t.onBeat)
	}
}

// word is what a verdict comes to for a server that greeted a while ago.
func word(v sentinel.Verdict, waited time.Duration) belief.Word {
	switch {
	case v.Suffices(waited):
		return belief.Vouching
	case v == sentinel.Unknown:
		return belief.Unheard
	default:
		return belief.Against
	}
}

// watched reports whether Sentinels are asked.
func (t *Client) watched() bool { return t.vouching.watch.Load() != nil }

// present returns the address of the server that a client for Sentinel uses; if it also uses replicas, all addresses; empty for
// other clients. A wrapper may block, so no mutex may be held.
func (t *Client) present() string {
	if t.mode != rueidis.ClientModeSentinel {
		return ""
	}
	return strings.Join(topology.Servers(t.redis), " ")
}

// vouch asks the Sentinels about a way, and notes what they say. If the server refuses connections, the way is never greeted.
func (s *Node) vouch(w *belief.Way) (says belief.Word, asked, now clock.Instant) {
	t, limit := s.client, s.Plus(answerWait)
	asked = t.Clock.Now()
	verdict := (*t.vouching.watch.Load()).Ask(w.Address, limit, limit)
	now = t.Clock.Now()
	s.noticeStandstill() // a timer may notice too late; what the Sentinels said before a standstill does not count
	waited, used := w.Waited(now), s.present() == w.Address
	says = word(verdict, waited)
	if used {
		s.act(s.belief.Told(says, w.Address, asked, now), now)
	}
	switch {
	case says != belief.Vouching:
		t.vouching.logWait(verdict, waited, w.Address)
	case !used || w.Greeted == clock.Never || s.belief.DoubtedSince(asked): // mutant: believed again too soon
	case t.vouching.logged.Swap(false):
		t.vouching.log(slog.LevelInfo, "locks are granted again",
			slog.String("server", w.Address), slog.String("sentinels", verdict.String()))
	}
	return says, asked, now
}

// logWait logs once why no lock is granted, when that has lasted for a second.
func (v *vouching) logWait(verdict sentinel.Verdict, waited time.Duration, address string) {
	about := slog.String("server", address)
	switch {
	case waited < belief.Connect || v.logged.Swap(true):
	case verdict == sentinel.Unknown:
		v.log(slog.LevelWarn,
			"no lock is granted for now: most Sentinels do not say whether the server is the master", about,
			slog.Any("silent", (*v.watch.Load()).Absent()), slog.Duration("at_most", sentinel.LongestDoubt))
	case verdict == sentinel.Down:
		v.log(slog.LevelWarn, "no lock is granted for now: the server answers, but the Sentinels consider it down",
			about, slog.Duration("at_most", sentinel.LongestDoubt))
	case verdict == sentinel.Elected:
		limit, _ := verdict.Longest()
		v.log(slog.LevelWarn, "no lock is granted for now: a Sentinel with votes to lead a failover does not answer",
			about, slog.Any("silent", (*v.watch.Load()).Absent()), slog.Duration("at_most", limit))
	case verdict == sentinel.Disputed, verdict == sentinel.Contested:
		limit, _ := verdict.Longest()
		v.log(slog.LevelWarn, "no lock is granted for now: most Sentinels name the server as the master, but some name another",
			about, slog.Any("name_another", (*v.watch.Load()).Against()), slog.Duration("at_most", limit))
	default:
		v.log(slog.LevelWarn, "no lock is granted for now: the Sentinels are replacing the server, or disagree about it", about,
			slog.Any("name_another", (*v.watch.Load()).Against()))
	}
}
