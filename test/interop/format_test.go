package interop

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry/internal/peer"
	"github.com/lockregistry/lockregistry/test/interop/monitor"
)

// What the Java libraries themselves leave in Redis and publish. The Go side relies on these facts; if a new Java version
// changes one, it shows here first.

const uuid = `[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}`

func TestSpringFormat(t *testing.T) {
	t.Parallel()
	for _, lib := range springs {
		t.Run(lib.name, func(t *testing.T) {
			t.Parallel()
			s := open(t, lib, opening{prefix: uniquePrefix(), lease: 20 * time.Second})
			watch := monitor.Start(t, server.Addr())
			key := s.key("path")

			s.lock(t, "path")
			require.Equal(t, "string", server.Command(t, "TYPE", key))
			require.Regexp(t, "^"+uuid+"$", server.Command(t, "GET", key))
			require.InDelta(t, 20, pttl(t, key).Seconds(), 5)

			mark := watch.Mark()
			s.unlock(t, "path")
			requireKey(t, key, false)
			requirePublished(t, watch, mark, key, published(lib, s.prefix, key))
		})
	}
}

// published returns the PUBLISH that comes with a release.
func published(lib library, prefix, key string) []string {
	if lib.unlockChannel == "" {
		return nil
	}
	return []string{"PUBLISH", fmt.Sprintf(lib.unlockChannel, prefix, key), key}
}

// requirePublished checks that since mark exactly one message about a key was published, or none if want is nil.
func requirePublished(t *testing.T, watch *monitor.Monitor, mark monitor.Mark, about string, want []string) {
	t.Helper()
	watch.Mark() // everything that the release sent came before this
	got := watch.Since(mark, func(c monitor.Command) bool {
		return strings.HasSuffix(c.Words[0], "PUBLISH") && strings.Contains(strings.Join(c.Words, " "), about)
	})
	if want == nil {
		require.Empty(t, got)
		return
	}
	require.Len(t, got, 1)
	require.Equal(t, want, got[0].Words)
}

func TestRedissonLockFormat(t *testing.T) {
	t.Parallel()
	for _, lib := range redissons() {
		t.Run(lib.name, func(t *testing.T) {
			t.Parallel()
			s := open(t, lib, opening{prefix: uniquePrefix(), lease: 20 * time.Second})
			watch := monitor.Start(t, server.Addr())
			key := s.key("path")

			s.lock(t, "path")
			require.Equal(t, "hash", server.Command(t, "TYPE", key))
			require.Regexp(t, "^"+uuid+`:\d+\n1$`, server.Command(t, "HGETALL", key))
			require.InDelta(t, 20, pttl(t, key).Seconds(), 5)
			s.lock(t, "path")
			require.Regexp(t, "^"+uuid+`:\d+\n2$`, server.Command(t, "HGETALL", key))
			require.Equal(t, "true", ended(t, s.send("isheld", with("path"))).Fields["value"])

			mark := watch.Mark()
			s.unlock(t, "path")
			requireKey(t, key, true)
			requirePublished(t, watch, mark, key, nil)
			s.unlock(t, "path")
			requireKey(t, key, false)
			requirePublished(t, watch, mark, key, []string{"PUBLISH", "redisson_lock__channel:{" + key + "}", "0"})

			_, err := s.do(t, "unlock", with("path"))
			requireFailure(t, lib.notOwner, err)

			// A name with braces of its own gets no other pair.
			tagged := s.key("{tag}")
			s.lock(t, "{tag}")
			mark = watch.Mark()
			s.unlock(t, "{tag}")
			requirePublished(t, watch, mark, tagged, []string{"PUBLISH", "redisson_lock__channel:" + tagged, "0"})
		})
	}
}

func TestRedissonReadWriteFormat(t *testing.T) {
	t.Parallel()
	for _, lib := range redissons() {
		t.Run(lib.name, func(t *testing.T) {
			t.Parallel()
			s := open(t, lib, opening{prefix: uniquePrefix(), lease: 20 * time.Second})
			watch := monitor.Start(t, server.Addr())
			key := s.key("path")
			timeouts := func() []string {
				return strings.Fields(server.Command(t, "KEYS", "{"+key+"}:*:rwlock_timeout:*"))
			}
			read := func(thread, command string) {
				t.Helper()
				ended(t, s.on(thread).reader().send(command, with("path")))
			}
			write := func(thread, command string) {
				t.Helper()
				ended(t, s.on(thread).writer().send(command, with("path")))
			}

			read("a", "lock")
			require.Regexp(t, `^mode\nread\n`+uuid+`:\d+\n1$`, server.Command(t, "HGETALL", key))
			require.Len(t, timeouts(), 1)
			require.Regexp(t, `^\{`+key+`\}:`+uuid+`:\d+:rwlock_timeout:1$`, timeouts()[0])
			read("b", "lock")
			require.Regexp(t, `^mode\nread\n`+uuid+`:\d+\n1\n`+uuid+`:\d+\n1$`, server.Command(t, "HGETALL", key))
			require.Len(t, timeouts(), 2)
			mark := watch.Mark()
			read("a", "unlock")
			requirePublished(t, watch, mark, key, nil)
			read("b", "unlock")
			requirePublished(t, watch, mark, key, []string{"PUBLISH", "redisson_rwlock:{" + key + "}", "0"})
			requireKey(t, key, false)
			require.Empty(t, timeouts())

			// A writer also reads, and then gives up only writing.
			write("a", "lock")
			require.Regexp(t, `^mode\nwrite\n`+uuid+`:\d+:write\n1$`, server.Command(t, "HGETALL", key))
			read("a", "lock")
			require.Regexp(t, `^mode\nwrite\n`+uuid+`:\d+:write\n1\n`+uuid+`:\d+\n1$`, server.Command(t, "HGETALL", key))
			mark = watch.Mark()
			write("a", "unlock")
			require.Regexp(t, `^mode\nread\n`+uuid+`:\d+\n1$`, server.Command(t, "HGETALL", key))
			requirePublished(t, watch, mark, key, nil)
			read("a", "unlock")
			requireKey(t, key, false)

			write("a", "lock")
			mark = watch.Mark()
			write("a", "unlock")
			requirePublished(t, watch, mark, key, []string{"PUBLISH", "redisson_rwlock:{" + key + "}", "1"})
		})
	}
}

// A renewal by Redisson gives the lock its own lease, even if that is shorter than another reader's. Since 4.4 that reader's
// key keeps the longer lease, and the lock gets it back when Redisson unlocks; but if Redisson's process dies, the lock ends
// before the reader's lease does. Before 4.4 the reader's own lease is cut as well: a writer gets the lock while the reader
// still reads.
func TestRedissonRenewalCutsReaders(t *testing.T) {
	t.Parallel()
	const (
		lease = 4 * time.Second
		long  = 30 * time.Second
	)
	for _, lib := range redissons() {
		t.Run(lib.name, func(t *testing.T) {
			t.Parallel()
			prefix := uniquePrefix()
			golang := open(t, golang("auto"), opening{prefix: prefix}).reader()
			redisson := open(t, lib, opening{prefix: prefix, lease: lease}).reader()
			writer := openOn(t, peers.get(t, lib, 2), lib, opening{prefix: prefix}).writer()
			key := golang.key("path")

			golang.lock(t, "path", "lease", peer.InMillis(long)) // nothing renews it
			mine := golang.timeouts(t, "path")
			require.Len(t, mine, 1)
			redisson.lock(t, "path")
			require.Greater(t, pttl(t, key), long/2)
			require.Eventually(t, func() bool { return pttl(t, key) <= lease }, callLimit, 10*time.Millisecond)
			if lib.cutsReaders {
				require.LessOrEqual(t, pttl(t, mine[0]), lease)
				redisson.unlock(t, "path")
				require.True(t, writer.tryLock(t, "path", "wait", peer.InMillis(long/2)))
				_, err := golang.do(t, "unlock", with("path"))
				requireFailure(t, golang.lateUnlock, err)
				writer.unlock(t, "path")
			} else {
				require.Greater(t, pttl(t, mine[0]), long/2)
				redisson.unlock(t, "path")
				require.Greater(t, pttl(t, key), long/2)
				golang.unlock(t, "path")
			}
			requireKey(t, key, false)
		})
	}
}

// The renewals of this library restore what such a renewal cuts, if they come before Redisson's lease is over. A reader is
// renewed by default.
func TestRenewedReaderOutlastsRenewalByRedisson(t *testing.T) {
	t.Parallel()
	const (
		watchdog = 8 * time.Second
		lease    = 12 * time.Second // renewed each 4 s
	)
	for _, lib := range redissons() {
		t.Run(lib.name, func(t *testing.T) {
			t.Parallel()
			prefix := uniquePrefix()
			golang := open(t, golang("auto"), opening{prefix: prefix, lease: lease}).reader()
			redisson := open(t, lib, opening{prefix: prefix, lease: watchdog}).reader()
			writer := openOn(t, peers.get(t, lib, 2), lib, opening{prefix: prefix}).writer()

			golang.lock(t, "path")
			mine := golang.timeouts(t, "path")
			require.Len(t, mine, 1)
			redisson.lock(t, "path")
			if lib.cutsReaders {
				require.Eventually(t, func() bool { return pttl(t, mine[0]) <= watchdog-watchdog/3 }, callLimit, time.Millisecond)
			}
			redisson.unlock(t, "path")
			require.False(t, writer.tryLock(t, "path", "wait", peer.InMillis(lease+watchdog)))
			golang.unlock(t, "path")
			require.True(t, writer.tryLock(t, "path"))
			writer.unlock(t, "path")
		})
	}
}
