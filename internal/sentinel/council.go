package sentinel

import (
	"maps"
	"net"
	"slices"
	"strings"
	"time"

	"github.com/lockregistry/lockregistry/internal/clock"
)

// events are the events of Sentinels to which a watch subscribes. Around a failover they publish, in this order: one finds the
// master down (+sdown); enough of them do (+odown); one asks for votes to replace the master (+try-failover); others vote; the
// master has changed (+switch-master).
//
// The votes matter most: no Sentinel promotes a server without the votes of a majority. So a process that hears a majority
// hears of each failover before the promotion, whichever Sentinel leads it.
//
// An operator or a program may also make the Sentinels watch another server (SENTINEL REMOVE, then MONITOR). That is no
// failover: nobody demotes the former master, and nothing but +monitor is published.
//
// Sentinels also publish which other Sentinels they find. By the next failover these may have replaced all others, one after
// another.
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
// While a Sentinel is not heard, its events are missed. So it is asked once it is heard again. The subscription comes before
// the question, so each failover shows either in the answer or in a later event. From then on its answers raise no doubt: what it
// says against the master is known, and may last.
type council struct {
	set     string // the name of the master set
	members map[string]*member
	ids     map[string]bool      // of the Sentinels of the set
	votes   map[string]time.Time // by the id of a Sentinel: when a vote was last heard for it to lead a failover
	former  map[string]time.Time // by the address of a server: when it was last heard that another one has replaced it
}

// leadsFor is how long after the newest vote for it a Sentinel may lead a failover that no other Sentinel knows of. An election
// ends after 10 s. The promotion comes within seconds of it, and the others hear of that within two.
const leadsFor = 2 * LongestDoubt

type member struct {
	state    state
	id       string  // as other Sentinels have reported it; empty: none has
	given    bool    // the user has given its address: it is never forgotten
	failed   int     // how many attempts in a row have failed
	last     *Answer // its newest answer; nil: none
	stranger bool    // by the newest answers of all, it belongs to another deployment, see split
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
	ask               // ask it for its state, and which others it knows
	list              // ask it which others it knows: its state is not in doubt
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

// broke: the connection to a Sentinel has ended, or could not be made. The others are asked once where it is, since it may have
// moved before that was noticed: while it counts as heard, no other address of it is learned.
func (c *council) broke(address string) []act {
	m := c.members[address]
	m.state = resting
	m.failed++
	acts := []act{{do: rest, address: address, after: clock.Pause(m.failed, clock.MostPause)}}
	if m.failed > 1 {
		return acts
	}
	for _, other := range slices.Sorted(maps.Keys(c.members)) {
		if o := c.members[other]; o.state == heard && !o.stranger {
			acts = append(acts, act{do: list, address: other})
		}
	}
	return acts
}

// rested: a Sentinel is to be dialed again, unless it has gone for good, for instance to another address, where it may be heard.
func (c *council) rested(address string) []act {
	if m := c.members[address]; !m.given && (!c.listed(address) || c.hears(m.id)) {
		delete(c.members, address)
		return nil
	}
	c.members[address].state = dialing
	return []act{{do: dial, address: address}}
}

// listed reports whether any Sentinel that is heard knows of one at this address; true if none is heard.
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

// hears reports whether the Sentinel with this id is heard, at whatever address. The user may have given its host by name,
// while it announces an address at which it cannot be reached from here, or for which it has no certificate.
func (c *council) hears(id string) bool {
	for _, m := range c.members {
		if m.state == heard && m.last != nil && id != "" && m.last.Who == id {
			return true
		}
	}
	return false
}

// announced reports whether a Sentinel has said that one is at this address.
func (c *council) announced(address string) bool {
	for _, m := range c.members {
		if m.last != nil && m.last.knows("", address) {
			return true
		}
	}
	return false
}

// answered takes the first answer of a Sentinel that is heard from now on. If the Sentinel does not vouch for the server that
// is in use, that raises a doubt, unless it is a stranger.
func (c *council) answered(a *Answer, using string) (acts []act) {
	acts = c.learnFrom(a, using)
	if m := c.members[a.At]; using != "" && (m == nil || !m.stranger) && a.says(using, a.Epoch) != Vouched {
		acts = append(acts, act{do: doubt})
	}
	return acts
}

// learnFrom takes any answer of a Sentinel, and learns which others it knows; not from a stranger.
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

// published takes an event. What its message says depends on the channel:
//
//	+sdown and others       "master NAME IP PORT", or "slave ... @ NAME IP PORT", or "sentinel ... @ NAME IP PORT"
//	+switch-master          "NAME IP PORT IP PORT"
//	+vote-for-leader        "ID EPOCH", which does not say for which master set
//
// A Sentinel that has found another one, or a new address of one, is asked where that is. Events of strangers do not count: with
// each of them LongestContest would begin anew.
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
		return []act{{do: list, address: by}} // mutant: new Sentinels unheard
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

// judge is Judge, but events count, too. The council must have learned from the answers.
//
//   - A server that was replaced a moment ago is not believed, even if the Sentinel that said so does not answer.
//   - A Sentinel that may lead a failover must have answered. Nobody else knows of that failover, so a majority of the others
//     proves nothing. The Sentinel may be slow or down, so the verdict is to wait for it.
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

// expire forgets the events of failovers that all Sentinels know of by now.
func expire(when map[string]time.Time, now time.Time) {
	maps.DeleteFunc(when, func(_ string, at time.Time) bool { return now.Sub(at) >= leadsFor })
}

// missesLeader reports whether a Sentinel that may lead a failover has not answered. If the Sentinels were asked after the vote,
// and none of them lists it, it leads a failover of another set. Before Redis 6.2, Sentinels do not report the id by which they
// are voted for. So a nameless answer may be the leader's, and then no leader is missed.
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
