package queue

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry/internal/clock"
)

// The time in a message may be longer than 49 days, and so long that Lua writes it with an exponent.
func TestMessagesOfLongLeases(t *testing.T) {
	for ms, want := range map[string]time.Duration{
		"0": 0, "1000": time.Second, "4294967296": 1 << 32 * time.Millisecond, "9223372036854775": clock.Longest,
		"1e+18": clock.Longest,
	} {
		m, ok := ParseMessage("n 7 " + ms + " orders:4 2")
		require.True(t, ok, ms)
		require.Equal(t, Message{nextMessage, "7", want, "orders:4 2"}, m, ms)
	}
	m, ok := ParseMessage("g 7 1000@1795612778027 orders:42")
	require.True(t, ok, "of an older version")
	require.Equal(t, Message{grantMessage, "7", time.Second, "orders:42"}, m)
	for _, ms := range []string{"", "-1", "nan", "x", "@5"} {
		_, ok := ParseMessage("n 7 " + ms + " orders:42")
		require.False(t, ok, ms)
	}
}
