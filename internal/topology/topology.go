// Package topology finds the servers that a client uses, and, by the majority of a Redis Cluster's nodes, the master of each
// slot.
//
// What comes in: a client. What goes out: the addresses of its servers, the master of a slot ([Resolver]), and whether a client
// has changed to another master ([Switches]). A caller decides what to do then.
package topology

import (
	"cmp"
	"context"
	"maps"
	"net"
	"slices"
	"strconv"

	"github.com/redis/rueidis"
)

// Servers returns the addresses of a client's servers, sorted. For a client of Sentinel they change with the master.
func Servers(client rueidis.Client) []string { return slices.Sorted(maps.Keys(client.Nodes())) }

// Range is a range of a cluster's slots, and the address of their master.
type Range struct {
	First, Last int64
	Address     string
}

// Map is a node's answer, in the order of the slots. Slots without a master are missing.
type Map []Range

// Ask asks the node at an address for its map.
func Ask(ctx context.Context, node rueidis.CoreClient, address string) (Map, error) {
	reply, err := node.Do(ctx, node.B().ClusterSlots().Build()).ToArray()
	return Parse(reply, address), err
}

// Parse reads the reply of CLUSTER SLOTS: for each range the first and last slot and its servers, the master first, each with
// host, port and more. A server that does not know its own host leaves that out; asked replaces it.
func Parse(reply []rueidis.RedisMessage, asked string) (all Map) {
	for _, message := range reply {
		values, err := message.ToArray()
		if err != nil || len(values) < 3 {
			continue
		}
		first, err1 := values[0].AsInt64()
		last, err2 := values[1].AsInt64()
		master, err3 := values[2].ToArray()
		if err1 != nil || err2 != nil || err3 != nil || len(master) < 2 {
			continue
		}
		port, err := master[1].AsInt64()
		if err != nil {
			continue
		}
		host, err := master[0].ToString()
		if err != nil || host == "" {
			host, _, _ = net.SplitHostPort(asked)
		}
		all = append(all, Range{first, last, net.JoinHostPort(host, strconv.FormatInt(port, 10))})
	}
	slices.SortFunc(all, func(a, b Range) int { return cmp.Compare(a.First, b.First) })
	return all
}

// Owner returns the address of the master of a slot; empty if there is none.
func (m Map) Owner(slot uint16) (address string) { return m.owner(int64(slot), int64(slot)) }

// owner returns the master of all slots from first to last.
func (m Map) owner(first, last int64) (address string) {
	i, _ := slices.BinarySearchFunc(m, first, func(r Range, slot int64) int { return cmp.Compare(r.Last, slot) })
	if i == len(m) || first < m[i].First || m[i].Last < last {
		return ""
	}
	return m[i].Address
}

// agree returns the answer of the majority. Slots without a majority are missing.
func agree(said []Map) (all Map) {
	var cuts []int64 // for the slots between two cuts each node names the same master, or none
	for _, m := range said {
		for _, r := range m {
			cuts = append(cuts, r.First, r.Last+1)
		}
	}
	slices.Sort(cuts)
	cuts = slices.Compact(cuts)
	for i := 1; i < len(cuts); i++ {
		first, last := cuts[i-1], cuts[i]-1
		votes := map[string]int{}
		for _, m := range said {
			votes[m.owner(first, last)]++
		}
		delete(votes, "")
		for address, n := range votes {
			if n*2 <= len(said) {
				continue
			}
			if before := len(all) - 1; before >= 0 && all[before].Last == first-1 && all[before].Address == address {
				all[before].Last = last
			} else {
				all = append(all, Range{first, last, address})
			}
		}
	}
	return all
}
