package failover

import (
	"context"
	"log/slog"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry"
	"github.com/lockregistry/lockregistry/internal/redistest"
)

// The rights that docs/permissions.md names for the user of Sentinels are enough for the client and for registries that ask the
// Sentinels.
func TestSentinelsDocumentedPermissions(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../docs/permissions.md")
	require.NoError(t, err)
	row := regexp.MustCompile("\\| Sentinels, as their own user \\| `(.*)` \\|.*\\|").FindSubmatch(page)
	require.NotNil(t, row)
	master, sentinel := redistest.Start(t), redistest.StartSentinel(t)
	_, port, _ := strings.Cut(master.Addr(), ":")
	sentinel.Command(t, "SENTINEL", "MONITOR", redistest.MasterSet, "127.0.0.1", port, "1")
	rights := strings.Fields(strings.ReplaceAll(string(row[1]), `\|`, "|"))
	sentinel.Command(t, append([]string{"ACL", "SETUSER", "app", "on", ">secret", "resetchannels"}, rights...)...)

	ctx, end := context.WithTimeout(t.Context(), 2*time.Minute)
	defer end()
	var log strings.Builder
	locks, err := lockregistry.Open(ctx, "redis://"+sentinel.Addr()+"?master_set="+redistest.MasterSet, "orders",
		lockregistry.WithClientOption(func(o *rueidis.ClientOption) { o.Sentinel.Username, o.Sentinel.Password = "app", "secret" }),
		lockregistry.WithLogger(slog.New(slog.NewTextHandler(&log, nil))))
	require.NoError(t, err)
	hold, err := locks.Acquire(ctx, "42", lockregistry.Wait(time.Minute))
	require.NoError(t, err)
	require.NoError(t, unlessLate(hold.Release(ctx)))
	listens := regexp.MustCompile(`sub=[1-9].* user=app `)
	require.Eventually(t, func() bool {
		return len(listens.FindAllString(sentinel.Command(t, "CLIENT", "LIST"), -1)) == 2
	}, time.Minute, 10*time.Millisecond, "the client and the registry listen")
	require.NoError(t, locks.Close())
	require.NotContains(t, log.String(), "Sentinel")
}
