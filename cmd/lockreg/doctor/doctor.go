// Package doctor examines a deployment of Redis. It says what is wrong with it for locks, and what to do. It changes nothing: it
// tries each permission with a command that the server refuses, or that has no effect, on a key that does not exist.
package doctor

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/redis/rueidis"

	"github.com/lockregistry/lockregistry/observe"
)

// Severity is how much a finding matters.
type Severity string

// The severities, from the least on.
const (
	OK      Severity = "ok"      // nothing was found
	Info    Severity = "info"    // to know; nothing has to be done
	Warning Severity = "warning" // locks can be lost, slow or unavailable when something else goes wrong
	Error   Severity = "error"   // something does not work, or a lock can be held twice
)

var severities = []Severity{OK, Info, Warning, Error}

func (s Severity) rank() int { return slices.Index(severities, s) }

// Finding is the result of a check.
type Finding struct {
	ID       string   `json:"id"` // of the check; stable across versions
	Severity Severity `json:"severity"`
	Nodes    []string `json:"nodes,omitempty"` // the addresses of the servers that it is about; none: all of them, or the client
	Seen     string   `json:"seen"`
	Why      string   `json:"why,omitempty"`
	Do       string   `json:"do,omitempty"`
	// Commands fix it. Enter them in redis-cli at each of Nodes, as a user that is permitted to run them.
	Commands []string `json:"commands,omitempty"`
}

// Node is a server that was examined.
type Node struct {
	Address string `json:"address"`
	Server  string `json:"server,omitempty"` // such as "Redis 7.0.15"; empty: it does not tell
	Role    string `json:"role,omitempty"`   // master or replica
}

// Report is the result of [Check].
type Report struct {
	Prefix   string    `json:"prefix"`
	Mode     string    `json:"mode"` // of the client: standalone, cluster or sentinel
	User     string    `json:"user"`
	Nodes    []Node    `json:"nodes"`
	Findings []Finding `json:"findings"` // the worst first; each check that was made has one at least
}

// Worst is the highest severity in the report.
func (r Report) Worst() Severity {
	worst := OK
	for _, f := range r.Findings {
		if f.Severity.rank() > worst.rank() {
			worst = f.Severity
		}
	}
	return worst
}

// Options say how the deployment is used.
type Options struct {
	Prefix string         // of the registry; it must not be empty
	Layout observe.Layout // empty: Spring's
	// Need names the modes that the user must be permitted, see [Modes]. A permission that only other modes lack is [Info]. None:
	// lock, queue, tracking.
	Need []string
	// Lease is the lease of the locks, as set by WithLease or Lease. 0: the layout's default, 60 s or 30 s.
	Lease time.Duration
	// Replicas is the number given to WithReplicas. 0: it is not used.
	Replicas int
	// Client has the options of the program's client, if they are known. They are checked, and used to ask the Sentinels. Nil:
	// neither.
	Client *rueidis.ClientOption
	// ScanFor limits how long the examination looks at keys of the database. 0: 10 s.
	ScanFor time.Duration
	// Now is the clock of the client. Nil: time.Now.
	Now func() time.Time
}

const (
	defaultScan = 10 * time.Second
	answerLimit = 5 * time.Second // for one command
)

// Check examines all servers that the client uses. It returns an error if the options make no sense, if none of the servers
// answers, or if ctx ends.
func Check(ctx context.Context, client rueidis.Client, opts Options) (Report, error) {
	x, err := begin(client, opts)
	if err != nil {
		return Report{}, err
	}
	if err := x.meet(ctx); err != nil {
		return Report{}, err
	}
	x.versions()
	x.permissions(ctx)
	x.memory()
	x.persistence()
	x.settings()
	x.replication()
	x.cluster(ctx)
	x.sentinels(ctx)
	x.clocks(ctx)
	x.keys(ctx)
	if opts.Client != nil {
		x.clientSettings(*opts.Client)
	}
	if ctx.Err() != nil {
		return Report{}, context.Cause(ctx)
	}
	return x.report(), nil
}

// examination is one run of Check.
type examination struct {
	opts     Options
	client   rueidis.Client
	user     string
	scratch  string // the path of a key that does not exist
	nodes    []*node
	findings []Finding
	unseen   []string // rules of an access list without which checks are left out
}

// node is a server, with what it says about itself.
type node struct {
	address string
	client  rueidis.Client
	info    map[string]string // INFO; empty when it is not permitted
	config  map[string]string // CONFIG GET, likewise
	hello   map[string]string // HELLO, which everybody may; empty before Redis 6
	view    string            // CLUSTER NODES, on a cluster
	tried   map[string]outcome
}

func begin(client rueidis.Client, opts Options) (*examination, error) {
	if opts.Prefix == "" {
		return nil, errors.New("doctor: the prefix is empty")
	}
	if opts.Lease < 0 || opts.Replicas < 0 || opts.ScanFor < 0 {
		return nil, errors.New("doctor: a lease, a number of replicas or a time is negative")
	}
	for _, name := range opts.Need {
		if !slices.Contains(Modes(), name) {
			return nil, fmt.Errorf("doctor: there is no mode %q, only %s", name, strings.Join(Modes(), ", "))
		}
	}
	if len(opts.Need) == 0 {
		opts.Need = []string{"lock", "queue", "tracking"}
	}
	if opts.Lease == 0 {
		opts.Lease = 60 * time.Second
		if opts.Layout == observe.LayoutRedisson {
			opts.Lease = 30 * time.Second
		}
	}
	opts.ScanFor = cmp.Or(opts.ScanFor, defaultScan)
	if opts.Now == nil {
		opts.Now = time.Now
	}
	x := &examination{opts: opts, client: client, scratch: "lockreg-doctor-" + uuid.NewString()}
	nodes := client.Nodes()
	for _, address := range slices.Sorted(maps.Keys(nodes)) {
		x.nodes = append(x.nodes, &node{address: address, client: nodes[address], tried: map[string]outcome{}})
	}
	return x, nil
}

// do sends a command to a node, and waits for its answer for a while.
func (n *node) do(ctx context.Context, args ...string) rueidis.RedisResult {
	ctx, cancel := context.WithTimeout(ctx, answerLimit)
	defer cancel()
	return n.client.Do(ctx, n.client.B().Arbitrary(args...).Build())
}

// answered reports whether the server replied, even with an error.
func answered(err error) bool {
	_, refused := rueidis.IsRedisErr(err)
	return err == nil || refused
}

// meet finds the nodes. Nodes that do not answer are left out of all other checks.
func (x *examination) meet(ctx context.Context) error {
	var silent []string
	var last error
	x.nodes = slices.DeleteFunc(x.nodes, func(n *node) bool {
		reply, err := n.do(ctx, "INFO").ToString()
		if !answered(err) {
			silent, last = append(silent, n.address), err
			return true
		}
		if err != nil {
			x.miss("+info")
		}
		n.info = fields(reply)
		n.greet(ctx)
		n.look(ctx, x)
		n.configure(ctx, x)
		return false
	})
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if len(x.nodes) == 0 {
		return fmt.Errorf("doctor: no server answers: %w", cmp.Or(last, rueidis.ErrNoAddr))
	}
	x.found(Finding{
		ID: "answers", Severity: OK, Seen: "all servers answer",
	})
	if len(silent) > 0 {
		x.found(Finding{
			ID: "answers", Severity: Error, Nodes: silent, Seen: "no answer: " + last.Error(),
			Why: "Paths whose keys are there cannot be locked. A replica that is down cannot be promoted.",
			Do:  "Start it, or look at the network between it and this host.",
		})
	}
	x.user = x.whoami(ctx)
	return nil
}

// settingNames are the settings to read with CONFIG GET.
var settingNames = []string{
	"client-output-buffer-limit", "cluster-node-timeout", "maxclients", "min-replicas-to-write", "tcp-keepalive",
	"timeout", "tracking-table-max-keys",
}

func (n *node) configure(ctx context.Context, x *examination) {
	n.config = map[string]string{}
	for _, name := range settingNames {
		reply, err := n.do(ctx, "CONFIG", "GET", name).AsStrMap()
		if err != nil {
			if answered(err) {
				x.miss("+config|get")
			}
			return
		}
		maps.Copy(n.config, reply)
	}
}

// greet asks which server it is, and which protocol the connection speaks.
func (n *node) greet(ctx context.Context) {
	n.hello = map[string]string{}
	reply, err := n.do(ctx, "HELLO").ToAny()
	if err != nil {
		return
	}
	switch all := reply.(type) {
	case map[string]any: // RESP3
		for name, value := range all {
			n.hello[name] = fmt.Sprint(value)
		}
	case []any:
		for i := 0; i+1 < len(all); i += 2 {
			n.hello[fmt.Sprint(all[i])] = fmt.Sprint(all[i+1])
		}
	}
}

// clustered reports whether it is a node of a cluster.
func (n *node) clustered() bool {
	return n.info["cluster_enabled"] == "1" || n.hello["mode"] == "cluster"
}

// look asks a node of a cluster for the others.
func (n *node) look(ctx context.Context, x *examination) {
	if !n.clustered() {
		return
	}
	view, err := n.do(ctx, "CLUSTER", "NODES").ToString()
	if err != nil && answered(err) {
		x.miss("+cluster|nodes")
	}
	n.view = strings.TrimPrefix(view, "txt:")
}

func (x *examination) whoami(ctx context.Context) string {
	name, err := x.nodes[0].do(ctx, "ACL", "WHOAMI").ToString()
	if err == nil {
		return name
	}
	if x.opts.Client != nil && x.opts.Client.Username != "" {
		return x.opts.Client.Username
	}
	return "default"
}

// miss notes a rule without which something is not looked at.
func (x *examination) miss(rule string) {
	if !slices.Contains(x.unseen, rule) {
		x.unseen = append(x.unseen, rule)
	}
}

// fields reads the lines "name:value" of INFO. In RESP3 a text may begin with its format.
func fields(text string) map[string]string {
	all := map[string]string{}
	for line := range strings.Lines(strings.TrimPrefix(text, "txt:")) {
		if name, value, ok := strings.Cut(strings.TrimSpace(line), ":"); ok {
			all[name] = value
		}
	}
	return all
}

func (n *node) role() string {
	switch cmp.Or(n.info["role"], n.hello["role"]) {
	case "master":
		return "master"
	case "slave", "replica":
		return "replica"
	}
	return ""
}

// found adds a finding. Findings that differ only in their nodes become one.
func (x *examination) found(f Finding) {
	for i := range x.findings {
		o := &x.findings[i]
		if o.ID == f.ID && o.Severity == f.Severity && o.Seen == f.Seen && o.Do == f.Do && slices.Equal(o.Commands, f.Commands) {
			for _, address := range f.Nodes {
				if !slices.Contains(o.Nodes, address) {
					o.Nodes = append(o.Nodes, address)
				}
			}
			return
		}
	}
	x.findings = append(x.findings, f)
}

func (x *examination) report() Report {
	if len(x.unseen) > 0 {
		x.found(Finding{
			ID: "unseen", Severity: Info, Nodes: x.addresses(),
			Seen: "this user may not see everything; some checks were left out",
			Why: "Without +info and +config|get the settings of the server are not checked. Without +eval, +scan and +type its " +
				"keys are not checked.",
			Do:       "Run lockreg doctor as another user, or permit it.",
			Commands: []string{line("ACL", append([]string{"SETUSER", x.user}, x.unseen...)...)},
		})
	}
	worse := map[string]bool{}
	for _, f := range x.findings {
		worse[f.ID] = worse[f.ID] || f.Severity != OK
	}
	r := Report{Prefix: x.opts.Prefix, Mode: string(x.client.Mode()), User: x.user}
	for _, f := range x.findings {
		if f.Severity == OK && worse[f.ID] {
			continue
		}
		if f.Severity == OK {
			worse[f.ID] = true // once
			f.Nodes = nil
		}
		r.Findings = append(r.Findings, f)
	}
	slices.SortStableFunc(r.Findings, func(a, b Finding) int { return b.Severity.rank() - a.Severity.rank() })
	for _, n := range x.nodes {
		r.Nodes = append(r.Nodes, Node{Address: n.address, Server: n.server(), Role: n.role()})
	}
	return r
}

func (x *examination) addresses() (all []string) {
	for _, n := range x.nodes {
		all = append(all, n.address)
	}
	return all
}

// line is a command as redis-cli reads it.
func line(command string, args ...string) string {
	var b strings.Builder
	b.WriteString(command)
	for _, arg := range args {
		b.WriteByte(' ')
		b.WriteString(quoted(arg))
	}
	return b.String()
}

// quoted is a word as redis-cli reads it.
func quoted(word string) string {
	special := func(r rune) bool { return r <= ' ' || r > '~' || r == '"' || r == '\'' || r == '\\' }
	if word != "" && !strings.ContainsFunc(word, special) {
		return word
	}
	var b strings.Builder
	b.WriteByte('"')
	for _, c := range []byte(word) {
		switch {
		case c == '"' || c == '\\':
			b.WriteByte('\\')
			b.WriteByte(c)
		case c < ' ' || c > '~':
			fmt.Fprintf(&b, `\x%02x`, c)
		default:
			b.WriteByte(c)
		}
	}
	b.WriteByte('"')
	return b.String()
}
