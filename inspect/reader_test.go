package inspect

import (
	"strings"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/lockregistry/lockregistry/internal/presence"
	"github.com/lockregistry/lockregistry/observe"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	own   = "00000000-0000-0000-0000-000000000001"
	other = "00000000-0000-0000-0000-000000000002"
	third = "00000000-0000-0000-0000-000000000003"
)

func readerOf(t *testing.T) (*reader, *miniredis.Miniredis) {
	t.Helper()
	server := miniredis.RunT(t)
	client, err := rueidis.NewClient(rueidis.ClientOption{
		InitAddress: []string{server.Addr()}, DisableCache: true, ForceSingleClient: true,
	})
	require.NoError(t, err)
	t.Cleanup(client.Close)
	r := &reader{parts(client, "p")}
	r.Label = observe.Label{Registry: own, PID: 1}
	r.Own = func(path string) []presence.Lock { return []presence.Lock{{Path: path, Waiting: 2}} }
	return r, server
}

// A record that should have been written anew for a minute says that its process is dead, whether or not that renews the hold.
func TestReader_ARecordThatIsNotWritten(t *testing.T) {
	r, server := readerOf(t)
	for left, silent := range map[time.Duration]time.Duration{
		380 * time.Second: 0, 341 * time.Second: 0, 340 * time.Second: time.Minute, 90 * time.Second: 310 * time.Second,
	} {
		for _, of := range []string{`"for":400000,`, ""} { // older versions do not say for how long it is written
			require.NoError(t, server.Set("p:a", other+":1"))
			server.SetTTL("p:a", time.Hour)
			require.NoError(t, server.Set(presence.Key("p", other), `{`+of+`"host":"h","pid":7}`))
			server.SetTTL(presence.Key("p", other), left)
			info, err := r.Lock(t.Context(), "p:a")
			require.NoError(t, err)
			if of == "" {
				require.Zero(t, info.Holders[0].Silent)
			} else {
				require.Equal(t, silent, info.Holders[0].Silent, left)
			}
		}
	}
}

// What the reader's own registry says of a path is asked of that, and what others say is read.
func TestReader_Lock(t *testing.T) {
	r, server := readerOf(t)
	require.NoError(t, server.Set("p:a", own+":1"))
	require.NoError(t, server.Set("p:b", other+":1"))
	require.NoError(t, server.Set(presence.Key("p", other), `{"host":"h","pid":7,"locks":[{"path":"b","waiting":3}]}`))
	a, err := r.Lock(t.Context(), "p:a")
	require.NoError(t, err)
	require.Equal(t, r.Label, a.Holders[0].Label)
	require.Equal(t, 2, a.Holders[0].Behind)
	b, err := r.Lock(t.Context(), "p:b")
	require.NoError(t, err)
	require.Equal(t, observe.Label{Registry: other, Host: "h", PID: 7}, b.Holders[0].Label)
	require.Equal(t, 3, b.Holders[0].Behind)
	free, err := r.Lock(t.Context(), "p:free")
	require.NoError(t, err)
	require.Equal(t, Lock{Path: "free", Key: "p:free", Layout: observe.LayoutSpring}, free)
}

// A lock of a prefix that begins with the reader's belongs to both. Its holder's record is under the longer one.
func TestReader_ARecordUnderALongerPrefix(t *testing.T) {
	r, server := readerOf(t)
	const record = `{"host":"h","pid":7,"locks":[
		{"path":"x:42","hold":"1795310000000000","since":5,"lease":30000},{"path":"{q}","waiting":3}]}`
	for prefix, registry := range map[string]string{"p:eu": other, "p": third} {
		require.NoError(t, server.Set(presence.Key(prefix, registry), record))
	}
	for key, value := range map[string]string{
		"p:eu:x:42": other + ":1795310000000000", "p:eu:x:43": other + ":1795310000000001", "p:b": third + ":1",
	} {
		require.NoError(t, server.Set(key, value))
		server.SetTTL(key, 29*time.Second)
	}
	require.NoError(t, server.Set("p:eu:{q}", third+":1"))
	_, err := server.ZAdd("p:eu:{q}:waiters", 1, other+":1795310000000002|7")
	require.NoError(t, err)

	found := map[string]Lock{}
	for info, err := range (&Inspector{reader: *r}).Locks(t.Context()) {
		require.NoError(t, err)
		found[info.Path] = info
		alone, err := r.Lock(t.Context(), info.Key)
		require.NoError(t, err)
		require.Equal(t, alone.Holders[0].Label, info.Holders[0].Label)
	}
	require.Len(t, found, 4)
	theirs := observe.Label{Registry: other, Host: "h", PID: 7}
	require.Equal(t, theirs, found["eu:x:42"].Holders[0].Label)
	require.Equal(t, theirs, found["eu:x:43"].Holders[0].Label)
	require.Equal(t, 30*time.Second, found["eu:x:42"].Holders[0].Renewed)
	require.Equal(t, theirs, found["eu:{q}"].Waiters[0].Label)
	require.Equal(t, 3, found["eu:{q}"].Waiters[0].Behind)
	require.False(t, found["eu:{q}"].Waiters[0].Gone, "it listens to the channel of its prefix")
	require.Equal(t, third, found["b"].Holders[0].Label.Registry)
}

// A dead holder has no record under any prefix.
func TestReader_NoRecordUnderALongerPrefix(t *testing.T) {
	r, server := readerOf(t)
	require.NoError(t, server.Set("p:eu:42", other+":1795310000000000"))
	require.NoError(t, server.Set(presence.Key("p:eu", third), `{"host":"h","pid":7}`))
	info, err := r.Lock(t.Context(), "p:eu:42")
	require.NoError(t, err)
	require.False(t, info.Holders[0].Label.Known())
}

func TestLocks_TellOfLocksOnly(t *testing.T) {
	r, server := readerOf(t)
	for _, path := range []string{"a", "b", "c"} {
		require.NoError(t, server.Set("p:"+path, other+":1"))
	}
	require.NoError(t, server.Set("p:text", "something:1"))
	locks := (&Inspector{reader: *r}).Locks(t.Context())
	var found []string
	for info, err := range locks {
		require.NoError(t, err)
		found = append(found, info.Path)
	}
	require.ElementsMatch(t, []string{"a", "b", "c"}, found)
	calls := 0
	locks(func(_ Lock, err error) bool {
		require.NoError(t, err)
		calls++
		return false
	})
	require.Equal(t, 1, calls, "the caller wanted no more")
}

// Of a name that is too long the server tells the beginning, which may end within a long prefix.
func TestLocks_TellOfLongNamesOfALongPrefix(t *testing.T) {
	r, server := readerOf(t)
	r.Prefix = strings.Repeat("p", 200)
	require.NoError(t, server.Set(r.Prefix+":"+strings.Repeat("x", 9000), other+":1"))
	var found []Lock
	for info, err := range (&Inspector{reader: *r}).Locks(t.Context()) {
		require.NoError(t, err)
		found = append(found, info)
	}
	require.Len(t, found, 1)
	require.Equal(t, observe.KindTooLong, found[0].Kind)
}
