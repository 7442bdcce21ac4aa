package kit

import (
	"strconv"
	"strings"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry"
)

// Wakeups are the modes that wake, by their names.
var Wakeups = map[string]Wakeup{
	"auto":     WakeupAuto,
	"pubsub":   WakeupPubSub,
	"tracking": WakeupTracking,
}

const (
	// NoPoll is a poll interval so long that a test which needs a poll fails.
	NoPoll = time.Minute

	// AtOnce is what counts as such on a machine that is busy with other things: less than the five seconds after which a waiting
	// call looks by itself, and a fifteenth of NoPoll. In fake time it is no time at all.
	AtOnce = 4 * time.Second
)

// What there is in Redis of the lock of 42: its key, its queue, the channel of its releases, and that of older Java services.
const (
	TheKey     = "orders:42"
	TheQueue   = "orders:{orders:42}:waiters"
	TheChannel = "orders-channel:orders:42"
	OldChannel = "orders-channel"
)

// Waker is a registry whose waiting calls must be woken, or they take too long.
func (w *World) Waker(mode Wakeup, opts ...lockregistry.Option) *lockregistry.Registry {
	w.Helper()
	return w.Registry(append(opts, WithWakeup(mode), lockregistry.WithPollInterval(NoPoll))...)
}

// Subscribers is how many listen on a channel.
func (w *World) Subscribers(channel string) int {
	w.Helper()
	said := strings.Fields(strings.Trim(w.Do("PUBSUB", "NUMSUB", channel), "[]map"))
	last := said[len(said)-1]
	n, err := strconv.Atoi(last[strings.LastIndex(last, ":")+1:])
	require.NoError(w, err)
	return n
}

// Info reads a number from INFO; 0 when it is not there.
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

// Executed is how often the server has executed a command, inside of scripts included.
func (w *World) Executed(command string) int {
	w.Helper()
	return w.CommandStat(command, "calls")
}

// CommandStat is a figure that the server keeps of a command; 0 as long as nobody has sent it.
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

// Tracked is how many keys the server remembers for those who want to know of a change.
func (w *World) Tracked() int {
	w.Helper()
	return w.Info("stats", "tracking_total_keys")
}

// Tickets is how many wait in the queue of the first lock.
func (w *World) Tickets() int {
	w.Helper()
	n, err := strconv.Atoi(w.Do("ZCOUNT", TheQueue, "0", "+inf"))
	require.NoError(w, err)
	return n
}

// Listening waits until n processes wait for the first lock. On real servers they do in its queue, and the first in each of so
// many queues listens to its key; miniredis has no queue, and all listen.
func (w *World) Listening(mode Wakeup, n, keys int) {
	w.Helper()
	if w.Fake {
		if mode != WakeupTracking { // else it polls
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

// Takes waits for a result that must be there at once, and returns how long it took since start. While it waits, time in which
// the machine gave this process no turn does not count. A ticker tells how much that is: it drops the ticks that nobody takes.
// A machine that is not busy drops none of the seconds for which a call waits that nobody wakes.
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

// Connections are the server's lines about the connections that carry a mark: their name, or their user's.
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

// Allowed is an ACL user with rights of its own, and what a client needs to be that user.
func (w *World) Allowed(rights ...string) func(*rueidis.ClientOption) {
	w.Helper()
	w.Do(append([]string{"ACL", "SETUSER", "app", "reset", "on", ">secret", "~*", "&*", "+@all"}, rights...)...)
	return func(o *rueidis.ClientOption) {
		o.Username, o.Password = "app", "secret"
		o.DisableCache = true // whoever may not use CLIENT must say so to rueidis
		o.PipelineMultiplex = -1
	}
}
