package owner

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestID_Kinds(t *testing.T) {
	for o, want := range map[ID]struct{ shared, hold, once, goroutine bool }{
		Nobody:      {},
		1:           {goroutine: true},
		AnyHold - 1: {goroutine: true},
		Made - 1:    {hold: true, once: true},
		Made | 1:    {shared: true},
		Leaving - 1: {shared: true},
		Leaving:     {},
		NewHold():   {hold: true},
		NewOnce():   {hold: true, once: true},
		New():       {shared: true},
		Calling():   {goroutine: true},
	} {
		require.Equal(t, want.shared, o.Shared(), "%x", uint64(o))
		require.Equal(t, want.hold, o.IsHold(), "%x", uint64(o))
		require.Equal(t, want.once, o.IsOnce(), "%x", uint64(o))
		require.Equal(t, want.goroutine, o.IsGoroutine(), "%x", uint64(o))
	}
}

func TestID_EachIsAnother(t *testing.T) {
	seen := map[ID]bool{}
	for range 100 {
		for _, o := range []ID{New(), NewHold(), NewOnce()} {
			require.False(t, seen[o])
			seen[o] = true
		}
	}
}
