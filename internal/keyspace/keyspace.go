// Package keyspace goes through the keys of all masters, by scripts that change nothing.
//
// What comes in: prefixes. What goes out: keys, in the batches of a [scan.Pass], and the registries that have a record.
package keyspace

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/rueidis"

	"github.com/lockregistry/lockregistry/internal/clock"
	"github.com/lockregistry/lockregistry/internal/fault"
	"github.com/lockregistry/lockregistry/internal/presence"
	"github.com/lockregistry/lockregistry/internal/protocol"
	"github.com/lockregistry/lockregistry/internal/protocol/operator"
	"github.com/lockregistry/lockregistry/internal/readonly"
	"github.com/lockregistry/lockregistry/internal/scan"
	"github.com/lockregistry/lockregistry/internal/topology"
	"github.com/lockregistry/lockregistry/internal/transport"
)

// Together runs a pass over the keys of all masters that begin with one of some prefixes and a colon, and end with end.
//
// The server matches the beginning that all prefixes have, and the script leaves out the rest: so a pass for several prefixes is
// more work than for one of them, and less than one for each.
func Together(ctx context.Context, r *readonly.Reader, prefixes []string, end string, p *scan.Pass) error {
	pattern := func(begin string) string { return scan.Literal(begin) + "*" + scan.Literal(end) }
	if len(prefixes) == 1 {
		return run(ctx, r, p, pattern(prefixes[0]+":"))
	}
	common, begin := prefixes[0]+":", make([]string, len(prefixes))
	for i, prefix := range prefixes {
		begin[i] = prefix + ":"
		for !strings.HasPrefix(begin[i], common) {
			common = common[:len(common)-1]
		}
	}
	return run(ctx, r, p, pattern(common), begin...)
}

// run runs a pass over the keys that match a pattern and, if there are any, begin with one of some texts.
func run(ctx context.Context, r *readonly.Reader, p *scan.Pass, pattern string, begin ...string) error {
	nodes, err := nodesOf(ctx, r)
	if err != nil {
		return err
	}
	p.Clock, p.Batch, p.Watch = r.Clock, readonly.Together, scan.WatcherOf(ctx)
	p.Pause = func(d time.Duration) error { return pause(ctx, r, d) }
	servers := topology.Servers(r.Client)
	for _, n := range nodes {
		p.Servers = append(p.Servers, func(cursor string, count int) (scan.Step, error) {
			step, err := scanOnce(ctx, r, n, append([]string{cursor, pattern, strconv.Itoa(count)}, begin...))
			if now := topology.Servers(r.Client); !r.Cluster && !slices.Equal(now, servers) { // it follows the Sentinels
				step.Anew, servers = true, now
			}
			return step, err
		})
	}
	return p.Run()
}

// Registries returns all registries of some prefixes that have a record, by prefix, perhaps more than once.
func Registries(ctx context.Context, r *readonly.Reader, prefixes ...string) (map[string][]string, error) {
	found := map[string][]string{}
	pick := func(key string) (string, bool) {
		for _, prefix := range prefixes {
			if strings.HasPrefix(key, prefix+":{") && !presence.IsList(key) {
				found[prefix] = append(found[prefix], presence.Owner(prefix, key))
			}
		}
		return "", false
	}
	err := Together(ctx, r, prefixes, presence.End, &scan.Pass{Pick: pick})
	return found, err
}

// Listed are the registries in the list of those that have a record, without a SCAN. Registries of older versions, and those
// that may not write the list, are missing. Others no longer have a record.
func Listed(ctx context.Context, r *readonly.Reader) ([]string, error) {
	most, longest := strconv.Itoa(presence.MostListed), strconv.Itoa(presence.LongestID)
	reply, err := r.AtKey(ctx, operator.Registries, presence.ListKey(r.Prefix), most, longest)
	if err != nil {
		return nil, err
	}
	return reply.AsStrSlice()
}

// pause waits for d, which is half a second at most. It returns why the pass must end, or nil.
func pause(ctx context.Context, r *readonly.Reader, d time.Duration) error {
	if d > 0 {
		clock.Rest(ctx, d)
	}
	return r.Calls.Stopped(ctx)
}

// node is a server whose keys the pass goes through.
type node struct {
	node   *transport.Node
	client rueidis.CoreClient // nil: the node's server
}

// nodesOf returns the servers of all keys.
func nodesOf(ctx context.Context, r *readonly.Reader) (nodes []node, err error) {
	t := r.Transport
	if err := r.Calls.Stopped(ctx); err != nil {
		return nil, err
	}
	if !r.Cluster {
		return []node{{node: t.First}}, nil
	}
	reply, err := t.Ask(func(ctx context.Context, way rueidis.CoreClient) rueidis.RedisResult {
		return way.Do(ctx, way.B().ClusterSlots().Build())
	}).ToArray()
	if err != nil {
		return nil, fault.Classify(err)
	}
	known, seen := r.Client.Nodes(), map[string]bool{}
	for _, part := range topology.Parse(reply, "") {
		if seen[part.Address] {
			continue
		}
		seen[part.Address] = true
		client := known[part.Address]
		if client == nil {
			return nil, fault.AsUnavailable(fmt.Errorf("the client does not know the master %s yet", part.Address))
		}
		nodes = append(nodes, node{t.NodeAt(part.Address), client})
	}
	return nodes, nil
}

// scanOnce calls SCAN once, in a script, since SCAN itself would send names of any length. The server's own time for it is shown
// by its clock before and after: what is executed in between for others counts, too.
func scanOnce(ctx context.Context, r *readonly.Reader, n node, args []string) (scan.Step, error) {
	rows, after, err := r.AtServer(ctx, n.node, n.client, operator.Keys, args...)
	if err != nil {
		return scan.Step{}, err
	}
	next, before, err := parseStep(rows)
	if before > 0 && after > before { // otherwise the script was sent again, or TIME is not permitted
		next.Took = time.Duration(after-before) * time.Microsecond
	}
	return next, err
}

// Step calls SCAN once, in a script, for a program without a Reader: send sends a command to the server.
func Step(send func(words ...string) rueidis.RedisResult, cursor, pattern string) (scan.Step, error) {
	rows, err := readonly.Either(func(verb string) rueidis.RedisResult {
		return send(verb, operator.Keys.Source, "0", cursor, pattern, "500")
	}).ToArray()
	if err != nil {
		return scan.Step{}, err
	}
	step, _, err := parseStep(rows)
	return step, err
}

// parseStep reads a reply of keys.lua. Before is the server's time before it, in microseconds; 0: not known.
func parseStep(rows []rueidis.RedisMessage) (step scan.Step, before int64, err error) {
	if len(rows) != 4 {
		return step, 0, protocol.ErrStrange
	}
	var err1, err2, err3, err4 error
	step.Cursor, err1 = rows[0].ToString()
	step.Keys, err2 = rows[1].AsStrSlice()
	step.TooLong, err3 = rows[2].AsStrSlice()
	before, err4 = rows[3].AsInt64()
	if err := fault.Join(err1, err2, err3, err4); err != nil {
		return step, 0, fault.Join(protocol.ErrStrange, err)
	}
	return step, before, nil
}
