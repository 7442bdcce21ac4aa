package peer

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Any text comes back from a line, and is a single line.
func FuzzFields(f *testing.F) {
	f.Add("name", "value")
	f.Add("", "")
	f.Add("a&b", "c=d\n%\x00\xff")
	f.Fuzz(func(t *testing.T, name, value string) {
		line := Fields{name: value}.line()
		require.Equal(t, len(line)-1, strings.IndexByte(line, '\n'))
		fields, err := parse(line[:len(line)-1])
		require.NoError(t, err)
		require.Equal(t, Fields{name: value}, fields)
	})
}

func TestFields_TimesAndDurations(t *testing.T) {
	t.Parallel()
	at, err := Fields{"begin": Now()}.Time("begin")
	require.NoError(t, err)
	require.WithinDuration(t, time.Now(), at, time.Minute)
	_, err = Fields{}.Time("begin")
	require.ErrorContains(t, err, "field begin of a reply is no time")

	d, given, err := Fields{"ttl": InMillis(1500 * time.Millisecond)}.Millis("ttl")
	require.NoError(t, err)
	require.True(t, given)
	require.Equal(t, 1500*time.Millisecond, d)
	_, given, err = Fields{}.Millis("ttl")
	require.NoError(t, err)
	require.False(t, given)
	_, _, err = Fields{"ttl": "soon"}.Millis("ttl")
	require.ErrorContains(t, err, "field ttl of a request is no number of milliseconds")
}

func TestPack_Unpack(t *testing.T) {
	t.Parallel()
	type section struct {
		Path string
		Held []time.Duration
	}
	packed := section{"a/b", []time.Duration{time.Second}}
	var unpacked section
	require.NoError(t, Unpack(Pack(packed), &unpacked))
	require.Equal(t, packed, unpacked)
	require.Error(t, Unpack("no base64!", &unpacked))
	require.Error(t, Unpack("AAAA", &unpacked))
	require.Panics(t, func() { Pack(func() {}) })
}

func TestRemoteError_NamesItsCause(t *testing.T) {
	t.Parallel()
	require.EqualError(t, &RemoteError{Class: "A", Message: "b", Cause: "C: d"}, "A: b (caused by C: d)")
}
