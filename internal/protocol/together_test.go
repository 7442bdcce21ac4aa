package protocol

import (
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry/internal/redistest"
)

const older, newer = "a:1795278371204111", "a:1795278371204115"

// A script takes over a grant whose reply was lost, whatever the keys before it hold: what it learns of one key does not count
// for the next.
func TestFormat_Together(t *testing.T) {
	eachFormat(t, func(f *formatTest) {
		if f.format.Side != "" {
			return
		}
		keys := []string{"orders:41", formatKey, "orders:43"}
		for lost := range 1 << len(keys) { // which of the keys have such a grant
			all := make([]Request, len(keys))
			for i, key := range keys {
				require.NoError(f, f.client.Do(f.Context(), f.client.B().Del().Key(key).Build()).Error())
				all[i] = f.request(older, ModeNone)
				all[i].Key = key
				if lost&(1<<i) != 0 {
					c := f.Obtain(all[i], false)
					reply, err := c.Decode(c.Send(f.Context(), f.client))
					require.NoError(f, err)
					require.True(f, reply.Granted)
				}
				all[i].Value = newer
			}
			c := f.ObtainAll(all)
			tokens, err := c.Send(f.Context(), f.client).AsIntSlice()
			require.NoError(f, err)
			require.Equal(f, []int64{0, 0, 0}, tokens)
			for _, key := range keys {
				require.LessOrEqual(f, f.sends(f.Holds(key, older)), int64(0), "%03b, %s", lost, key)
				require.LessOrEqual(f, f.sends(f.Release(Release{Key: key, Value: older, Queued: true})), int64(0))
				require.EqualValues(f, 1, f.sends(f.Holds(key, newer)), "%03b, %s", lost, key)
			}
		}
	})
}

// A hash with the fields of two holds of a registry belongs to the newer hold: the removal of the older one does not remove it.
func TestRedisson_OlderFieldBesideTheHolders(t *testing.T) {
	eachFormat(t, func(f *formatTest) {
		if f.format != redisson {
			return
		}
		for _, fields := range [][]string{{older, newer}, {newer, older}} {
			for _, how := range []Release{{}, {Yields: true}, {Keep: time.Minute}, {Leads: true}} {
				set := f.client.B().Hset().Key(formatKey).FieldValue().FieldValue(fields[0], "1").FieldValue(fields[1], "1").Build()
				require.NoError(f, f.client.Do(f.Context(), set).Error())
				require.EqualValues(f, -1, f.releases(older, how))
				require.False(f, f.obtains(older, ModeNone).Granted)
				require.EqualValues(f, 1, f.holds(newer))
				require.False(f, f.obtains("b:1795278371204112", ModeNone).Granted)

				require.True(f, f.obtains(newer, ModeNone).Granted)
				require.LessOrEqual(f, f.holds(older), int64(0))
				require.EqualValues(f, 1, f.releases(newer, Release{}))
			}
		}
	})
}

// A grant by a release leaves neither field behind.
func TestRedisson_OlderFieldWhenGranted(t *testing.T) {
	eachFormat(t, func(f *formatTest) {
		if f.format != redisson {
			return
		}
		do := func(command ...string) {
			require.NoError(f, f.client.Do(f.Context(), f.client.B().Arbitrary(command...).Build()).Error())
		}
		queue := queueKey(f.Prefix, formatKey)
		for granted := false; !granted; { // unless a window has opened meanwhile
			do("DEL", formatKey, queue)
			do("HSET", formatKey, older, "1", newer, "1")
			require.Equal(f, StateQueued, f.obtains("b:1795278371204112", ModeEnqueue).State)
			window := strconv.FormatInt(-time.Now().UnixMilli(), 10)
			do("ZADD", queue, window, "open", window, "wide")
			require.EqualValues(f, Contended, f.releases(newer, Release{}))
			granted = f.holds("b:1795278371204112") == 1
		}
		require.EqualValues(f, -1, f.holds(newer))
		require.EqualValues(f, -1, f.holds(older))
	})
}

// A user who may not remove a field is still granted the lock.
func TestRedisson_WithoutHDEL(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	server.Command(t, "ACL", "SETUSER", "default", "-hdel")
	c := Config{Prefix: "orders", Publishes: true}
	format := NewRedisson(c)
	f := &formatTest{T: t, Format: format, client: connectTo(t, server)}
	require.True(f, f.obtains(older, ModeNone).Granted)
	require.True(f, f.obtains(newer, ModeNone).Granted)
	require.LessOrEqual(f, f.holds(older), int64(0))
	require.EqualValues(f, 1, f.holds(newer))
}

// A user who may not remove keys may lock, and the key of a hold that ends stays until its lease is over.
func TestFormat_WithoutDEL(t *testing.T) {
	eachFormat(t, func(f *formatTest) {
		if f.format != redisson && f.format.Side == "" {
			return
		}
		forbid := func(rule string) {
			require.NoError(f, f.client.Do(f.Context(), f.client.B().AclSetuser().Username("default").Rule(rule).Build()).Error())
		}
		forbid("-del")
		defer forbid("+del")
		require.True(f, f.obtains(older, ModeNone).Granted)
		for range 2 {
			c := f.Release(Release{Key: formatKey, Value: older, Queued: true})
			_, err := Confirmed(c.Send(f.Context(), f.client))
			require.ErrorContains(f, err, "script")
			left, err := f.client.Do(f.Context(), f.client.B().Pttl().Key(formatKey).Build()).AsInt64()
			require.NoError(f, err)
			require.Positive(f, left)
		}
	})
}
