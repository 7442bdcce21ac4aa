package inspect

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry/internal/presence"
)

// A record does not list all holds: whether the process of the others is dead shows by those that it lists.
func TestReader_HoldsThatTheRecordDoesNotList(t *testing.T) {
	for name, c := range map[string]struct {
		left   map[string]time.Duration // of holds that the record lists with a lease of 30 s, or of a minute for "long"
		silent time.Duration            // of the hold that it does not list
	}{
		"nothing was renewed":             {map[string]time.Duration{"a": 10 * time.Second, "b": 11 * time.Second}, 19 * time.Second},
		"another is not yet overdue":      {map[string]time.Duration{"a": 10 * time.Second, "long": 45e9}, 15 * time.Second},
		"another one was renewed since":   {map[string]time.Duration{"a": 10 * time.Second, "b": 25 * time.Second}, 0},
		"renewed since, by a longer one":  {map[string]time.Duration{"a": 10 * time.Second, "long": 55 * time.Second}, 0},
		"all are renewed":                 {map[string]time.Duration{"a": 25 * time.Second, "b": 26 * time.Second}, 0},
		"late by no more than by chance":  {map[string]time.Duration{"a": 19 * time.Second}, 0},
		"what it lists is gone meanwhile": {map[string]time.Duration{}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			r, server := readerOf(t)
			var listed []string
			for path, lease := range map[string]int{"a": 30000, "b": 30000, "long": 60000} {
				listed = append(listed, fmt.Sprintf(`{"path":"%s","hold":"1","since":5,"lease":%d}`, path, lease))
			}
			for path, left := range c.left {
				require.NoError(t, server.Set("p:"+path, other+":1"))
				server.SetTTL("p:"+path, left)
			}
			require.NoError(t, server.Set(presence.Key("p", other), `{"host":"h","pid":7,"locks":[`+strings.Join(listed, ",")+`]}`))
			require.NoError(t, server.Set("p:m149", other+":149"))
			server.SetTTL("p:m149", 29*time.Second)
			require.NoError(t, server.Set("p:mine", own+":1"))
			server.SetTTL("p:mine", time.Second)

			info, err := r.Lock(t.Context(), "p:m149")
			require.NoError(t, err)
			require.Zero(t, info.Holders[0].Renewed, "it is not known whether it is renewed")
			require.Equal(t, c.silent, info.Holders[0].Silent)

			told := map[string]time.Duration{}
			for info, err := range (&Inspector{reader: *r}).Locks(t.Context()) {
				require.NoError(t, err)
				told[info.Path] = info.Holders[0].Silent
			}
			require.Zero(t, told["mine"], "this process is alive")
			delete(told, "mine")
			require.Len(t, told, 1+len(c.left))
			for path, silent := range told {
				require.Equal(t, c.silent, silent, path)
			}
		})
	}
}

// Of what a record lists little is read, of different leases, and what is not renewed is of no use.
func TestProbes(t *testing.T) {
	locks := []presence.Lock{{Path: "waited for", Waiting: 3, Lease: 1}, {Path: "for a while", Hold: "1"}}
	for i := range 9 {
		locks = append(locks, presence.Lock{Path: strconv.Itoa(i), Hold: "1", Lease: int64(9 - i)})
	}
	var paths []string
	for _, lock := range probes(locks) {
		paths = append(paths, lock.Path)
	}
	require.Equal(t, []string{"8", "4", "0"}, paths)
	require.Len(t, probes(locks[:4]), 2)
}
