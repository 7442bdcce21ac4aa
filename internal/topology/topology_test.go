package topology

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestOwners(t *testing.T) {
	all := Map{{0, 10, "a"}, {11, 11, "b"}, {20, 16383, "a"}}
	for slot, owner := range map[uint16]string{0: "a", 10: "a", 11: "b", 12: "", 19: "", 20: "a", 16383: "a"} {
		require.Equal(t, owner, all.Owner(slot), slot)
	}
	require.Empty(t, Map(nil).Owner(0))
}

func TestAgree(t *testing.T) {
	for name, c := range map[string]struct {
		said []Map
		all  Map
	}{
		"nobody":        {nil, nil},
		"one":           {[]Map{{{0, 9, "a"}, {10, 19, "b"}}}, Map{{0, 9, "a"}, {10, 19, "b"}}},
		"two of three":  {[]Map{{{0, 9, "a"}}, {{0, 9, "b"}}, {{0, 9, "b"}}}, Map{{0, 9, "b"}}},
		"one of two":    {[]Map{{{0, 9, "a"}}, {{0, 9, "b"}}}, nil},
		"with holes":    {[]Map{{{0, 9, "a"}}, {{5, 6, "a"}}, {}}, Map{{5, 6, "a"}}},
		"cut elsewhere": {[]Map{{{0, 3, "a"}, {4, 9, "b"}}, {{0, 9, "b"}}, {{0, 5, "b"}, {6, 9, "b"}}}, Map{{0, 9, "b"}}},
		"a slot moved": {[]Map{{{0, 9, "a"}}, {{0, 3, "a"}, {4, 4, "b"}, {5, 9, "a"}}, {{0, 3, "a"}, {4, 4, "b"}, {5, 9, "a"}}},
			Map{{0, 3, "a"}, {4, 4, "b"}, {5, 9, "a"}}},
	} {
		require.Equal(t, c.all, agree(c.said), name)
	}
}
