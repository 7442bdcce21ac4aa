package protocol

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry/internal/lease"
)

// Many tickets of dead processes cost a release few commands, and a live one is found behind any number of them.
func TestQueue_ManyAreGone(t *testing.T) {
	onServers(t).both("all numbers", func(s *scripted) {
		for _, dead := range []int{1, 2, 8, 9, 10, 72, 73, 74, 300, 1000} {
			tickets := make([]string, 0, dead+3)
			for i := range dead {
				tickets = append(tickets, fmt.Sprintf("c:%d|60000", i))
			}
			s.begins("a:9", append(tickets, "b:3|60000", "c:5000|60000", "b:4|60000")...)
			s.do("CONFIG", "RESETSTAT")
			require.Equal(s, "2", s.releases("a:9", Release{}))
			require.Less(s, s.calls("pubsub|numsub", "pubsub"), 20, dead)
			require.Equal(s, "b:3", s.owner(), dead)
			require.Equal(s, "c:5000|60000 b:4|60000", s.queue(), dead)

			s.begins("", append(tickets, "c:3|60001", "c:5000|60000")...)
			require.Equal(s, "(nil)", s.runs(s.format().Obtain(Request{
				Key: formatKey, Value: "c:3", Lease: lease.NewTerm(time.Minute + time.Millisecond), Queueing: Queueing{Mode: ModeCheck},
			}, false)), "a call that asks is there")
			require.Equal(s, "c:5000|60000", s.queue(), dead)

			s.begins("a:9", append(tickets, "c:3|60000;x", "c:5000|60000")...)
			require.Equal(s, "2", s.releases("a:9", Release{}))
			require.Equal(s, "c:3|60000;x c:5000|60000", s.queue(), "it may be served by others")
		}
	})
}

// calls returns how often commands were executed.
func (s *scripted) calls(commands ...string) (n int) {
	s.Helper()
	for line := range strings.Lines(s.do("INFO", "commandstats")) {
		for _, command := range commands {
			if rest, ok := strings.CutPrefix(line, "cmdstat_"+command+":calls="); ok {
				count, _, _ := strings.Cut(rest, ",")
				calls, err := strconv.Atoi(count)
				require.NoError(s, err)
				n += calls
			}
		}
	}
	return n
}
