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
	require.Equal(t, "a", all.OwnerOfAll(2, 10))
	require.Empty(t, all.OwnerOfAll(2, 30), "one in between has another owner")
	require.Empty(t, all.OwnerOfAll(12, 30))
}
