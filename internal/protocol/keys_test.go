package protocol

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestReserved(t *testing.T) {
	for key, want := range map[string]bool{
		"orders:{orders:42}:waiters": true, "orders:{orders:42}:fencing": true, "orders:{billing:1}:registry": true,
		"{a}:waiters": true, "{a}b:fencing": true, "orders:42": false, "orders:b:waiters": false, "orders:{}:fencing": false,
		"orders:{a}fencing": false, "orders:registry": false,
	} {
		require.Equal(t, want, reserved(key), key)
	}
}

func TestLockOf(t *testing.T) {
	for key, want := range map[string]string{
		"orders:42":                        "orders:42",
		"orders:{tag}42":                   "orders:{tag}42",
		"orders:{orders:42}:waiters":       "orders:42",
		"orders:{tag}42:waiters":           "orders:{tag}42",
		"orders:42:waiters":                "orders:42:waiters", // a path may end so
		"orders:{orders:eu:7}:waiters":     "orders:eu:7",
		"orders:eu:{orders:eu:7}:waiters":  "", // of the prefix orders:eu
		"orders:{orders:42}:fencing":       "",
		"orders:{billing:1}:registry":      "",
		"{orders:42}:a:1:rwlock_timeout:1": "",
		"orders:{a}:b:1:rwlock_timeout:1":  "",
		"orders:b:1:rwlock_timeout:1":      "orders:b:1:rwlock_timeout:1",
		"orders:":                          "",
		"orders":                           "",
		"invoices:42":                      "",
		"orders:{invoices:42}:waiters":     "orders:{invoices:42}",
	} {
		lock, ok := LockOf("orders", key)
		require.Equal(t, want != "", ok, key)
		if ok {
			require.Equal(t, want, lock, key)
			require.True(t, key == lock || key == queueKey("orders", lock))
		}
	}
}

func TestParseName(t *testing.T) {
	const number = "1795564800000001"
	since := time.UnixMicro(1_795_564_800_000_001)
	for text, want := range map[string]Name{
		"billing":                  {Registry: "billing"},
		"billing:one":              {Registry: "billing:one"},
		"billing:17":               {Registry: "billing", Known: true},
		"a:b:" + number:            {Registry: "a:b", Known: true, Since: since},
		"a:" + number + ":write":   {Registry: "a", Known: true, Since: since, Writes: true},
		"a:" + number + ":atleast": {Registry: "a", Known: true, Since: since, Kept: true},
		"a:-1":                     {Registry: "a:-1"},
		"a:99999999999999999999":   {Registry: "a:99999999999999999999"},
		"":                         {},
	} {
		require.Equal(t, want, ParseName(text), text)
	}
}

func TestIsCut(t *testing.T) {
	require.True(t, IsCut("abc (too long: 9000 bytes)"))
	for _, name := range []string{"", "abc", "abc (too long: 9000", "abc bytes)", TooLong} {
		require.False(t, IsCut(name), name)
	}
}
