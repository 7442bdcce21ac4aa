package registry_test

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry"
	"github.com/lockregistry/lockregistry/observe"
	"github.com/lockregistry/lockregistry/test/internal/kit"
)

// unreleasable are users that may obtain a lock but not release it, with the text of the error.
var unreleasable = map[string]struct {
	layout observe.Layout
	rights []string
	lacks  string
}{
	"neither UNLINK nor DEL":     {observe.LayoutSpring, []string{"-unlink", "-del"}, "+unlink or +del"},
	"no GET":                     {observe.LayoutSpring, []string{"-get"}, "+get"},
	"no EVALSHA":                 {observe.LayoutSpring, []string{"-evalsha"}, "evalsha"},
	"no EVAL":                    {observe.LayoutSpring, []string{"-eval"}, "eval"},
	"other keys":                 {observe.LayoutSpring, []string{"resetkeys", "~other:*"}, "a key pattern for orders:42"},
	"no DEL, Redisson":           {observe.LayoutRedisson, []string{"-del"}, "+del"},
	"several commands, Redisson": {observe.LayoutRedisson, []string{"-del", "-hkeys"}, "+hkeys, +del"},
}

// A process learns before its first section, not after it, that it may not release a lock.
func TestUnreleasable_IsNotTaken(t *testing.T) {
	t.Parallel()
	for name, user := range unreleasable {
		t.Run(name, func(t *testing.T) {
			kit.RealWorlds(t, func(w *kit.World) {
				r := w.RegistryOn(w.User(user.rights...), kit.WithLayout(user.layout))
				for op, locks := range kit.LockingCalls {
					for range 2 { // the second time, too
						refused(w, locks(w.Context(), r, lockregistry.Wait(time.Minute)), op, user.lacks)
					}
				}
				_, err := r.AcquireAll(w.Context(), []string{"42", "43"})
				refused(w, err, "acquire", user.lacks)
				require.Equal(w, "0", w.Do("EXISTS", kit.TheKey, "orders:43"))

				known := w.Registry(kit.WithLayout(user.layout))
				w.Known(known) // the server knows the scripts now
				refused(w, r.Obtain("42").Lock(w.Context()), "lock", user.lacks)
			})
		})
	}
}

// Servers and proxies may refuse all scripts, or these, in their own words.
func TestUnreleasable_ScriptsRefused(t *testing.T) {
	kit.FakeWorld(t, func(w *kit.World) {
		f := w.Flaky()
		for _, text := range []string{
			"ERR This instance has Lua scripting support disabled",
			"ERR bad lua script for redis cluster, all the keys that the script uses should be passed using the KEYS array",
		} {
			f.Fate("proof", kit.Refused(text))
			ok, err := f.Registry().Obtain("42").TryLock(w.Context())
			require.False(w, ok)
			const why = "lockregistry: trylock orders:42: the user could not release the lock, so it was not taken: "
			require.EqualError(w, err, why+strings.TrimPrefix(text, "ERR "))
			require.Empty(w, kit.SentinelsOf(err))
			require.True(w, w.Free(kit.TheKey))
			f.Forget()
		}
	})
}

// refused checks that an error says which right the user lacks, and names no script only by its digest.
func refused(w *kit.World, err error, op, lacks string) {
	w.Helper()
	require.Error(w, err)
	require.Empty(w, kit.SentinelsOf(err))
	const text = " orders:42: the user could not release the lock, so it was not taken: NOPERM, "
	require.ErrorContains(w, err, "lockregistry: "+op+text)
	require.ErrorContains(w, err, lacks)
	require.NotRegexp(w, "[0-9a-f]{40}", err.Error())
}

// Other kinds of locks need keys besides the lock's.
func TestUnreleasable_KeysBeside(t *testing.T) {
	kit.RealWorlds(t, func(w *kit.World) {
		if !w.ChecksRights() {
			return
		}
		user := w.User("resetkeys", "~orders:*")
		r := w.RegistryOn(user)
		refused(w, r.ReadWrite("42").Reader().Lock(w.Context()), "lock", "a key pattern for {orders:42}:")
		for _, l := range []*lockregistry.Lock{r.ReadWrite("42").Writer(), r.Obtain("43")} { // these need no other keys
			w.Lock(l)
			w.Unlock(l)
		}
		_, err := w.RegistryOn(w.User("-zrem")).Semaphore("42", 1).Acquire(w.Context())
		refused(w, err, "acquire", "+zrem")
		w.LeftNothing()
	})
}

// A waiting call might be granted the lock by a message: it learns before that it could not release it. A server before version
// 7.0 cannot say so while the lock's key exists.
func TestUnreleasable_IsNotWaitedFor(t *testing.T) {
	kit.RealWorlds(t, func(w *kit.World) {
		if !w.ChecksRights() {
			return
		}
		held := w.Registry().Obtain("42")
		w.Lock(held)
		r := w.RegistryOn(w.User("-unlink", "-del"))
		refused(w, r.Obtain("42").Lock(w.Context()), "lock", "+unlink or +del")
		require.Equal(w, "0", w.Do("EXISTS", "orders:{orders:42}:waiters"))
		w.Unlock(held)
	})
}

// A server before version 7.0 is asked again until the key does not exist.
func TestUnreleasable_WhileTheKeyIsThere(t *testing.T) {
	kit.FakeWorld(t, func(w *kit.World) { // which is like these
		f := w.Flaky()
		r := f.Registry()
		w.Do("SET", kit.TheKey, "somebody", "PX", "600000")
		for proofs := range 3 {
			ok, err := r.Obtain("42").TryLock(w.Context())
			require.NoError(w, err)
			require.False(w, ok)
			require.Greater(w, f.Count("proof"), proofs)
		}
		w.Do("DEL", kit.TheKey)
		w.Lock(r.Obtain("42"))
		w.Unlock(r.Obtain("42"))
		asked := f.Count("proof")
		w.Known(r)
		require.Equal(w, asked, f.Count("proof"))
	})
}

// One command that removes keys is enough, and INFO is not needed. Without messages waiting calls poll, and one log line says
// so.
func TestUnreleasable_WhatIsEnough(t *testing.T) {
	t.Parallel()
	for name, user := range map[string]struct {
		rights []string
		logs   int // how many lines say that waiting calls poll
	}{
		"no UNLINK": {[]string{"-unlink"}, 0}, "no DEL": {[]string{"-del"}, 0},
		"no INFO": {[]string{"-info"}, 0}, "no INFO, no DEL": {[]string{"-info", "-del"}, 0},
		"no PUBLISH": {[]string{"-publish"}, 1}, "no channels": {[]string{"resetchannels"}, 1},
	} {
		t.Run(name, func(t *testing.T) {
			kit.RealWorlds(t, func(w *kit.World) {
				var log kit.Journal
				l := w.RegistryOn(w.User(user.rights...)).Obtain("42")
				waits := w.RegistryOn(w.User(user.rights...), log.Option(), lockregistry.WithPollInterval(50*time.Millisecond))
				g := w.Goroutine()
				for range 2 {
					w.Lock(l)
					locked := g.Starts(waits.Obtain("42"))
					w.Await("it waits, and has tried to listen", func() bool {
						return waits.Stats().Waiters == 1 && len(log.Lines("queue")) >= user.logs
					})
					w.Unlock(l)
					require.NoError(w, <-locked)
					require.NoError(w, g.Unlock(waits.Obtain("42")))
				}
				require.Len(w, log.Lines("queue"), user.logs, "%v", log.Lines())
			})
		})
	}
}

// In Redisson's format AtLeast also works without HDEL.
func TestUnreleasable_AtLeastWithoutHDEL(t *testing.T) {
	kit.RealWorlds(t, func(w *kit.World) {
		l := w.RegistryOn(w.User("-hdel"), lockregistry.WithRedissonLayout()).Obtain("42")
		w.Lock(l, lockregistry.AtLeast(time.Hour))
		value := w.Do("HKEYS", kit.TheKey)
		w.Unlock(l)
		require.Equal(w, value+":atleast", w.Do("HKEYS", kit.TheKey))
		require.Greater(w, w.Pttl(kit.TheKey), 50*time.Minute)
	})
}
