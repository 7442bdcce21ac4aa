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
// A master that is frozen, deposed, and goes on answers as a master until it is demoted, some 10 s later: over old connections
// and new ones, at once, and also a process that noticed nothing because it sent nothing. Only the Sentinels know. So, while
// there is a watch:
//
//   - What they publish before a failover raises a doubt, also if the shard is idle. Then replies to earlier commands are late.
//   - On a suspect shard a way is used only once the Sentinels vouch for the server that it leads to; see sentinel.Judge. They
//     are asked after that server has greeted.
//   - A process that stood still has missed what they published. That raises a doubt, too: a timer finds it out, or the next
//     command.
//   - The client may go back to a former master, if the Sentinel that it follows ends, and the next one lags. So a reply that may
//     obtain a lock counts only if the client uses the server for which they vouched.
//   - A broken connection makes the shard suspect, since the process may have been cut off from the Sentinels, too.
//
// Without a watch the client's own change to another master is all that is known. It comes up to 2 s after the promotion, and
// later if the Sentinel that it follows leads the failover and waits for replicas.
//
//	deposed master   |--- frozen ---|-------- answers as a master ---------| demoted
//	Sentinels                +sdown +odown +try-failover   promotion
//	shard            healthy | doubted: nothing is sent                    |
//	client                                                  changes to the successor, for which they vouch
//
// A doubt lasts until they have vouched, however long that takes:
//
//	trusted ──event, standstill, the watch begins, they do not vouch when asked──▶ doubted ◀──the same──┐
//	   ▲                                                                             │                  │
//	   │                                              they vouch, asked after the newest doubt          │
//	   │                                                                             ▼                  │
//	   └────────────────────────── after suspectFor ───────────────────────────── vouched ──────────────┘
//
//	trusted  commands go over the client's own connections, and nobody is asked
//	doubted  only a way for which the Sentinels vouch is used; whoever wants to send asks them; an idle process does not
//	vouched  commands go over that way; a silence that is noticed by this process alone begins here, too: it passes with time
//
// To vouch for it they need not name a server: see sentinel.Verdict.Suffices for what is believed in the end if most do not
// answer, find it down, or do not agree.
type vouching struct {
	mu    sync.Mutex                // for the beginning
	watch atomic.Pointer[Sentinels] // nil: there is none; set after log and ends
	log   func(level slog.Level, message string, about ...slog.Attr)
	of    bool          // the client is for Sentinel
	said  atomic.Bool   // it was logged that they do not vouch
	young atomic.Bool   // the client's connections were made just before the watch, with an address that a Sentinel named
	spoke atomic.Int64  // an instant: when their first word was heard, or was no longer waited for; 0: not yet
	beat  atomic.Int64  // an instant: when the timer of beats last fired; 0: there is none
	ends  chan struct{} // closed when the watch is

	server atomic.Pointer[string] // the address of the server that was believed last; set before doubt of it ends; nil: none was
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
	answerWait = 3 * belief.Tick      // for the Sentinels, plus two round trips
	askAgain   = belief.Tick / 5      // the pause before they are asked again
	sayAfter   = belief.Connect       // of doubt; sooner nothing is logged
	beatEvery  = belief.Pause * 2 / 5 // so that two that are missing are a pause
	firstWord  = 3 * belief.Connect   // for the Sentinels when the watch begins: each hangs once, and is dialled again
)

// LedBySentinel notes that the client's connections have just been made, to the master that a Sentinel names.
func (t *Client) LedBySentinel() { t.vouching.young.Store(true) }

// Watch has the client's Sentinels asked from now on, unless that has begun before. Its server is doubted until they have vouched
// for it: a failover may be under way, and connections that other registries on the client have made may lead to a master that
// was deposed. Heard is closed when they have said their first word, or have not in time.
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
	v.log, v.ends = log, make(chan struct{})
	v.watch.Store(&w)
	s, now, used := t.First, t.Clock.Now(), t.First.present()
	s.doubt(now) // mutant: begins without doubt
	w.Begin(s.present, s.doubted)
	v.beat.Store(int64(now))
	time.AfterFunc(beatEvery, t.onBeat)
	go func() {
		defer close(first)
		t.hearFirstWord(w, used, now)
	}()
	return first
}

// hearFirstWord ends the doubt with which a watch begins, unless the Sentinels have raised another one, or the client has left
// the server at the address that it used. Where they do not answer, it ends all the same if the client's connections are young: a
// Sentinel has just named the server, nothing else speaks against it, and locks were lost for nothing. Older connections may lead
// to a master that was deposed, until it is demoted: then the first call waits, see sentinel.LongestDoubt.
func (t *Client) hearFirstWord(w Sentinels, used string, began clock.Instant) {
	s := t.First
	verdict := w.Ask(used, firstWord, answerWait)
	t.noticeStandstill(t.Clock.Now())
	nobody := verdict == sentinel.Unknown && t.vouching.young.Load() // mutant: old connections trusted
	if (nobody || verdict == sentinel.Vouched) && s.present() == used {
		t.vouching.server.Store(&used)
		s.vouched(began, 0)
	}
	t.vouching.spoke.Store(int64(t.Clock.Now()))
	if verdict == sentinel.Unknown && !t.closed() {
		t.vouching.log(slog.LevelWarn, "most Sentinels do not answer: until they do, a failover may go unnoticed",
			slog.Any("without an answer", w.Absent()))
	}
}

func (t *Client) closed() bool {
	select {
	case <-t.vouching.ends:
		return true
	default:
		return false
	}
}

// endWatch is called when no registry is open any more.
func (v *vouching) endWatch() {
	if w := v.watch.Load(); w != nil {
		close(v.ends)
		(*w).Close()
	}
}

// onBeat notes that the process runs, and notices if it stood still.
func (t *Client) onBeat() {
	if !t.closed() {
		t.noticeStandstill(t.Clock.Now())
		t.vouching.beat.Store(int64(t.Clock.Now()))
		time.AfterFunc(beatEvery, t.onBeat)
	}
}

// noticeStandstill makes the shard suspect if the process stood still for so long that the Sentinels may have begun and ended a
// failover. A command calls it unless the server has just been heard from: so it does so before the timer, or what was published
// meanwhile, can be handled.
func (t *Client) noticeStandstill(now clock.Instant) {
	beat := t.vouching.beat.Load()
	if beat == 0 || clock.Instant(beat).Until(now) < pauseMost {
		return
	}
	if t.vouching.beat.CompareAndSwap(beat, int64(now)) {
		t.First.doubted() // mutant: standstill unnoticed
	}
}

// doubted makes the shard suspect because its master may be about to be replaced.
func (s *Shard) doubted() {
	now := s.client.Clock.Now() // mutant: doubt unheard
	s.doubt(now)
	s.foundSilent(now, now)
}

// watched reports whether Sentinels are asked.
func (t *Client) watched() bool { return t.vouching.watch.Load() != nil }

// isOfSentinel reports whether a client is for Sentinel.
func isOfSentinel(client rueidis.Client) bool { return client.Mode() == rueidis.ClientModeSentinel }

// present returns the address of the server that a client for Sentinel uses; if it also uses replicas, all addresses; empty for
// other clients. A wrapper may block, so no mutex may be held.
func (s *Shard) present() string {
	if !s.client.vouching.of {
		return ""
	}
	return strings.Join(topology.Servers(s.client.redis), " ")
}

// left reports whether what came over a way is not to be believed: the client has left the server at the address to which it
// leads, or the Sentinels have begun to doubt that since they were asked, or may have: the process stood still.
func (s *Shard) left(address string, asked clock.Instant) bool {
	s.client.noticeStandstill(s.client.Clock.Now())
	return s.present() != address || s.client.watched() && s.doubtedSince(asked)
}

// changed reports whether the client uses another server than the one that was believed last. That is a doubt. While there is
// one, the ways of a suspect shard lead only to what the Sentinels vouch for, and that is noted first.
func (s *Shard) changed() bool {
	believed := s.client.vouching.server.Load()
	if believed == nil || s.present() == *believed {
		return false
	}
	if !s.inDoubt.Load() {
		s.doubted()
	}
	return true // mutant: change unnoticed
}

// way is a connection, or the client's own connections, to the server that a client used at some time.
type way struct {
	address string        // see present
	since   clock.Instant // when making it began; when the choice fell on the client's own connections
	greeted clock.Instant // when the server had greeted it
	trusted bool          // the Sentinels have vouched for the server since then, or there are none to ask
	asked   clock.Instant // when they were last asked
	asking  chan struct{} // closed when the Sentinels have been asked; nil: they are not asked now
	again   clock.Instant // they are not asked again before this
}

// doubts reports whether doubt was raised of a way for which the Sentinels had vouched: another one is needed then. So a way that
// is trusted does not change any more, and can be read without the mutex.
func (s *Shard) doubts(w *way) bool {
	return w.trusted && s.client.watched() && s.doubtedSince(w.asked)
}

// ask has the Sentinels asked about a way, unless that is under way. It returns what to wait for, until when at most. The caller
// holds the mutex.
func (f *freshConns) ask(w *way, now clock.Instant) (done <-chan struct{}, due clock.Instant) {
	if w.asking == nil && now < w.again {
		return nil, w.again
	}
	if w.asking == nil {
		w.asking = make(chan struct{})
		go f.vouch(w)
	}
	return w.asking, now.Add(firstWord)
}

func (f *freshConns) vouch(w *way) {
	s, t := f.shard, f.shard.client
	limit, asked := s.Plus(answerWait), t.Clock.Now()
	verdict := (*t.vouching.watch.Load()).Ask(w.address, limit, limit)
	now := t.Clock.Now()
	t.noticeStandstill(now) // else a timer may find it out too late; what the Sentinels said before it does not count
	waited, used := w.greeted.Until(now), s.present() == w.address
	t.vouching.say(verdict, waited, w.address)
	if used && verdict.Suffices(waited) {
		t.vouching.server.Store(&w.address)
	}
	if used {
		s.judged(verdict, waited, asked, now)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	w.trusted, w.asked = verdict.Suffices(waited), asked // mutant: nobody vouches
	close(w.asking)
	w.asking, w.again = nil, now.Add(askAgain)
}

// judged takes what the Sentinels say of the server that is in use. One for which they do not vouch is doubted, also by whoever
// sends nothing from now on. If they say nothing, that is no new doubt before their first word was due: see hearFirstWord.
//
// A doubt that is raised between the two parts of vouch is not lost: it is newer than the question, so neither does the verdict
// end it, nor is the way used, see doubts.
func (s *Shard) judged(verdict sentinel.Verdict, waited time.Duration, asked, now clock.Instant) {
	spoke := clock.Instant(s.client.vouching.spoke.Load())
	switch {
	case verdict.Suffices(waited):
		s.vouched(asked, now.Add(suspectFor))
	case verdict == sentinel.Unknown && (spoke == 0 || asked < spoke):
	case s.IsSuspect(now):
		s.doubt(asked)
	default: // a silence has passed meanwhile, and commands were sent
		s.doubt(asked)
		s.foundSilent(now, now)
	}
}

// say logs what is waited for, once, and that it is over.
func (v *vouching) say(verdict sentinel.Verdict, waited time.Duration, address string) {
	about := slog.String("server", address)
	switch {
	case verdict.Suffices(waited):
		if v.said.Swap(false) {
			v.log(slog.LevelInfo, "locks go on: the server may be believed again", about, slog.String("Sentinels", verdict.String()))
		}
	case waited < sayAfter || v.said.Swap(true):
	case verdict == sentinel.Unknown:
		v.log(slog.LevelWarn,
			"no lock is granted for now: most Sentinels do not say whether the server is the master", about,
			slog.Any("without an answer", (*v.watch.Load()).Absent()), slog.Duration("at most", sentinel.LongestDoubt))
	case verdict == sentinel.Down:
		v.log(slog.LevelWarn, "no lock is granted for now: the server answers, and the Sentinels find it down",
			about, slog.Duration("at most", sentinel.LongestDoubt))
	case verdict == sentinel.Elected:
		limit, _ := verdict.Longest()
		v.log(slog.LevelWarn, "no lock is granted for now: Sentinels have voted for one to lead a failover, and it does not answer",
			about, slog.Any("without an answer", (*v.watch.Load()).Absent()), slog.Duration("at most", limit))
	case verdict == sentinel.Disputed, verdict == sentinel.Contested:
		limit, _ := verdict.Longest()
		v.log(slog.LevelWarn, "no lock is granted for now: most Sentinels name the server as the master, and some name another one",
			about, slog.Any("these", (*v.watch.Load()).Against()), slog.Duration("at most", limit))
	default:
		v.log(slog.LevelWarn, "no lock is granted for now: the Sentinels replace the server, or do not agree on it", about,
			slog.Any("these name another one", (*v.watch.Load()).Against()))
	}
}
