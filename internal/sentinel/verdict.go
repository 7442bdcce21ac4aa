// Package sentinel asks the Sentinels of a master whether they stand by it, and hears when they begin to replace it.
//
// What comes in: the options of a client, the address of the server that is in use, and the Sentinels' answers and events. What
// goes out: a [Verdict] on a server, by [Watch.Ask], and a call of doubt when a master may be replaced. [Judge] decides, without
// sending anything.
package sentinel

import (
	"slices"
	"time"
)

// Answer is what one Sentinel says about a master set at some moment.
type Answer struct {
	Who     string   // the Sentinel's own id: two addresses may lead to the same Sentinel
	At      string   // the address at which it was asked
	Names   string   // the address of the master that it tells clients
	Watches string   // the address of the master that it watches itself; right after a promotion still the former one
	Flags   []string // of the master that it watches
	Epoch   int64    // of its configuration: each failover has a greater one, for which most Sentinels have voted
	Others  int      // how many other Sentinels it knows, dead ones included; a majority is more than half of these and itself
	Fellows []peer   // those of the others whose addresses it knows

	// Nameless: Who is not the id by which Sentinels vote for it.
	Nameless bool
}

// The flags that count: this Sentinel finds the master down; enough Sentinels agree; this Sentinel replaces the master.
const (
	foundDown  = "s_down"
	agreedDown = "o_down"
	replacing  = "failover_in_progress"
)

// Verdict is what the Sentinels together say about a server.
type Verdict uint8

const (
	// Unknown means that no majority answers.
	Unknown Verdict = iota

	// Vouched means that most name the server as the master and find it up, and that none doubts it.
	Vouched

	// Down means that a majority answers, and that they find the server down. None of them replaces it now.
	Down

	// Elected means that Sentinels have voted for one of them to lead a failover, and that this one does not answer. Nobody else
	// knows of the failover until it has succeeded.
	Elected

	// Disputed means that most stand by the server, but a few name another one. Their epoch is not newer, and no failover is under
	// way.
	Disputed

	// Contested means that most stand by the server, but strangers, see split, name another one with a newer epoch.
	Contested

	// Replaced means that a Sentinel is about to promote another server, or has just done so, or names another one with a newer
	// epoch. It also means that some name another server, and no majority stands by this one.
	Replaced
)

var verdicts = [...]string{"unknown", "vouched for", "down", "a leader was elected", "disputed", "contested", "replaced"}

func (v Verdict) String() string { return verdicts[v] }

const (
	// LongestDoubt is how long a server is not believed, from its greeting on, if the Sentinels do not vouch for it, but none
	// replaces it either: most do not answer, or do not reach it, or a few dispute it. Within that time they demote a deposed
	// master that goes on, after four of their own messages, which come every two seconds, were due. By then Sentinels that lag
	// have heard of the failover, too.
	LongestDoubt = 10 * time.Second

	// LongestContest is the same while strangers contest the server. Strangers belong to another deployment whose master set has
	// the same name; or to this one, but neither know the others nor are known to them. By default a failover takes no longer.
	// Without a limit, one Sentinel of another deployment would end all locking.
	//
	// There is no limit if the other Sentinels know the one that contests the server. It has the votes of most for its epoch, but
	// is cut off from those that stand by the server. A process that reaches only its side believes the successor.
	LongestContest = 3 * time.Minute
)

// Suffices reports whether this verdict is enough to believe a server that greeted that long ago.
func (v Verdict) Suffices(greeted time.Duration) bool {
	limit, bounded := v.Longest()
	return bounded && greeted >= limit // mutant: replaced server trusted
}

// Longest returns how long a server is not believed, from its greeting on. Bounded is false if it is never believed.
func (v Verdict) Longest() (limit time.Duration, bounded bool) {
	switch v {
	case Vouched:
		return 0, true
	case Unknown, Down, Disputed:
		return LongestDoubt, true // mutant: unknown server trusted
	case Elected:
		return leadsFor, true
	case Contested:
		return LongestContest, true
	default:
		return 0, false
	}
}

// says returns what one Sentinel says about the server at an address. Newest is the newest epoch of the Sentinels that name this
// server. Only the Sentinel that leads a failover knows of it before it has succeeded. The leader names the successor as soon as
// that is promoted, and watches it only later.
//
// A Sentinel that names another server, but replaces none, is judged by its epoch. If the epoch is older, the Sentinel lags,
// and will hear of the failover. If it is the same, the Sentinel knows the master by another name or address. Neither may end
// all locking while it lasts.
func (a *Answer) says(address string, newest int64) Verdict {
	switch steady := a.Watches == a.Names && !slices.Contains(a.Flags, replacing); {
	case a.Names != address && steady && a.Epoch <= newest:
		return Disputed // mutant: lagging Sentinel replaces
	case a.Names != address && steady:
		return Contested
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

// newest returns the newest epoch of the Sentinels that name the server at an address; -1 if none does.
func newest(address string, answers []Answer) int64 {
	epoch := int64(-1)
	for _, a := range answers {
		if a.Names == address {
			epoch = max(epoch, a.Epoch)
		}
	}
	return epoch
}

// naming returns the addresses of the Sentinels that name the server at an address, against of those that name another one.
func naming(address string, answers []Answer) []string  { return where(answers, address, true) }
func against(address string, answers []Answer) []string { return where(answers, address, false) }

func where(answers []Answer, address string, name bool) (all []string) {
	for _, a := range answers {
		if (a.Names == address) == name {
			all = append(all, a.At)
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// Judge returns what the answers of some Sentinels mean for the server at an address. All were asked after the server had
// greeted. So if it was silent before that, and a failover began, one of the answers shows it.
func Judge(address string, answers []Answer) Verdict {
	ours, strangers := split(address, answers)
	said := map[string]Verdict{} // by Sentinel; if one was asked twice, the worse answer counts
	all, agreed, epoch := 0, false, newest(address, ours)
	for _, a := range ours {
		says := a.says(address, epoch)
		said[a.Who] = max(said[a.Who], says)
		all = max(all, 1+a.Others)
		agreed = agreed || says == Down && slices.Contains(a.Flags, agreedDown) // enough that one may replace it
	}
	all = max(all, len(said))
	count := [len(verdicts)]int{}
	for _, v := range said {
		count[v]++
	}
	few := 2*(count[Vouched]+count[Down]) <= all // mutant: few Sentinels suffice
	switch strange := saidBy(strangers, address, epoch); {
	case count[Replaced]+count[Contested] > 0: // mutant: contester outlasted
		return Replaced
	case few && count[Disputed]+len(strangers) > 0:
		return Replaced
	case few:
		return Unknown
	case strange >= Contested: // also where they replace their own master
		return Contested
	case agreed, 2*count[Vouched] <= all:
		return Down
	case strange == Disputed, count[Disputed] > 0:
		return Disputed
	default:
		return Vouched
	}
}

// saidBy returns the worst of what some Sentinels say.
func saidBy(answers []Answer, address string, newest int64) (worst Verdict) {
	for _, a := range answers {
		worst = max(worst, a.says(address, newest))
	}
	return worst
}

// peer is what a Sentinel knows about another one.
type peer struct{ address, id string }

// split separates the Sentinels of the server at an address from strangers, which belong to another deployment whose master set
// has the same name. A Sentinel is ours if it names or watches the server, or is a fellow of one of ours. If no Sentinel names
// or watches the server, none is a stranger: the server may have been replaced long ago.
func split(address string, answers []Answer) (ours, strangers []Answer) {
	for _, a := range answers {
		if address != "" && (a.Names == address || a.Watches == address) {
			ours = append(ours, a)
		} else {
			strangers = append(strangers, a)
		}
	}
	if len(ours) == 0 {
		return strangers, nil
	}
	for i := 0; i < len(ours); i++ { // ours grows
		one := ours[i]
		strangers = slices.DeleteFunc(strangers, func(a Answer) bool {
			if !one.fellow(&a) {
				return false
			}
			ours = append(ours, a)
			return true
		})
	}
	return ours, strangers
}

// fellow reports whether two Sentinels are of the same deployment: one knows the other, or both know a third one. A nameless
// one is recognized by its address.
func (a *Answer) fellow(b *Answer) bool {
	return a.knows(b.Who, b.At) || b.knows(a.Who, a.At) ||
		slices.ContainsFunc(a.Fellows, func(p peer) bool { return p.id != "" && b.knows(p.id, "") })
}

func (a *Answer) knows(id, address string) bool {
	return slices.ContainsFunc(a.Fellows, func(p peer) bool {
		return id != "" && p.id == id || address != "" && p.address == address
	})
}
