package sentinel

import (
	"slices"
	"strings"
	"time"

	"github.com/lockregistry/lockregistry/internal/clock"
)

// events are what Sentinels publish before another master takes over, and when it has. One finds the master down; enough do;
// one wants to replace it, and asks for votes; others vote; clients are to change.
//
// A vote tells most: no Sentinel promotes a server without the votes of a majority. So whoever hears a majority hears of each
// failover, whichever Sentinel leads it, before the promotion.
var events = []string{"+sdown", "+odown", "+try-failover", vote, switched}

const (
	vote     = "+vote-for-leader"
	switched = "+switch-master"
)

// council knows which Sentinels there are and which are heard, and decides what an event means. It has no clock and no
// connection: an event comes in, and out comes what is to be done.
//
//	learn ──▶ dialing ──subscribed──▶ heard
//	            ▲  └──────broke──▶ resting ◀──broke──┘
//	            └──rested─────────────┘
//
// Events are missed while a Sentinel is not heard. So it is asked once it is heard again: after the subscription, so that each
// failover shows either in its answer or in a later event.
type council struct {
	set     string // the name of the master set
	members map[string]*member
	ids     map[string]bool      // of the Sentinels of the set
	votes   map[string]time.Time // when a vote for a Sentinel as the leader of a failover was last heard, by its id
}

// leadsFor is for how long after the newest vote a Sentinel may lead a failover of which no other one knows. An election ends
// after 10 s. The promotion comes within seconds of it, and the others hear of that within two.
const leadsFor = 2 * LongestDoubt

type member struct {
	state    state
	failed   int     // attempts in a row
	last     *Answer // its newest; nil: none
	stranger bool    // by the newest answers of all, see split
}

type state uint8

const (
	dialing state = iota
	heard
	resting
)

// act is something that is to be done.
type act struct {
	do      deed
	address string        // of the Sentinel
	after   time.Duration // how long it is to rest
}

type deed uint8

const (
	dial  deed = iota // connect and subscribe
	ask               // ask it for its state
	rest              // dial again later
	doubt             // the master may be about to be replaced
)

func newCouncil(set string) council {
	return council{set: set, members: map[string]*member{}, ids: map[string]bool{}, votes: map[string]time.Time{}}
}

// learn takes in the addresses of Sentinels.
func (c *council) learn(addresses []string) (acts []act) {
	for _, a := range addresses {
		if c.members[a] == nil {
			c.members[a] = &member{}
			acts = append(acts, act{do: dial, address: a})
		}
	}
	return acts
}

// subscribed: a Sentinel is heard from now on.
func (c *council) subscribed(address string) []act {
	m := c.members[address]
	m.state, m.failed = heard, 0
	return []act{{do: ask, address: address}} // mutant: missed events
}

// broke: the connection to a Sentinel has ended, or could not be made.
func (c *council) broke(address string) []act {
	m := c.members[address]
	m.state = resting
	m.failed++
	return []act{{do: rest, address: address, after: clock.Pause(m.failed, clock.MostPause)}}
}

func (c *council) rested(address string) []act {
	c.members[address].state = dialing
	return []act{{do: dial, address: address}}
}

// answered takes in what a Sentinel says once it is heard: its view of the server that is in use. What a stranger names says
// nothing of that.
func (c *council) answered(a *Answer, using string) (acts []act) {
	acts = c.took(a, using)
	if m := c.members[a.At]; using != "" && (m == nil || !m.stranger) && a.says(using, a.Epoch) != Vouched {
		acts = append(acts, act{do: doubt})
	}
	return acts
}

// took takes in any answer of a Sentinel: which others it knows. Those of strangers are no concern.
func (c *council) took(a *Answer, using string) (acts []act) {
	if m := c.members[a.At]; m != nil {
		m.last = a
	}
	var last []Answer
	for _, m := range c.members {
		if m.last != nil {
			last = append(last, *m.last)
		}
	}
	ours, strangers := split(using, last)
	for _, one := range ours {
		c.members[one.At].stranger = false
		c.ids[one.Who] = true
		for _, p := range one.Fellows {
			c.ids[p.id] = true
		}
	}
	for _, one := range strangers {
		c.members[one.At].stranger = true
	}
	if m := c.members[a.At]; m != nil && m.stranger {
		return nil
	}
	for _, p := range a.Fellows {
		acts = append(acts, c.learn([]string{p.address})...)
	}
	return acts
}

// told takes in an event. Its message is "master NAME IP PORT", of a change "NAME IP PORT IP PORT", of replicas and Sentinels
// "slave ..." or "sentinel ..."; that of a vote "ID EPOCH": it does not say which master set it is for.
//
// Events of strangers are no concern: each would begin anew the time after which their word is outlasted.
func (c *council) told(by, channel, message string, now time.Time) []act {
	if m := c.members[by]; m != nil && m.stranger {
		return nil
	}
	words := strings.Fields(message)
	switch {
	case channel == vote:
		if len(words) > 0 {
			c.votes[words[0]] = now
		}
	case channel == switched && len(words) > 0 && words[0] == c.set:
		clear(c.votes) // the others know of it
	case channel != switched && len(words) > 1 && words[0] == "master" && words[1] == c.set:
	default:
		return nil
	}
	return []act{{do: doubt}}
}

// judge is Judge where it matters who has not answered: a Sentinel that leads a failover, and that no other one would name. Then
// a majority of the others proves nothing. It may be slow, or down; so nothing is known for a while.
func (c *council) judge(address string, answers []Answer, now time.Time) Verdict {
	v := Judge(address, answers)
	if v != Contested && v != Replaced && c.missesLeader(answers, now) { // mutant: leader not missed
		return Unknown
	}
	return v
}

// missesLeader reports whether some Sentinel may lead a failover and has not answered. One whose id is not known of this set may
// lead that of another set. Before Redis 6.2 they do not say by which id they vote.
func (c *council) missesLeader(answers []Answer, now time.Time) bool {
	for id, at := range c.votes {
		if now.Sub(at) >= leadsFor {
			delete(c.votes, id)
		} else if c.ids[id] && !slices.ContainsFunc(answers, func(a Answer) bool { return a.Who == id || a.Nameless }) {
			return true
		}
	}
	return false
}

// absent returns the addresses of Sentinels that are not heard, sorted.
func (c *council) absent() (all []string) {
	for a, m := range c.members {
		if m.state != heard {
			all = append(all, a)
		}
	}
	slices.Sort(all)
	return all
}
