package protocol

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// The numbers are those of CLUSTER KEYSLOT.
func TestSlot(t *testing.T) {
	t.Parallel()
	for key, want := range map[string]uint16{
		"": 0, "123456789": 12739, "foo": 12182, "bar": 5061, "\xff\x00é": 11367,
		"foo{bar}{zap}": 5061, "{bar": Slot("x{{bar}}zap"), "foo{}{bar}": 8363, "{user1000}.following": Slot("user1000"),
	} {
		require.Equal(t, want, Slot(key), key)
	}
}

func BenchmarkSlot(b *testing.B) {
	for b.Loop() {
		Slot("orders:customer-4711-invoice")
	}
}
