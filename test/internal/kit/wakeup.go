package kit

import (
	"strconv"
	"strings"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry"
)

// Wakeups are the ways to be woken, by name.
var Wakeups = map[string]Wakeup{
	"auto":     WakeupAuto,
	"pubsub":   WakeupPubSub,
	"tracking": WakeupTracking,
}

const (
	// NoPoll is a poll interval so long that a test fails if it needs a poll.
	NoPoll = time.Minute

	// AtOnce is what counts as immediate on a busy machine: less than the five seconds after which a waiting call looks by itself,
	// and a fifteenth of NoPoll. In fake time, immediate means that no time passes.
	AtOnce = 4 * time.Second
)

// What the lock of 42 has in Redis: its key, its queue, and the channels of its releases and of older Java services.
const (
	TheKey     = "orders:42"
	TheQueue   = "orders:{orders:42}:waiters"
	TheChannel = "orders-channel:orders:42"
	OldChannel = "orders-channel"
)

// Waker returns a registry whose waiting calls take too long unless they are woken.
func (w *World) Waker(mode Wakeup, opts ...lockregistry.Option) *lockregistry.Registry {
	w.Helper()
	return w.Registry(append(opts, WithWakeup(mode), lockregistry.WithPollInterval(NoPoll))...)
}

// Subscribers returns how many connections listen on a channel.
func (w *World) Subscribers(channel string) int {
	w.Helper()
	said := strings.Fields(strings.Trim(w.Do("PUBSUB", "NUMSUB", channel), "[]map"))
	last := said[len(said)-1]
	n, err := strconv.Atoi(last[strings.LastIndex(last, ":")+1:])
	require.NoError(w, err)
	return n
}

// Info reads a number from INFO; 0 if it is not there.
func (w *World) Info(section, name string) int {
	w.Helper()
	for line := range strings.Lines(w.Do("INFO", section)) {
		if value, ok := strings.CutPrefix(strings.TrimSpace(line), name+":"); ok {
			n, err := strconv.Atoi(value)
			require.NoError(w, err)
			return n
		}
	}
	return 0
}

// Executed returns how often the server has executed a command, including calls by scripts.
func (w *World) Executed(command string) int {
	w.Helper()
	return w.CommandStat(command, "calls")
}

// CommandStat returns a figure that the server keeps about a command; 0 if nobody has sent it.
func (w *World) CommandStat(command, name string) int {
	w.Helper()
	for line := range strings.Lines(w.Do("INFO", "commandstats")) {
		stats, ok := strings.CutPrefix(strings.TrimSpace(line), "cmdstat_"+command+":")
		if !ok {
			continue
		}
		for stat := range strings.SplitSeq(stats, ",") {
			if count, ok := strings.CutPrefix(stat, name+"="); ok {
				n, err := strconv.Atoi(count)
				require.NoError(w, err)
				return n
			}
		}
	}
	return 0
}

// Tracked returns how many keys the server tracks for clients.
func (w *World) Tracked() int {
	w.Helper()
	return w.Info("stats", "tracking_total_keys")
}

// Tickets returns how many calls wait in the queue of the lock of 42.
func (w *World) Tickets() int {
	w.Helper()
	n, err := strconv.Atoi(w.Do("ZCOUNT", TheQueue, "0", "+inf"))
	require.NoError(w, err)
	return n
}

// Listening waits until n processes wait for the lock of 42. On real servers they wait in its queue, and the first in each of
// keys queues listens to the key; miniredis has no queue, and all listen.
func (w *World) Listening(mode Wakeup, n, keys int) {
	w.Helper()
	if w.Fake {
		if mode != WakeupTracking { // otherwise it polls
			w.Await("waiters are subscribed", func() bool { return w.Subscribers(TheChannel) >= n })
		}
		return
	}
	w.Await("waiters have tickets", func() bool { return w.Tickets() >= n })
	if mode == WakeupPubSub {
		w.Await("the first one is subscribed", func() bool { return w.Subscribers(TheChannel) >= 1 })
	} else {
		w.Await("keys are tracked", func() bool { return w.Tracked() >= keys })
	}
}

// Takes waits for a result that must arrive at once, and returns how long it took since start. Time in which the machine did
// not run this process does not count. A ticker measures it: it drops the ticks that come too late. When the machine is not
// busy no tick is dropped, so the seconds of a waiter that nothing wakes all count.
func (w *World) Takes(start time.Time, result <-chan error) time.Duration {
	w.Helper()
	const turn = 10 * time.Millisecond
	ticker := time.NewTicker(turn)
	defer ticker.Stop()
	began := time.Now()
	for counts := turn; ; counts += turn { // the last turn has not ended yet
		select {
		case err := <-result:
			require.NoError(w, err)
			took := time.Since(start) - max(0, time.Since(began)-counts)
			if w.Fake {
				require.Zero(w, took, "no time passes from the release to the next holder")
			}
			return took
		case <-ticker.C:
			if counts >= AtOnce {
				w.Fatal("nothing woke the waiter")
			}
		}
	}
}

// Connections returns the server's lines about the connections with a mark: their name, or their user's.
func (w *World) Connections(mark string) (lines []string) {
	w.Helper()
	for line := range strings.Lines(w.Do("CLIENT", "LIST")) {
		if strings.Contains(line, mark+" ") {
			lines = append(lines, line)
		}
	}
	return lines
}

// ClientField reads a number from a line about a connection.
func ClientField(line, name string) int {
	_, rest, _ := strings.Cut(line, " "+name+"=")
	value, _, _ := strings.Cut(rest, " ")
	n, _ := strconv.Atoi(value)
	return n
}

// Allowed makes an ACL user with these rights, and returns the client options for that user.
func (w *World) Allowed(rights ...string) func(*rueidis.ClientOption) {
	w.Helper()
	w.Do(append([]string{"ACL", "SETUSER", "app", "reset", "on", ">secret", "~*", "&*", "+@all"}, rights...)...)
	return func(o *rueidis.ClientOption) {
		o.Username, o.Password = "app", "secret"
		o.DisableCache = true // rueidis must be told if the user may not use CLIENT
		o.PipelineMultiplex = -1
	}
}
