package keyspace

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/lockregistry/lockregistry/internal/presence"
	"github.com/lockregistry/lockregistry/internal/protocol"
	"github.com/lockregistry/lockregistry/internal/readonly"
	"github.com/lockregistry/lockregistry/internal/scan"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const own = "00000000-0000-0000-0000-000000000001"

func reader(t *testing.T) (*readonly.Reader, *miniredis.Miniredis) {
	t.Helper()
	server := miniredis.RunT(t)
	client, err := rueidis.NewClient(rueidis.ClientOption{
		InitAddress: []string{server.Addr()}, DisableCache: true, ForceSingleClient: true,
	})
	require.NoError(t, err)
	t.Cleanup(client.Close)
	return readonly.Bystander(client, "p", 5*time.Second), server
}

func TestTogether_FindsEachKeyOnce(t *testing.T) {
	r, server := reader(t)
	for i := range 700 {
		require.NoError(t, server.Set(fmt.Sprint("p:", i), "x"))
		require.NoError(t, server.Set(fmt.Sprint("other:", i), "x"))
	}
	found := map[string]bool{}
	require.NoError(t, Together(t.Context(), r, []string{"p"}, "", &scan.Pass{
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

// switching is a client that has another server from the second time that it is asked for its servers.
type switching struct {
	rueidis.Client
	asked *int
}

func (s switching) Nodes() map[string]rueidis.Client {
	if *s.asked++; *s.asked > 1 {
		return map[string]rueidis.Client{"after": s}
	}
	return map[string]rueidis.Client{"before": s}
}

// When the client has changed to another server, the pass begins again.
func TestTogether_AfterAFailover(t *testing.T) {
	r, server := reader(t)
	require.NoError(t, server.Set("p:a", "x"))
	asked, picked := 0, 0
	r.Client = switching{r.Client, &asked}
	require.NoError(t, Together(t.Context(), r, []string{"p"}, "", &scan.Pass{
		Pick: func(string) (string, bool) { picked++; return "", false },
	}))
	require.Equal(t, 2, picked)
	require.Equal(t, 3, asked)
}

func TestTogether_ACallThatHasEnded(t *testing.T) {
	r, _ := reader(t)
	ctx, end := context.WithCancel(t.Context())
	end()
	require.ErrorIs(t, Together(ctx, r, []string{"p"}, "", &scan.Pass{}), context.Canceled)
}

func TestRegistries(t *testing.T) {
	r, server := reader(t)
	require.NoError(t, server.Set("p:a", own+":1"))
	require.NoError(t, server.Set(presence.Key("p", own), `{"host":"h","pid":7}`))
	require.NoError(t, server.Set(presence.Key("other", own), `{"host":"h","pid":8}`))
	registries, err := Registries(t.Context(), r, "p")
	require.NoError(t, err)
	require.Equal(t, map[string][]string{"p": {own}}, registries)
}
