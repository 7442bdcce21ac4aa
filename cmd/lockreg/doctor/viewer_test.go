package doctor_test

import (
	"context"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry"
	"github.com/lockregistry/lockregistry/cmd/lockreg/doctor"
	"github.com/lockregistry/lockregistry/inspect"
	"github.com/lockregistry/lockregistry/internal/redistest"
	"github.com/lockregistry/lockregistry/observe"
)

// documentedLines are the commands of a section of docs/permissions.md, by the comment above each.
func documentedLines(t *testing.T) map[string][]string {
	t.Helper()
	page, err := os.ReadFile("../../../docs/permissions.md")
	require.NoError(t, err)
	_, section, found := strings.Cut(string(page), "\n## Permissions of lockreg\n")
	require.True(t, found)
	section, _, _ = strings.Cut(section, "\n## ")
	all, title := map[string][]string{}, ""
	for line := range strings.Lines(section) {
		line = strings.TrimSpace(line)
		if comment, ok := strings.CutPrefix(line, "# "); ok {
			title, _, _ = strings.Cut(comment, ":")
		} else if strings.HasPrefix(line, "ACL SETUSER ") {
			all[title] = strings.Fields(line)
		}
	}
	delete(all, "listing prefixes") // a test of lockreg prefixes has it
	require.Equal(t, []string{"releasing", "viewing", "viewing, from Redis 7 on"}, slices.Sorted(maps.Keys(all)))
	return all
}

// held is a path that is locked, and how it is.
type held struct {
	layout observe.Layout
	kind   observe.Kind
	shared bool
}

// lockAll locks a path of each kind, has somebody wait for each, and returns them.
func lockAll(t *testing.T, s *redistest.Server) map[string]held {
	t.Helper()
	client := dial(t, option(s.Addr()))
	all := map[string]held{}
	for _, layout := range []observe.Layout{observe.LayoutSpring, observe.LayoutRedisson} {
		made := func() *lockregistry.Registry {
			r, err := lockregistry.New(client, "orders", in(layout, lockregistry.WithFencing())...)
			require.NoError(t, err)
			t.Cleanup(func() { require.NoError(t, r.Close()) })
			return r
		}
		holder, waiter := made(), made()
		suffix := string(layout)
		plain, writer, reader := "plain "+suffix, "writer "+suffix, "reader "+suffix
		all[plain] = held{layout, "lock", false}
		all[writer], all[reader] = held{layout, "readwrite", false}, held{layout, "readwrite", true}
		_, err := holder.Acquire(t.Context(), plain, lockregistry.Wait(patience))
		require.NoError(t, err)
		require.NoError(t, holder.ReadWrite(writer).Writer().Lock(t.Context(), lockregistry.Wait(patience)))
		require.NoError(t, holder.ReadWrite(reader).Reader().Lock(t.Context(), lockregistry.Wait(patience)))
		waits := map[string]func(context.Context, func(context.Context) error) error{}
		for path, lock := range map[string]*lockregistry.Lock{
			plain: waiter.Obtain(plain), writer: waiter.ReadWrite(writer).Writer(), reader: waiter.ReadWrite(reader).Writer(),
		} {
			waits[path] = func(ctx context.Context, fn func(context.Context) error) error { return lock.Do(ctx, fn) }
		}
		permits := "permits " + suffix
		all[permits] = held{layout, "semaphore", false}
		_, err = holder.Semaphore(permits, 1).Acquire(t.Context(), lockregistry.Wait(patience))
		require.NoError(t, err)
		waits[permits] = func(ctx context.Context, fn func(context.Context) error) error {
			return waiter.Semaphore(permits, 1).Do(ctx, fn)
		}
		for path, do := range waits {
			ctx, cancel := context.WithCancel(t.Context())
			ended := make(chan struct{})
			go func() {
				defer close(ended)
				_ = do(ctx, func(context.Context) error { return nil })
			}()
			t.Cleanup(func() { cancel(); <-ended })
			await(t, "a ticket", func() bool { return s.Command(t, "EXISTS", "orders:{orders:"+path+"}:waiters") == "1" })
		}
	}
	return all
}

// The lines of docs/permissions.md are enough: who views sees all, and can change nothing; who releases can do that.
func TestDocumentedUsersOfLockreg(t *testing.T) {
	t.Parallel()
	lines := documentedLines(t)
	for _, binary := range servers(t) {
		for title, line := range lines {
			t.Run(filepath.Base(binary)+" "+title, func(t *testing.T) {
				t.Parallel()
				s := redistest.StartBinary(t, binary, "--appendonly", "yes")
				if strings.HasPrefix(s.Version(t), "6.") && strings.Contains(title, "7") {
					_, err := s.Do(line...)
					require.Error(t, err, "it says from Redis 7 on")
					return
				}
				s.Command(t, line...)
				paths := lockAll(t, s)
				o := option(s.Addr())
				o.Username, o.Password = line[2], "secret"
				releases := title == "releasing"
				need := []string{"inspect"}
				if releases {
					need = append(need, "release")
				}
				r := examine(t, o, func(o *doctor.Options) { o.Need = need })
				for _, mode := range need {
					hasNot(t, r, "permission-"+mode)
				}
				client := dial(t, o)
				for _, layout := range []observe.Layout{observe.LayoutSpring, observe.LayoutRedisson} {
					registry, err := lockregistry.New(client, "orders", in(layout)...)
					require.NoError(t, err)
					defer func() { require.NoError(t, registry.Close()) }()
					listed := map[string]bool{}
					for info, err := range inspect.Of(registry).Locks(t.Context()) {
						require.NoError(t, err)
						listed[info.Path] = true
					}
					_, err = inspect.Of(registry).Deadlocks(t.Context())
					require.NoError(t, err)
					for path, is := range paths {
						if is.layout != layout {
							continue
						}
						require.True(t, listed[path], path)
						info, err := inspect.Of(registry).Inspect(t.Context(), path)
						require.NoError(t, err)
						require.Equal(t, is.kind, info.Kind)
						require.Equal(t, 1, info.HolderCount)
						require.Equal(t, is.shared, info.Holders[0].Shared)
						require.Positive(t, info.Holders[0].Lease)
						require.Equal(t, !is.shared, info.Holders[0].Token > 0)
						require.Equal(t, 1, info.WaiterCount)
						holder := info.Holders[0].Holder
						err = inspect.Of(registry).ForceUnlockHolder(t.Context(), path, holder)
						if !releases {
							require.Error(t, err)
							info, err := inspect.Of(registry).Inspect(t.Context(), path)
							require.NoError(t, err)
							require.Equal(t, holder, info.Holders[0].Holder)
							continue
						}
						require.NoError(t, err)
						await(t, "the one who waits has had it", func() bool {
							info, err := inspect.Of(registry).Inspect(t.Context(), path)
							require.NoError(t, err)
							return info.HolderCount == 0 && info.WaiterCount == 0
						})
					}
				}
				if !releases {
					cannotWrite(t, s, line)
				}
			})
		}
	}
}

// cannotWrite shows that a user is permitted no command that writes, nor one that tells others something.
func cannotWrite(t *testing.T, s *redistest.Server, line []string) {
	t.Helper()
	writing := strings.Fields(s.Command(t, "ACL", "CAT", "write"))
	require.Contains(t, writing, "set")
	for _, rule := range line {
		if command, ok := strings.CutPrefix(rule, "+"); ok {
			require.False(t, strings.HasPrefix(command, "@"))
			require.NotContains(t, writing, command)
		}
	}
	o := option(s.Addr())
	o.Username, o.Password = line[2], "secret"
	client := dial(t, o)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	s.Command(t, "SET", "orders:stays", "a:1", "PX", "600000")
	verb := "EVAL"
	if slices.Contains(line, "+eval_ro") {
		verb = "EVAL_RO"
	}
	for _, command := range [][]string{
		{"SET", "orders:stays", "b"},
		{"DEL", "orders:stays"},
		{"UNLINK", "orders:stays"},
		{"PEXPIRE", "orders:stays", "1"},
		{"ZADD", "orders:{orders:stays}:waiters", "1", "m"},
		{"PUBLISH", "orders-channel", "orders:stays"},
		{"FLUSHALL"},
		{"CONFIG", "SET", "maxmemory", "1"},
		{"ACL", "SETUSER", line[2], "+@all"},
		{verb, "return redis.call('DEL', KEYS[1])", "1", "orders:stays"},
		{verb, "return redis.call('PUBLISH', 'orders-channel', '')", "1", "orders:stays"},
		{"GET", "other:42"},
	} {
		err := client.Do(ctx, client.B().Arbitrary(command...).Build()).Error()
		require.Error(t, err, command)
		require.NotContains(t, err.Error(), "unknown", command)
	}
	require.Equal(t, "a:1", s.Command(t, "GET", "orders:stays"))
	require.NotEqual(t, "-1", s.Command(t, "PTTL", "orders:stays"))
}
