// Package sentinel asks the Sentinels of a master whether they stand by it, and is told when they begin to replace it.
package sentinel

import (
	"slices"
	"time"
)

// Answer is what one Sentinel says of a master set at some moment.
type Answer struct {
	Who     string   // the Sentinel's own id: two addresses may lead to the same one
	Names   string   // the address of the master that it tells clients
	Watches string   // the address of the master that it watches itself; right after a promotion still the former one
	Flags   []string // of the master that it watches
	Others  int      // how many other Sentinels it knows, dead ones included: as many count for a majority among them
}

// The flags that count. A Sentinel by itself finds a master down; enough of them agree; one of them replaces it.
const (
	foundDown  = "s_down"
	agreedDown = "o_down"
	replacing  = "failover_in_progress"
)

// Verdict is what the Sentinels together say of a server.
type Verdict uint8

const (
	// Unknown means that no majority answers.
	Unknown Verdict = iota

	// Vouched means that most name the server as the master and find it up, and that none doubts it.
	Vouched

	// Down means that a majority answers, and that they find the server down. None of them replaces it now.
	Down

	// Replaced means that one of them names another master, or is about to promote one.
	Replaced
)

var verdicts = [...]string{"unknown", "vouched for", "down", "replaced"}

func (v Verdict) String() string { return verdicts[v] }

// LongestDoubt is for how long, from its greeting on, a server is not believed that no Sentinel replaces, although no majority
// vouches for it: they do not answer, or cannot reach it. A master that was deposed, and goes on, is demoted within that time:
// Sentinels wait for four of their messages, which come every two seconds.
const LongestDoubt = 10 * time.Second

// Suffices reports whether a server is to be believed that was greeted some time before the Sentinels were asked.
func (v Verdict) Suffices(greeted time.Duration) bool {
	switch v {
	case Vouched:
		return true
	case Unknown, Down:
		return greeted >= LongestDoubt // mutant: unknown server trusted
	default:
		return false // mutant: replaced server trusted
	}
}

// says returns what one Sentinel says of the server at an address. Nobody but the Sentinel that leads a failover knows of it
// until it has succeeded. That one names the successor as soon as it is promoted, and only later watches it.
func (a *Answer) says(address string) Verdict {
	switch {
	case a.Names != address:
		return Replaced
	case a.Watches != address: // it has just promoted this server
		return Vouched
	case slices.Contains(a.Flags, replacing):
		return Replaced
	case slices.Contains(a.Flags, agreedDown), slices.Contains(a.Flags, foundDown):
		return Down
	default:
		return Vouched
	}
}

// agreed reports whether a Sentinel says that enough of them find the server down that one may replace it.
func (a *Answer) agreed(address string) bool {
	return a.says(address) == Down && slices.Contains(a.Flags, agreedDown)
}

// Judge returns what some Sentinels' answers mean for the server at an address. They were all asked after the server had
// greeted: so no failover whose cause was a silence before that can be under way without one of them showing it.
func Judge(address string, answers []Answer) Verdict {
	said := map[string]Verdict{} // by Sentinel; the worst counts, if one was asked twice
	all, agreed := 0, false
	for _, a := range answers {
		said[a.Who] = max(said[a.Who], a.says(address))
		all = max(all, 1+a.Others)
		agreed = agreed || a.agreed(address)
	}
	all = max(all, len(said))
	count := [len(verdicts)]int{}
	for _, v := range said {
		count[v]++
	}
	switch {
	case count[Replaced] > 0:
		return Replaced
	case 2*(count[Vouched]+count[Down]) <= all: // mutant: few Sentinels suffice
		return Unknown
	case agreed, 2*count[Vouched] <= all:
		return Down
	default:
		return Vouched
	}
}
