package lockregistry_test

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"
)

// BenchmarkQueueScripts is what the two scripts of a hand-over take the server: the release that makes the first who waits the
// owner, and the ticket with which its process comes back. The metric "server-µs/op" is the server's processor time for
// both together.
func BenchmarkQueueScripts(b *testing.B) {
	for _, waiting := range []int{1, 7, 31} {
		b.Run(fmt.Sprintf("%d-waiting", waiting), func(b *testing.B) {
			newCarousel(b, waiting+1).turn(b.N)
		})
	}
}

// carousel is processes that hand a lock on to each other, in the commands that the server gets of them.
type carousel struct {
	*hoard
	release, ticket string // digests of the scripts
	registries      []string
	numbers         []int // of their holds
}

const carouselLease = "60000"

func newCarousel(b *testing.B, processes int) *carousel {
	b.Helper()
	c := &carousel{hoard: newHoard(b), numbers: make([]int, processes)}
	c.release = c.do("SCRIPT", "LOAD", sources()["spring_release_heir"])
	c.ticket = c.do("SCRIPT", "LOAD", sources()["spring_obtain_ticket"])
	channels := make([]string, processes)
	for i := range processes {
		c.registries = append(c.registries, uuid.NewString())
		c.numbers[i] = int(time.Now().UnixMicro())
		channels[i] = "orders-channel@" + c.registries[i]
	}
	listener := c.connect()
	go func() {
		_ = listener.Receive(b.Context(), listener.B().Subscribe().Channel(channels...).Build(), func(rueidis.PubSubMessage) {})
	}()
	for said(c.client, "PUBSUB", "NUMSUB", channels[processes-1]) != "["+channels[processes-1]+" 1]" {
		<-time.After(time.Millisecond)
	}
	c.do("SET", theKey, c.value(0)+"+", "PX", carouselLease)
	for i := 1; i < processes; i++ {
		how := c.do("EVAL", sources()["spring_obtain"], "1", theKey, c.value(i), carouselLease, "queue", "orders")
		require.Contains(b, how, "queued")
	}
	return c
}

func (c *carousel) value(i int) string { return c.registries[i] + ":" + strconv.Itoa(c.numbers[i]) }

// turn hands the lock on so many times.
func (c *carousel) turn(n int) {
	const together = 64
	script := func(sha string, args ...string) rueidis.Completed {
		return c.client.B().Evalsha().Sha1(sha).Numkeys(1).Key(theKey).Arg(args...).Build()
	}
	took := c.spent()
	for from := 0; from < n; from += together {
		var commands []rueidis.Completed
		for k := from; k < min(n, from+together); k++ {
			i := k % len(c.registries)
			commands = append(commands, script(c.release, c.value(i), "orders-channel:", "orders", "", "9999999999999"))
			c.numbers[i]++
			commands = append(commands, script(c.ticket, c.value(i), carouselLease, "orders"))
		}
		results := c.client.DoMulti(c.Context(), commands...)
		for k := 0; k < len(results); k += 2 {
			handed, err := results[k].AsInt64()
			require.NoError(c, err)
			require.EqualValues(c, 2, handed, "another has the lock now")
			require.NoError(c, results[k+1].Error(), "it does not wait")
		}
	}
	c.ReportMetric((c.spent()-took)/float64(n), "server-µs/op")
	c.ReportMetric(0, "ns/op")
}

// spent is how many microseconds the server has spent.
func (c *carousel) spent() (micros float64) {
	for line := range strings.Lines(c.do("INFO", "cpu")) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), ":")
		if name == "used_cpu_user" || name == "used_cpu_sys" {
			seconds, err := strconv.ParseFloat(value, 64)
			require.NoError(c, err)
			micros += seconds * 1e6
		}
	}
	return micros
}
