package protocol

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry/internal/clock"
	"github.com/lockregistry/lockregistry/internal/lease"
)

// A registry tries again after a minute, then after twice as long each time, and after an hour at most. Once it has worked for as
// long as it had paused, the next pause is a minute again.
func TestApart_Lapses(t *testing.T) {
	t.Parallel()
	var a *Apart
	now := clock.Instant(time.Hour)
	require.False(t, a.Seen(now))
	a = &Apart{}
	a.Worked()
	require.False(t, a.Counts(now))
	for i, minutes := range []int{1, 2, 4, 8, 16, 32, 60, 60} {
		pause := time.Duration(minutes) * time.Minute
		require.Equal(t, i == 0, a.Note(now))
		require.False(t, a.Note(now.Add(pause-1)), "it knows")
		require.True(t, a.Counts(now.Add(pause-1)))
		now = now.Add(pause)
		require.False(t, a.Counts(now))
		require.True(t, a.Seen(now))
	}
	now = now.Add(time.Hour)
	require.True(t, a.Seen(now), "no call has tried since")
	a.Worked()
	require.False(t, a.Seen(now))
	require.True(t, a.Seen(now.Add(-1)), "not yet for as long")
	require.False(t, a.Note(now))
	require.False(t, a.Counts(now.Add(time.Minute)))
	require.True(t, a.Seen(now.Add(time.Hour)))
}

// The script that ignores waiting calls gives back only the holds that are missing where they belong.
func TestFormat_GiveBack(t *testing.T) {
	eachFormat(t, func(f *formatTest) {
		if f.format != spring && f.format != redisson {
			return
		}
		keys := []string{formatKey, "orders:43", "orders:44", "orders:45", "orders:46", "orders:47", "orders:48"}
		for _, missing := range [][]int{{1}, {0, 2}, {1, 2, 3, 4, 5, 6}, {0, 1, 2, 3, 4, 5, 6}} {
			var all []Request
			for _, key := range keys {
				require.NoError(f, f.client.Do(f.Context(), f.client.B().Del().Key(key).Build()).Error())
				all = append(all, Request{Key: key, Value: older, Lease: lease.NewTerm(time.Minute)})
			}
			c := f.ObtainAll(all)
			_, taken, err := Tokens(c.Send(f.Context(), f.client), len(all))
			require.NoError(f, err)
			require.Zero(f, taken)
			found := c.ReadBack()
			require.True(f, found.Sound())
			given := f.GiveBack(c, missing)
			require.Equal(f, formatKey, given.Key)
			require.EqualValues(f, len(missing), f.sends(given))
			for i, key := range keys {
				held := f.sends(f.Holds(key, older)) == 1
				require.Equal(f, !slices.Contains(missing, i), held, key)
			}
		}
	})
}
