package sentinel

import (
	"maps"
	"net"
	"slices"
	"strings"
	"time"

	"github.com/lockregistry/lockregistry/internal/clock"
)

// events are what Sentinels publish before another master takes over, and when it has. One finds the master down; enough do;
// one wants to replace it, and asks for votes; others vote; clients are to change.
//
// A vote tells most: no Sentinel promotes a server without the votes of a majority. So a process that hears a majority hears of
// each failover before the promotion, whichever Sentinel leads it.
//
// An operator, or a program, may also have the Sentinels watch another server (SENTINEL REMOVE, then MONITOR). That is no
// failover: nobody demotes the former master, and nothing else is published.
//
// And they publish which Sentinels they find: by the next failover these may have replaced all others, one after another.
var events = []string{
	"+sdown", "+odown", "+try-failover", vote, switched, found, moved,
	"+monitor", // mutant: another master unheard
}

const (
	vote     = "+vote-for-leader"
	switched = "+switch-master"
	found    = "+sentinel"
	moved    = "+sentinel-address-switch"
)

// council knows which Sentinels there are and which are heard, and decides what an event means. It has no clock and no
// connection: an event comes in, and what to do goes out.
//
//	learn ──▶ dialing ──subscribed──▶ heard
//	            ▲  └──────broke──▶ resting ◀──broke──┘
//	            └──rested─────────────┴──nobody lists it──▶ forgotten
//
// Events are missed while a Sentinel is not heard. So it is asked once it is heard again: after the subscription, so that each
// failover shows either in its answer or in a later event.
type council struct {
	set     string // the name of the master set
	members map[string]*member
	ids     map[string]bool      // of the Sentinels of the set
	votes   map[string]time.Time // when a vote for a Sentinel as the leader of a failover was last heard, by its id
	former  map[string]time.Time // when it was last heard that a server had been replaced, by its address
}

// leadsFor is for how long after the newest vote a Sentinel may lead a failover of which no other one knows. An election ends
// after 10 s. The promotion comes within seconds of it, and the others hear of that within two.
const leadsFor = 2 * LongestDoubt

type member struct {
	state    state
	id       string  // by the word of others; empty: they have not named it
	given    bool    // by the user: it is never forgotten
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

// act is something to do.
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
	return council{
		set: set, members: map[string]*member{}, ids: map[string]bool{}, votes: map[string]time.Time{}, former: map[string]time.Time{},
	}
}

// begin takes in the addresses that the user gives.
func (c *council) begin(addresses []string) []act {
	acts := c.learn(addresses)
	for _, a := range addresses {
		c.members[a].given = true
	}
	return acts
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

// rested: a Sentinel is to be dialed again, unless it has gone for good, as one that has moved, or is heard at another address.
func (c *council) rested(address string) []act {
	if m := c.members[address]; !m.given && (!c.listed(address) || c.hears(m.id)) {
		delete(c.members, address)
		return nil
	}
	c.members[address].state = dialing
	return []act{{do: dial, address: address}}
}

// listed reports whether a Sentinel that is heard knows one at an address; true if none is heard.
func (c *council) listed(address string) bool {
	heardOf := false
	for _, m := range c.members {
		if m.state == heard && m.last != nil && !m.stranger {
			if m.last.knows("", address) {
				return true
			}
			heardOf = true
		}
	}
	return !heardOf
}

// hears reports whether the Sentinel with an id is heard. It may have been given by a name, and announce an address where nobody
// reaches it from here, or for which it has no certificate.
func (c *council) hears(id string) bool {
	for _, m := range c.members {
		if m.state == heard && m.last != nil && id != "" && m.last.Who == id {
			return true
		}
	}
	return false
}

// announced reports whether some Sentinel has said that one is at an address.
func (c *council) announced(address string) bool {
	for _, m := range c.members {
		if m.last != nil && m.last.knows("", address) {
			return true
		}
	}
	return false
}

// answered takes the answer of a Sentinel that has just begun to be heard: what it says of the server that is in use. What a
// stranger says of that does not count.
func (c *council) answered(a *Answer, using string) (acts []act) {
	acts = c.learnFrom(a, using)
	if m := c.members[a.At]; using != "" && (m == nil || !m.stranger) && a.says(using, a.Epoch) != Vouched {
		acts = append(acts, act{do: doubt})
	}
	return acts
}

// learnFrom takes any answer of a Sentinel: which others it knows. Those that strangers know are not learned of.
func (c *council) learnFrom(a *Answer, using string) (acts []act) {
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
		if c.members[p.address] == nil && c.hears(p.id) { // mutant: heard twice
			continue
		}
		acts = append(acts, c.learn([]string{p.address})...)
		c.members[p.address].id = p.id
	}
	return acts
}

// published takes an event. Its message begins with "master NAME IP PORT"; of replicas and Sentinels with "slave" or "sentinel",
// and "@ NAME IP PORT" follows. That of a change is "NAME IP PORT IP PORT", that of a vote "ID EPOCH": it does not say which
// master set it is for. A Sentinel that has found another one, or a new address of one, is asked for it.
//
// Events of strangers do not count: with each of them LongestContest would begin anew.
func (c *council) published(by, channel, message string, now time.Time) []act {
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
		c.changed(words[1:], now)
	case channel == found && len(words) > 5 && words[5] == c.set, channel == moved && len(words) > 1 && words[1] == c.set:
		return []act{{do: ask, address: by}} // mutant: new Sentinels unheard
	case channel == found, channel == moved:
		return nil
	case channel != switched && len(words) > 1 && words[0] == "master" && words[1] == c.set:
	default:
		return nil
	}
	return []act{{do: doubt}}
}

// changed notes that another server has replaced the master: "IP PORT IP PORT".
func (c *council) changed(words []string, now time.Time) {
	if len(words) < 4 {
		return
	}
	from, to := net.JoinHostPort(words[0], words[1]), net.JoinHostPort(words[2], words[3])
	c.former[from] = now
	delete(c.former, to)
}

// judge is Judge, but events count, too: a server that was replaced a moment ago is not believed, even if the Sentinel that said
// so does not answer. And a Sentinel that may lead a failover must have answered, since no other one knows of that: without it a
// majority of the others proves nothing. It may be slow, or down; so it is waited for. The council has learned from the answers.
func (c *council) judge(address string, answers []Answer, asked, now time.Time) Verdict {
	expire(c.former, now)
	expire(c.votes, now)
	v := Judge(address, answers)
	switch _, former := c.former[address]; {
	case former, v == Replaced:
		return Replaced
	case v != Contested && c.missesLeader(answers, asked): // mutant: leader not missed
		return Elected
	}
	return v
}

// expire forgets events of failovers of which all Sentinels know by now.
func expire(when map[string]time.Time, now time.Time) {
	maps.DeleteFunc(when, func(_ string, at time.Time) bool { return now.Sub(at) >= leadsFor })
}

// missesLeader reports whether a Sentinel may lead a failover and has not answered. If none that was asked after the vote lists
// it, it leads a failover of another set. Before Redis 6.2 Sentinels do not say by which id they vote.
func (c *council) missesLeader(answers []Answer, asked time.Time) bool {
	for id, at := range c.votes {
		ours := c.ids[id] || at.After(asked)
		if ours && !slices.ContainsFunc(answers, func(a Answer) bool { return a.Who == id || a.Nameless }) {
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
