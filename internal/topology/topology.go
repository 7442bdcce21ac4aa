// Package topology tells which servers a client uses, and knows by the word of most nodes of a Redis Cluster which
// one is the master of a slot.
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

// Servers returns the addresses of the servers that a client uses, in order: one of Sentinel changes them with the master.
func Servers(client rueidis.Client) []string { return slices.Sorted(maps.Keys(client.Nodes())) }

// Master asks the servers of a client at the same time, and returns the address of the one that says that it is a master; nothing
// when none does.
func Master(ctx context.Context, client rueidis.Client) string {
	nodes := client.Nodes()
	says := make(chan string, len(nodes))
	for address, node := range nodes {
		go func() {
			reply, err := node.Do(ctx, node.B().Role().Build()).ToArray()
			if err != nil || len(reply) == 0 {
				says <- ""
				return
			}
			if role, _ := reply[0].ToString(); role != "master" {
				address = ""
			}
			says <- address
		}()
	}
	for range nodes {
		if address := <-says; address != "" {
			return address
		}
	}
	return ""
}

// Range is a range of a cluster's slots and the address of the master that has them.
type Range struct {
	First, Last int64
	Address     string
}

// Map is what one node says, in the order of the slots. Those that nobody has are missing.
type Map []Range

// Ask asks a node, which is named by its address, for the map.
func Ask(ctx context.Context, node rueidis.CoreClient, address string) (Map, error) {
	reply, err := node.Do(ctx, node.B().ClusterSlots().Build()).ToArray()
	return Parse(reply, address), err
}

// Parse reads the reply of CLUSTER SLOTS: the first and last slot of a range, and the servers that have it, the master
// first, each as host, port and more. A server that does not know its own host leaves it out.
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

// Owner returns the address of the master that has a slot, or nothing.
func (m Map) Owner(slot uint16) (address string) { return m.owner(int64(slot), int64(slot)) }

// owner is the master that has all slots from the first to the last one.
func (m Map) owner(first, last int64) (address string) {
	i, _ := slices.BinarySearchFunc(m, first, func(r Range, slot int64) int { return cmp.Compare(r.Last, slot) })
	if i == len(m) || first < m[i].First || m[i].Last < last {
		return ""
	}
	return m[i].Address
}

// agree returns what more than half of some nodes say. Slots about which no such majority agrees are missing.
func agree(said []Map) (all Map) {
	var cuts []int64 // between two of them all nodes name one master for all slots, if any
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
