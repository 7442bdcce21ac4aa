package cleanup

import (
	"errors"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry/internal/clock"
	"github.com/lockregistry/lockregistry/internal/protocol"
	"github.com/lockregistry/lockregistry/internal/scheduler"
)

var (
	plain     = protocol.NewSpring(protocol.Config{Prefix: "orders", Remove: func() string { return "UNLINK" }})
	readers   = protocol.NewRead(protocol.Config{Prefix: "orders"})
	permits   = protocol.NewPermits(protocol.Config{Prefix: "orders"}, 1, 1)
	errSilent = errors.New("no answer")
)

const lease = 10 * time.Second

// server takes removals. It confirms them all, unless the test says otherwise.
type server struct {
	*Cleaner
	clock clock.Clock
	s     *scheduler.Scheduler

	mu      sync.Mutex
	answer  func(a Try) error // nil: it confirms; may wait
	sent    []Try
	at      []clock.Instant // when each was sent
	removed []string        // confirmed values, for all paths
}

// Len returns the number of targets with something to remove.
func (c *Cleaner) Len() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.all)
}

func (s *server) Removed(value string, _ clock.Instant) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.removed = append(s.removed, value)
}

func (s *server) send(tries []Try) {
	var all sync.WaitGroup
	for _, a := range tries {
		s.mu.Lock()
		s.sent, s.at = append(s.sent, a), append(s.at, s.clock.Now())
		answer := s.answer
		s.mu.Unlock()
		all.Go(func() {
			var err error
			if answer != nil {
				err = answer(a)
			}
			a.Answered(s.clock.Now(), err)
		})
	}
	all.Wait()
}

// answers changes how the server answers from now on. It returns how many removals were sent before.
func (s *server) answers(answer func(a Try) error) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.answer = answer
	return len(s.sent)
}

func (s *server) count() int {
	synctest.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.sent)
}

// removal returns the removal of the hold with a number.
func (s *server) removal(path string, number int) Removal {
	return Removal{
		Path: s, Format: plain, Key: "orders:" + path, Value: "a:" + strconv.Itoa(number), Number: uint64(number), Lease: lease,
		Expired: s.clock.Now().Add(lease), Watch: time.Minute,
	}
}

// late returns the same removal for a hold of which a grant may still arrive.
func (s *server) late(path string, number int) Removal {
	r := s.removal(path, number)
	r.MayArrive = true
	return r
}

func serve(t *testing.T, test func(t *testing.T, s *server)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		s := &server{clock: clock.New()}
		s.Cleaner = New(s.clock, func(due clock.Instant) { s.s.Soon(due) }, s.send)
		s.s = scheduler.New(s.clock, s.Turn)
		defer s.Wait()
		defer s.s.Wait()
		defer s.Close()
		defer s.s.Close()
		test(t, s)
	})
}

func silent(Try) error { return errSilent }

// freedom notes when a local half was freed.
type freedom struct {
	mu   sync.Mutex
	said []bool
}

func (f *freedom) freed(gone bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.said = append(f.said, gone)
}

func (f *freedom) told() []bool {
	synctest.Wait()
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.said
}

func TestRemove_OnceIsEnoughWithoutALateGrant(t *testing.T) {
	serve(t, func(t *testing.T, s *server) {
		var f freedom
		require.True(t, s.Remove(s.removal("42", 1), f.freed))
		require.Equal(t, []bool{true}, f.told())
		require.Zero(t, s.Len())
		require.Equal(t, []string{"a:1"}, s.removed)
		<-time.After(time.Hour)
		require.Equal(t, 1, s.count())
	})
}

func TestCall_SaysWhatToRemove(t *testing.T) {
	now := clock.New().Now()
	r := Removal{Format: plain, Key: "orders:42", Value: "a:1", Leaving: []string{"a:1|1000"}, Keep: now.Add(time.Second)}
	want := func(keep time.Duration) protocol.Call {
		return plain.Release(protocol.Release{
			Key: "orders:42", Value: "a:1", Queued: true, Leaving: []string{"a:1|1000"}, Keep: keep,
		})
	}
	require.Equal(t, want(400*time.Millisecond), r.Call(now.Add(600*time.Millisecond)))
	require.Equal(t, want(0), r.Call(now.Add(time.Minute)))
}

// The local half is free when the removal is confirmed, or when the key must have expired, whichever comes first.
func TestRemove_FreesWhenTheKeyIsGone(t *testing.T) {
	for name, c := range map[string]struct {
		late    bool
		heals   time.Duration
		freed   bool
		pending int // when it was freed without an answer
	}{
		"the server answers":                 {false, 3 * time.Second, true, 0},
		"the key expires":                    {false, time.Hour, false, 0},
		"the key expires, a grant may come":  {true, time.Hour, false, 1},
		"the server answers, one may come":   {true, 3 * time.Second, true, 1},
		"the server answers as soon as that": {true, 0, true, 1},
	} {
		t.Run(name, func(t *testing.T) {
			serve(t, func(t *testing.T, s *server) {
				var f freedom
				if c.heals > 0 {
					s.answers(silent)
				}
				r := s.removal("42", 1)
				r.MayArrive = c.late
				require.True(t, s.Remove(r, f.freed))
				if c.heals > 0 {
					<-time.After(min(c.heals, lease-time.Millisecond))
					require.Empty(t, f.told())
				}
				if c.heals < lease {
					s.answers(nil)
				}
				<-time.After(1100 * time.Millisecond) // the longest pause
				require.Equal(t, []bool{c.freed}, f.told())
				require.Equal(t, c.pending, s.Len())
				s.answers(nil)
				<-time.After(2 * time.Hour)
				require.Equal(t, []bool{c.freed}, f.told(), "once")
				require.Zero(t, s.Len())
			})
		})
	}
}

// The removal of a grant that may still arrive is repeated, ten times a second at first, until Redis has been answering for
// Watch.
func TestRemove_LooksOutForALateGrant(t *testing.T) {
	serve(t, func(t *testing.T, s *server) {
		s.answers(silent)
		require.True(t, s.Remove(s.late("42", 1), nil))
		<-time.After(5 * time.Second)
		synctest.Wait()
		require.Equal(t, 1, s.Unconfirmed())
		start := s.clock.Now()
		before := s.answers(nil)
		<-time.After(haste)
		require.Zero(t, s.Unconfirmed(), "it is only looked out for")
		first := s.count() - before
		require.InDelta(t, haste/pace, first, 12)
		<-time.After(time.Minute - haste - 2*time.Second)
		require.Equal(t, 1, s.Len())
		require.Less(t, s.count()-before-first, first)
		// The last pause is an eighth of the time at most.
		<-time.After(12 * time.Second)
		require.Zero(t, s.Len())
		for i := before + 1; i < len(s.at); i++ {
			require.LessOrEqual(t, s.at[i-1].Until(s.at[i]), max(pace, start.Until(s.at[i])/ease))
		}
		sent := s.count()
		<-time.After(time.Hour)
		require.Equal(t, sent, s.count())
	})
}

// When Redis does not answer in between, the time of Watch begins again.
func TestRemove_LooksOutAnewAfterASilence(t *testing.T) {
	serve(t, func(t *testing.T, s *server) {
		require.True(t, s.Remove(s.late("42", 1), nil))
		<-time.After(40 * time.Second)
		require.Zero(t, s.Unconfirmed())
		s.answers(silent)
		<-time.After(15 * time.Second)
		require.Equal(t, 1, s.Unconfirmed(), "nobody knows any more")
		s.answers(nil)
		<-time.After(58 * time.Second)
		synctest.Wait()
		require.Equal(t, 1, s.Len())
		<-time.After(15 * time.Second)
		require.Zero(t, s.Len())
	})
}

// A newer hold's removal replaces the older hold's. The answer to the older removal says nothing about the newer one.
func TestRemove_OfANewerHold(t *testing.T) {
	serve(t, func(t *testing.T, s *server) {
		goOn := make(chan error)
		s.answers(func(Try) error { return <-goOn })
		var f freedom
		require.True(t, s.Remove(s.removal("42", 1), nil))
		require.Equal(t, 1, s.count())
		require.True(t, s.Remove(s.removal("42", 2), f.freed))
		require.Equal(t, 1, s.Len())
		require.Equal(t, 2, s.count(), "another worker sends it")
		require.Equal(t, "a:2", s.sent[1].Value)
		goOn <- nil // that of either
		synctest.Wait()
		if len(f.told()) == 0 {
			require.Equal(t, 1, s.Len())
		}
		goOn <- nil
		require.Equal(t, []bool{true}, f.told())
		require.Zero(t, s.Len())
	})
}

func TestRemove_TheAnswerForAnOlderHoldIsNone(t *testing.T) {
	serve(t, func(t *testing.T, s *server) {
		older, newer := make(chan error), make(chan error)
		s.answers(func(a Try) error {
			if a.Value == "a:1" {
				return <-older
			}
			return <-newer
		})
		var f freedom
		require.True(t, s.Remove(s.removal("42", 1), nil))
		synctest.Wait()
		require.True(t, s.Remove(s.removal("42", 2), f.freed))
		older <- nil
		require.Empty(t, f.told())
		require.Equal(t, 1, s.Len())
		newer <- errSilent
		synctest.Wait()
		require.Equal(t, 1, s.Len())
		s.answers(nil)
		<-time.After(time.Second)
		require.Equal(t, []bool{true}, f.told())
	})
}

// A hold is removed once more while its first removal is under way. The first answer ends both, and the second answer does not
// count for a later hold.
func TestRemove_TheSameHoldTwice(t *testing.T) {
	for name, second := range map[string]error{"confirmed": nil, "unanswered": errSilent} {
		t.Run(name, func(t *testing.T) {
			serve(t, func(t *testing.T, s *server) {
				goOn, later := make(chan error), make(chan error)
				s.answers(func(a Try) error {
					if a.Value == "a:1" {
						return <-goOn
					}
					return <-later
				})
				var f, of freedom
				require.True(t, s.Remove(s.removal("42", 1), nil))
				synctest.Wait()
				require.True(t, s.Remove(s.removal("42", 1), f.freed))
				require.Equal(t, 2, s.count())
				goOn <- nil
				require.Equal(t, []bool{true}, f.told())
				require.Zero(t, s.Len())
				require.True(t, s.Remove(s.removal("42", 2), of.freed))
				require.Equal(t, 3, s.count())
				goOn <- second
				require.Empty(t, of.told())
				require.Equal(t, 1, s.Len())
				later <- nil
				require.Equal(t, []bool{true}, of.told())
				require.Equal(t, 3, s.count())
			})
		})
	}
}

// When the first answer ends both, a second try that still waits for a worker is not sent.
func TestRemove_TheSameHoldTwiceWithoutAWorker(t *testing.T) {
	serve(t, func(t *testing.T, s *server) {
		first, others := make(chan error), make(chan error)
		defer close(others)
		s.answers(func(a Try) error {
			if a.Key == "orders:42" {
				return <-first
			}
			return <-others
		})
		for _, path := range []string{"42", "1", "2", "3"}[:scheduler.MostAtOnce] {
			require.True(t, s.Remove(s.removal(path, 1), nil))
			synctest.Wait()
		}
		require.True(t, s.Remove(s.removal("42", 1), nil))
		first <- nil
		require.Equal(t, scheduler.MostAtOnce, s.count())
		require.Equal(t, scheduler.MostAtOnce-1, s.Len())
	})
}

// In a format whose removals remove nothing older, each hold has a removal of its own.
func TestRemove_EachWhereNothingOlderIsRemoved(t *testing.T) {
	serve(t, func(t *testing.T, s *server) {
		s.answers(silent)
		for i := range 3 {
			r := s.removal("42", i)
			require.True(t, s.Remove(r, nil))
			r.Format = readers
			require.True(t, s.Remove(r, nil))
		}
		require.Equal(t, 1+3, s.Len())
	})
}

func TestExpedite(t *testing.T) {
	serve(t, func(t *testing.T, s *server) {
		s.Expedite(s.removal("42", 1))
		require.Equal(t, 1, s.count(), "what is not known is removed")
		require.Zero(t, s.Len())

		s.answers(silent)
		require.True(t, s.Remove(s.late("42", 3), nil))
		<-time.After(5 * time.Second)
		before := s.count()
		s.answers(nil)
		s.Expedite(s.removal("42", 2))
		require.Equal(t, before+1, s.count(), "what is known is removed at once")
		require.Equal(t, "a:3", s.sent[before].Value)
		require.Equal(t, 1, s.Len(), "and looked out for")

		goOn := make(chan struct{})
		s.answers(func(Try) error { <-goOn; return nil })
		<-time.After(pace)
		before = s.count()
		s.Expedite(s.removal("42", 2))
		require.Equal(t, before, s.count(), "its removal is under way")
		close(goOn)
	})
}

// A removal that is still being repeated belongs to an older hold, and does not remove the newer one. So the newer removal
// replaces it.
func TestExpedite_OfANewerHold(t *testing.T) {
	for name, underWay := range map[string]bool{"at rest": false, "under way": true} {
		t.Run(name, func(t *testing.T) {
			serve(t, func(t *testing.T, s *server) {
				older := make(chan error)
				defer close(older)
				var f freedom
				if underWay {
					s.answers(func(a Try) error {
						if a.Value == "a:5" {
							return <-older
						}
						return nil
					})
				}
				require.True(t, s.Remove(s.late("42", 5), f.freed))
				before := s.count()
				s.Expedite(s.removal("42", 7))
				require.Equal(t, before+1, s.count())
				require.Equal(t, "a:7", s.sent[before].Value)
				require.Equal(t, []bool{true}, f.told(), "once, by whichever is confirmed first")
				if underWay {
					older <- errSilent
				}
				require.Equal(t, 1, s.Len(), "the grant of the older one may arrive yet")
				<-time.After(2 * time.Minute)
				require.Zero(t, s.Len())
				require.Equal(t, []bool{true}, f.told())
				for _, a := range s.sent[before:] {
					require.Equal(t, "a:7", a.Value)
				}
			})
		})
	}
}

// When Redis answers again, all unanswered removals are sent at once.
func TestRetryNow(t *testing.T) {
	serve(t, func(t *testing.T, s *server) {
		s.answers(silent)
		for i := range 600 {
			require.True(t, s.Remove(s.removal(strconv.Itoa(i), 1), nil))
		}
		<-time.After(5 * time.Second)
		require.Equal(t, 600, s.Len())
		s.answers(nil)
		s.RetryNow()
		synctest.Wait()
		require.Zero(t, s.Len())
	})
}

// However many removals there are, each is tried again within LongestPause.
func TestLongestPause(t *testing.T) {
	for _, many := range []int{1, 6 * scheduler.Batch} {
		serve(t, func(t *testing.T, s *server) {
			s.answers(silent)
			for i := range many {
				r := s.late(strconv.Itoa(i), 1)
				r.Lease = time.Hour
				require.True(t, s.Remove(r, nil))
			}
			<-time.After(time.Duration(many/scheduler.Batch+10) * 2 * time.Second) // until they have failed a few times
			synctest.Wait()
			limit, longest := s.LongestPause(), time.Duration(0)
			for range 20 { // at some of these moments a try has just failed
				<-time.After(100 * time.Millisecond)
				now := s.clock.Now()
				s.Cleaner.mu.Lock()
				for _, p := range s.due.All() {
					longest = max(longest, now.Until(p.at))
				}
				s.Cleaner.mu.Unlock()
			}
			require.Greater(t, longest, limit/8)
			require.LessOrEqual(t, longest, limit)
		})
	}
}

// Many removals are sent no faster than a batch in each pause.
func TestRemove_ManyAtAPace(t *testing.T) {
	serve(t, func(t *testing.T, s *server) {
		const many = 20 * scheduler.Batch
		s.answers(silent)
		for i := range many {
			require.True(t, s.Remove(s.late(strconv.Itoa(i), 1), nil))
		}
		<-time.After(5 * time.Second)
		s.answers(nil)
		s.RetryNow()
		before := s.count()
		<-time.After(6 * time.Second)
		require.LessOrEqual(t, s.count()-before, 3*many+3*scheduler.Batch)
		require.GreaterOrEqual(t, s.count()-before, 2*many)
	})
}

// A removal that is not answered does not keep others from being sent, and no more than a few workers wait for it.
func TestRemove_OneThatHangsDelaysNoOther(t *testing.T) {
	serve(t, func(t *testing.T, s *server) {
		goOn := make(chan struct{})
		defer close(goOn)
		s.answers(func(a Try) error {
			if strings.HasPrefix(a.Key, "orders:slow") {
				<-goOn
			}
			return nil
		})
		for i := range scheduler.MostAtOnce - 1 {
			require.True(t, s.Remove(s.removal("slow"+strconv.Itoa(i), 1), nil))
			synctest.Wait()
		}
		before := s.count()
		s.Expedite(s.removal("soon", 1))
		require.Equal(t, before+1, s.count())
		for i := range 5 {
			var f freedom
			require.True(t, s.Remove(s.removal(strconv.Itoa(i), 1), f.freed))
			require.Equal(t, []bool{true}, f.told())
		}
	})
}

// After Close all removals that are left are sent once more. One that is under way then may need another try.
func TestClose(t *testing.T) {
	serve(t, func(t *testing.T, s *server) {
		s.answers(silent)
		var f freedom
		for i := range 300 {
			require.True(t, s.Remove(s.late(strconv.Itoa(i), 1), f.freed))
		}
		<-time.After(5 * time.Second)
		goOn := make(chan struct{})
		s.answers(func(Try) error { <-goOn; return nil })
		require.True(t, s.Remove(s.late("42", 2), f.freed)) // under way
		synctest.Wait()
		before := s.count()
		s.s.Close()
		s.Close()
		require.False(t, s.Remove(s.late("42", 3), f.freed))
		s.Expedite(s.late("43", 3))
		s.Expedite(s.late("new", 3))
		close(goOn)
		s.Wait()
		require.Zero(t, s.Len())
		last := map[string]int{}
		for _, a := range s.sent[before:] {
			last[a.Key]++
		}
		require.Len(t, last, 300)
		for key, n := range last {
			require.Equal(t, 1, n, key)
		}
		require.Len(t, f.told(), 300)
	})
}

// A closed cleaner does not go on if Redis does not answer.
func TestClose_OnASilentServer(t *testing.T) {
	serve(t, func(t *testing.T, s *server) {
		s.answers(silent)
		var f freedom
		require.True(t, s.Remove(s.late("42", 1), f.freed))
		synctest.Wait()
		before := s.count()
		s.Close()
		s.Wait()
		require.Equal(t, before+1, s.count())
		require.Equal(t, []bool{false}, f.told())
		require.Zero(t, s.Len())
	})
}
