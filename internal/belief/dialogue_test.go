package belief

import (
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry/internal/clock"
)

// Each dialogue is between a process and its server, with a line for each event: the time in milliseconds, the event, and,
// after an arrow, what is believed then and what is to be done. At first all connections have been made, the round trip is 1
// ms, and nothing was sent for a while. Commands have numbers. Their alarms are set when they are sent, and ring at "timer".
var dialogues = map[string]string{
	"a master that answers": `
		2000 look         -> idle
		2000 send 1
		2001 reply 1      -> believed
		2010 look         -> healthy
		2011 look         -> idle
		2012 message
		2013 look         -> healthy
		2013 send 2
		2014 leave 2      -> believed probe
		2015 look         -> healthy
	`,
	"a frozen master": `
		2000 send 1
		2400 send 2
		2501 timer 1      -> waits
		2502 timer 1      -> rings undedicate reroute redial measure
		2502 look         -> suspect
		2600 send 3
		2902 timer 2      -> rings
		3000 reply 1      -> doubtful
		3000 reply 2      -> doubtful
		3000 reply 3      -> believed
		3001 send 4
		3503 timer 4      -> rings undedicate reroute redial measure
		3510 send 5
		3511 trusted 5    -> believed
		33502 look        -> suspect
		33503 look        -> idle
		33503 send 6
		33504 reply 6     -> believed
		33504 look        -> healthy
	`,
	"a silence that the reply shows before the timer": `
		2000 send 1
		2502 reply 1      -> doubtful undedicate reroute redial measure
		2502 look         -> suspect
	`,
	"a pause of the process": `
		2000 send 1
		2900 timer 1      -> waits
		2901 reply 1      -> late
		2901 look         -> idle
		2901 send 2
		2902 reply 2      -> believed
	`,
	"a pause that is longer than a failover": `
		2000 send 1
		5003 timer 1      -> rings undedicate reroute redial measure
		5003 reply 1      -> doubtful
	`,
	"pauses without an end": `
		2000 send 1
		2900 timer 1      -> waits
		3600 timer 1      -> waits
		4300 timer 1      -> waits
		5003 timer 1      -> rings undedicate reroute redial measure
	`,
	"a link that becomes slow": `
		2000 send 1
		2502 timer 1      -> rings undedicate reroute redial measure
		2502 send 2
		2900 reply 1      -> doubtful
		3004 timer 2      -> rings undedicate reroute redial measure
		3402 reply 2      -> doubtful
		3402 send 3
		3904 timer 3      -> rings undedicate reroute redial measure
		4302 reply 3      -> doubtful
		4302 send 4
		4804 timer 4      -> rings undedicate reroute redial measure
		5202 reply 4      -> doubtful
		5202 send 5
		6102 trusted 5    -> believed
		6102 send 6
		8401 timer 6      -> waits
		8401 trusted 6    -> believed
		35202 look        -> idle
	`,
	"Sentinels replace the master, and it goes on": `
		2000 watch
		2000 look         -> suspect
		2100 word 2050    -> vouched
		2100 look         -> idle
		2100 send 1
		2101 reply 1      -> believed
		2900 beat
		3800 beat
		4000 send 2
		4200 doubt        -> undedicate reroute redial measure
		4300 reply 2      -> doubtful
		4800 beat
		5200 against 4700
		5300 vouch 4100
		5300 look         -> suspect
		5800 beat
		6800 beat
		7000 vouch 6900
		7000 look         -> suspect
		7000 send 3
		7001 trusted 3    -> believed
		37000 look        -> idle
	`,
	"the client changes to another master": `
		2000 watch
		2100 word 2050    -> vouched
		2200 switched     -> undedicate reroute redial measure
		2200 switched
		2200 look         -> suspect
		2900 beat
		90000 look        -> suspect
	`,
	"the process stood still while it was idle": `
		2000 watch
		2100 word 2050    -> vouched
		3000 beat
		5499 command
		5500 command      -> undedicate reroute redial measure
		5500 command
		5500 look         -> suspect
	`,
	"a reply of a server that the client has left": `
		2000 send 1
		2001 left 1       -> late
		2001 send 2
		2002 reply 2      -> believed
	`,
	"a node of a cluster breaks": `
		2000 led
		2000 send 1
		2001 reply 1      -> believed
		2001 send 2
		2002 broken 2     -> believed undedicate reroute ask
		2002 look         -> suspect
		32002 look        -> idle
	`,
	"a connection breaks": `
		2000 send 1
		2001 reply 1      -> believed
		2001 look         -> healthy
		2001 send 2
		2002 broken 2     -> believed undedicate
		2002 look         -> idle
		2003 message
		2003 look         -> idle
		2003 send 3
		2505 timer 3      -> waits
	`,
	"a replica behind the address": `
		2000 redirected   -> undedicate reroute
		2000 look         -> suspect
		2050 looks
		2050 owe
		2100 fresh        -> inspect
		2100 looks
		2100 fresh
		2100 master
		2100 look         -> idle
	`,
	"a replica that was meant": `
		2000 says
		2000 look         -> idle
		2001 fresh
		2002 says         -> undedicate reroute
		2002 look         -> suspect
	`,
	"a replica behind the address, and then another one": `
		2000 redirected   -> undedicate reroute
		2050 looks
		2060 redirected   -> undedicate reroute
		2100 master
		2100 look         -> suspect
		2110 looks
		2120 master
		2120 look         -> idle
	`,
	"a replica behind the address, and then silence": `
		2000 redirected   -> undedicate reroute
		2010 looks
		2100 send 1
		2605 timer 1      -> waits
		2606 timer 1      -> rings undedicate reroute redial measure
		2700 master
		2700 look         -> suspect
	`,
	"it is closed": `
		2000 send 1
		2000 close
		2502 timer 1      -> rings
		2502 look         -> idle
		2502 doubt
		2502 look         -> idle
	`,
}

// talk plays a dialogue.
type talk struct {
	State
	now    clock.Instant
	sent   map[string]clock.Instant
	alarms map[string]*Alarm
	looks  *Looks
}

func TestState_Dialogues(t *testing.T) {
	for name, lines := range dialogues {
		t.Run(name, func(t *testing.T) {
			s := &talk{sent: map[string]clock.Instant{}, alarms: map[string]*Alarm{}}
			s.WarmedUp()
			for i := range 3 {
				s.Sample(milliseconds(i*10), milliseconds(i*10+1))
			}
			for line := range strings.Lines(lines) {
				what, wanted, _ := strings.Cut(strings.TrimSpace(line), "->")
				if words := strings.Fields(what); len(words) > 0 {
					at, err := strconv.Atoi(words[0])
					require.NoError(t, err)
					s.now = milliseconds(at)
					require.Equal(t, strings.Fields(wanted), s.hear(words[1], slices.Concat(words[2:], []string{""})[0]), line)
				}
			}
		})
	}
}

func milliseconds(n int) clock.Instant { return clock.Instant(n) * clock.Instant(time.Millisecond) }

// hear takes an event, and returns what stands after the arrow.
func (s *talk) hear(event, about string) []string {
	if outcome, is := map[string]Exchange{
		"reply": {}, "trusted": {Trusted: true}, "left": {Left: true}, "leave": {Outcome: Unanswered}, "broken": {Outcome: Broken},
	}[event]; is {
		return s.exchange(outcome, about)
	}
	n, _ := strconv.Atoi(about)
	asked := milliseconds(n)
	switch event {
	case "look":
		return []string{s.look()}
	case "send":
		s.sent[about], s.alarms[about] = s.now, &Alarm{}
		s.alarms[about].At = s.alarms[about].Due(&s.State, s.now)
	case "timer":
		if !s.alarms[about].Ring(&s.State, s.sent[about], s.now) {
			return []string{"waits"}
		}
		return append([]string{"rings"}, said(s.FoundSilent(s.sent[about], s.now))...)
	case "message":
		s.GotMessage(s.now)
	case "led":
		s.Led()
	case "watch":
		s.Watched(s.now)
	case "word":
		s.FirstWord(Vouching, "here", true, false, asked, s.now)
		return []string{"vouched"}
	case "vouch":
		return said(s.Told(Vouching, "here", asked, s.now))
	case "against":
		return said(s.Told(Against, "here", asked, s.now))
	case "doubt":
		return said(s.Doubted(s.now))
	case "switched":
		return said(s.Switched(s.now))
	case "beat":
		return said(s.Beat(s.now))
	case "command":
		return said(s.StoodStill(s.now))
	case "redirected":
		return said(s.Redirected(s.now))
	case "master":
		s.Inspected(s.looks)
		s.WarmedUp()
	case "fresh":
		return said(s.Said(Master, true, s.now))
	case "says":
		return said(s.Said(Replica, false, s.now))
	case "looks":
		s.looks = s.Inspecting()
	case "owe":
		s.Owe()
	case "close":
		s.Close(s.now)
	default:
		return []string{"nobody knows what that is:", event}
	}
	return []string{}
}

// exchange takes a reply, or the lack of one. It is a sample unless the process stood still.
func (s *talk) exchange(x Exchange, number string) []string {
	x.Sent, x.Came, x.Trip = s.sent[number], s.now, s.RoundTrip()
	x.Excused = s.alarms[number].Excuses(&s.State, x.Sent, x.Came)
	if x.Outcome == Answered && !x.Excused {
		s.Sample(x.Sent, x.Came)
	}
	answer, do := s.Judge(x)
	return append([]string{map[Answer]string{Believed: "believed", Late: "late", Doubtful: "doubtful"}[answer]}, said(do)...)
}

func (s *talk) look() string {
	switch {
	case s.IsSuspect(s.now):
		return "suspect"
	case s.IsHealthy(s.now):
		return "healthy"
	default:
		return "idle"
	}
}

func said(do Acts) []string {
	all := []string{}
	for i, name := range []string{"undedicate", "reroute", "redial", "measure", "probe", "ask", "inspect"} {
		if do.Has(1 << i) {
			all = append(all, name)
		}
	}
	return all
}
