package inspect

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/lockregistry/lockregistry/internal/fault"
	"github.com/lockregistry/lockregistry/internal/presence"
	"github.com/lockregistry/lockregistry/internal/protocol"
	"github.com/lockregistry/lockregistry/internal/scan"
	"github.com/lockregistry/lockregistry/internal/transport"
	"github.com/lockregistry/lockregistry/observe"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	own   = "00000000-0000-0000-0000-000000000001"
	other = "00000000-0000-0000-0000-000000000002"
)

// calls end with their contexts.
type calls struct{}

func (calls) CommandWait(ctx context.Context, _ *transport.Shard) transport.Wait {
	return transport.Wait{Ctx: ctx, Limit: 5 * time.Second}
}

func (calls) Stopped(ctx context.Context) error { return ctx.Err() }

func reader(t *testing.T) (*Reader, *miniredis.Miniredis) {
	t.Helper()
	server := miniredis.RunT(t)
	client, err := rueidis.NewClient(rueidis.ClientOption{
		InitAddress: []string{server.Addr()}, DisableCache: true, ForceSingleClient: true,
	})
	require.NoError(t, err)
	t.Cleanup(client.Close)
	tr := transport.New(client)
	return &Reader{
		Prefix: "p", Clock: tr.Clock, Client: client, Transport: tr, Calls: calls{}, Closed: make(chan struct{}),
		Label: observe.Label{Registry: own, PID: 1},
		Own:   func(path string) []presence.Lock { return []presence.Lock{{Path: path, Waiting: 2}} },
	}, server
}

func TestReader_LocksOfMoreThanOneScript(t *testing.T) {
	r, server := reader(t)
	keys := make([]string, 2*together+1)
	for i := range keys {
		keys[i] = fmt.Sprint("p:", i)
		require.NoError(t, server.Set(keys[i], fmt.Sprintf("id:%d", i)))
	}
	_, err := server.Lpush("p:list", "x")
	require.NoError(t, err)
	found, errs := r.Locks(t.Context(), slices.Concat(keys, []string{"p:list", "p:free"}))
	for i := range keys {
		require.NoError(t, errs[i])
		require.Equal(t, fmt.Sprintf("id:%d", i), found[i].Holders[0].Text)
	}
	require.ErrorIs(t, errs[len(keys)], fault.WrongType)
	require.NoError(t, errs[len(keys)+1])
	require.Empty(t, found[len(keys)+1].Holders)
}

func TestReader_ACallThatHasEnded(t *testing.T) {
	r, _ := reader(t)
	ctx, end := context.WithCancel(t.Context())
	end()
	_, errs := r.Locks(ctx, []string{"p:a"})
	require.ErrorIs(t, errs[0], context.Canceled)
	require.ErrorIs(t, r.Records(ctx, []string{"x"}, nil), context.Canceled)
	require.ErrorIs(t, r.Scan(ctx, ":*", &scan.Pass{}), context.Canceled)
}

func TestReader_Records(t *testing.T) {
	r, server := reader(t)
	long := string(make([]byte, presence.MostBytes+1))
	require.NoError(t, server.Set(presence.Key("p", "long"), long))
	var names []string
	require.NoError(t, r.Records(t.Context(), []string{"none", "long"}, func(i int, _ presence.Record, from presence.Identity) {
		names = append(names, fmt.Sprintf("%d:%t", i, from.Unread()))
	}))
	require.Equal(t, []string{"0:false", "1:true"}, names)
}

// A record that should have been written anew for a minute says that its process is dead, whether or not that renews the hold.
func TestReader_ARecordThatIsNotWritten(t *testing.T) {
	r, server := reader(t)
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

func TestReader_ScanFindsEachKeyOnce(t *testing.T) {
	r, server := reader(t)
	for i := range 700 {
		require.NoError(t, server.Set(fmt.Sprint("p:", i), "x"))
		require.NoError(t, server.Set(fmt.Sprint("other:", i), "x"))
	}
	found := map[string]bool{}
	require.NoError(t, r.Scan(t.Context(), ":*", &scan.Pass{
		Pick: func(key string) (string, bool) { return protocol.LockOf("p", key) },
		Read: func(keys []string) error {
			for _, key := range keys {
				require.False(t, found[key])
				found[key] = true
			}
			return nil
		},
	}))
	require.Len(t, found, 700)
}

// What the reader's own registry says of a path is asked of that, and what others say is read.
func TestReader_Lock(t *testing.T) {
	r, server := reader(t)
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
	require.Equal(t, observe.LockInfo{Path: "free", Key: "p:free"}, free)

	holders, err := r.Holders(t.Context(), []string{"b", "free", "a"})
	require.NoError(t, err)
	require.Equal(t, [][]string{{other}, nil, {own}}, holders)
	registries, err := r.Registries(t.Context())
	require.NoError(t, err)
	require.Equal(t, []string{other}, registries)
}

func TestReader_EachTellsOfLocksOnly(t *testing.T) {
	r, server := reader(t)
	for _, path := range []string{"a", "b", "c"} {
		require.NoError(t, server.Set("p:"+path, other+":1"))
	}
	require.NoError(t, server.Set("p:text", "something:1"))
	var found []string
	require.NoError(t, r.Each(t.Context(), func(info observe.LockInfo) bool {
		found = append(found, info.Path)
		return true
	}))
	require.ElementsMatch(t, []string{"a", "b", "c"}, found)
	calls := 0
	require.NoError(t, r.Each(t.Context(), func(observe.LockInfo) bool {
		calls++
		return false
	}))
	require.Equal(t, 1, calls, "the caller wanted no more")
}

// Holders that are not named are told of as one that is not known: nobody may believe that the others are all.
func TestReader_MoreHoldersThanAreNamed(t *testing.T) {
	for held, unknown := range map[int]int{mostNamed: 0, mostNamed + 1: 1} {
		r, server := reader(t)
		add := func(score float64, member string) {
			_, err := server.ZAdd("p:seat", score, member)
			require.NoError(t, err)
		}
		add(-1000, "permits")
		for i := range held {
			add(float64(time.Now().Add(time.Minute).UnixMilli()), fmt.Sprintf("%s:%d", own, 1_795_000_000_000_000+i))
		}
		holders, err := r.Holders(t.Context(), []string{"seat"})
		require.NoError(t, err)
		require.Len(t, holders[0], mostNamed+unknown)
		require.Len(t, slices.DeleteFunc(holders[0], func(registry string) bool { return registry == own }), unknown)
	}
}
