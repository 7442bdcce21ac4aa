package registry_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry"
	"github.com/lockregistry/lockregistry/test/internal/kit"
)

func TestNew_WithOptionsThatMakeNoSense(t *testing.T) {
	client := kit.UnusedClient(t)
	for _, c := range []struct {
		option lockregistry.Option
		says   string
	}{
		{nil, "an option is nil"},
		{lockregistry.WithLease(0), "WithLease(0s): a lease must be at least 2ms"},
		{lockregistry.WithLease(-time.Second), "WithLease(-1s): a lease must be at least 2ms"},
		{lockregistry.WithLease(2*time.Millisecond - 1), "WithLease(1.999999ms): a lease must be at least 2ms"},
		{lockregistry.WithLease(math.MinInt64), "WithLease(-"},
		{lockregistry.WithPollInterval(0), "WithPollInterval(0s): the duration must be positive"},
		{lockregistry.WithPollInterval(-1), "WithPollInterval(-1ns): the duration must be positive"},
		{lockregistry.WithHandoff(-1), "WithHandoff(-1ns): the duration must not be negative"},
		{
			lockregistry.WithClientID(strings.Repeat("x", 1025)),
			`WithClientID("xxxxxxxxxxxxxxxxxxxx"...): the id has 1025 bytes, more than 1024`,
		},
		{lockregistry.WithClientID(""), `WithClientID(""): the id is empty`},
		{lockregistry.WithLogger(nil), "WithLogger(nil)"},
		{lockregistry.WithReplicas(0, time.Second), "WithReplicas(0, 1s): the number of replicas must be positive"},
		{lockregistry.WithReplicas(-1, time.Second), "WithReplicas(-1, 1s): the number of replicas must be positive"},
		{lockregistry.WithReplicas(1, 0), "WithReplicas(1, 0s): the timeout must be at least a millisecond"},
		{lockregistry.WithReplicas(1, -time.Second), "WithReplicas(1, -1s): the timeout must be at least a millisecond"},
	} {
		r, err := lockregistry.New(client, "orders", c.option)
		require.Nil(t, r, c.says)
		kit.Complains(t, err, c.says)
		require.NotContains(t, err.Error(), "\n", "nothing else is wrong")
	}
}

func TestNew_WithoutClientOrPrefix(t *testing.T) {
	r, err := lockregistry.New(nil, "orders")
	require.Nil(t, r)
	kit.Complains(t, err, "the client is nil")
	require.NotContains(t, err.Error(), "prefix")

	r, err = lockregistry.New(kit.UnusedClient(t), "")
	require.Nil(t, r)
	kit.Complains(t, err, "the prefix is empty")
	require.NotContains(t, err.Error(), "client")
}

func TestNew_TellsEverythingThatIsWrong(t *testing.T) {
	r, err := lockregistry.New(nil, "", nil, lockregistry.WithLease(0),
		lockregistry.WithPollInterval(0),
		lockregistry.WithHandoff(-1), lockregistry.WithClientID(""),
		lockregistry.WithLogger(nil))
	require.Nil(t, r)
	kit.Complains(t, err, "client", "prefix", "option is nil", "WithLease", "WithPollInterval", "WithHandoff",
		"WithClientID", "WithLogger")
}

func TestOptions_AtTheirLimits(t *testing.T) {
	for _, o := range []lockregistry.Option{
		lockregistry.WithLease(2 * time.Millisecond), lockregistry.WithLease(30 * 24 * time.Hour),
		lockregistry.WithPollInterval(1), lockregistry.WithPollInterval(math.MaxInt64),
		lockregistry.WithHandoff(0), lockregistry.WithHandoff(math.MaxInt64),
		lockregistry.WithClientID(" "), lockregistry.WithRenewal(), lockregistry.WithOldChannel(), lockregistry.WithPolling(),
		lockregistry.WithRedissonLayout(), lockregistry.WithLogger(slog.New(slog.DiscardHandler)),
	} {
		require.NotNil(t, kit.UnusedRegistry(t, o))
	}
}

// The last of several options of a kind counts, even if an earlier one makes no sense.
func TestOptions_TheLastOptionCounts(t *testing.T) {
	r := kit.UnusedRegistry(t, lockregistry.WithClientID(""), lockregistry.WithClientID("first"), lockregistry.WithClientID("last"))
	require.Equal(t, "Registry(orders, client id last)", r.String())
}

func TestOptions_LockOptionsThatMakeNoSense(t *testing.T) {
	r := kit.UnusedRegistry(t)
	for _, c := range []struct {
		option lockregistry.LockOption
		says   string
	}{
		{nil, "an option is nil, or was not made by a function of this package"},
		{struct{ lockregistry.LockOption }{lockregistry.NoWait()}, "an option is nil, or was not made by a function of this package"},
		{lockregistry.Lease(0), "Lease(0s): the duration must be positive"},
		{lockregistry.Lease(-time.Second), "Lease(-1s): the duration must be positive"},
		{lockregistry.Lease(math.MinInt64), "the duration must be positive"},
		{lockregistry.Lease(2*time.Millisecond - 1), "Lease(1.999999ms): a lease must be at least 2ms"},
		{lockregistry.Lease(1), "Lease(1ns): a lease must be at least 2ms"},
	} {
		ttl, wait := lockregistry.Lease(time.Second), lockregistry.Wait(time.Second)
		for op, locks := range kit.WaysToLock(r, "42") {
			kit.Refuses(t, locks(t.Context(), c.option), op, "orders:42", c.says)
			kit.Refuses(t, locks(t.Context(), ttl, wait, c.option), op, "orders:42", c.says)
			kit.Refuses(t, locks(t.Context(), c.option, ttl, wait), op, "orders:42", c.says)
		}
	}
	require.False(t, r.Obtain("42").IsHeld())
}

func TestOptions_CallsWithoutPathOrContext(t *testing.T) {
	r := kit.UnusedRegistry(t)
	var none context.Context
	for _, c := range []struct {
		path string
		ctx  context.Context
		says string
	}{
		{"", t.Context(), "the path is empty"},
		{"", lockregistry.ContextWithOwner(t.Context()), "the path is empty"},
		{"42", none, "the context is nil"},
	} {
		key := "orders:" + c.path
		for op, locks := range kit.WaysToLock(r, c.path) {
			kit.Refuses(t, locks(c.ctx), op, key, c.says)
			kit.Refuses(t, locks(c.ctx, lockregistry.Wait(time.Second), lockregistry.Lease(time.Second)), op, key, c.says)
		}
		l := r.Obtain(c.path)
		require.NotNil(t, l)
		require.Equal(t, key, kit.Key(l))
		require.Equal(t, c.path, l.Path())
		require.False(t, l.IsHeld())
		kit.Refuses(t, l.Unlock(c.ctx), "unlock", key, c.says)
		kit.Refuses(t, l.Renew(c.ctx, time.Second), "renew", key, c.says)
		kit.Refuses(t, r.Renew(c.ctx, c.path, time.Second), "renew", key, c.says)
		require.Equal(t, lockregistry.ErrNotOwner, context.Cause(l.Context(c.ctx)), "a context that is over, not a panic")
	}
}

func TestDo_WithoutFunction(t *testing.T) {
	r := kit.UnusedRegistry(t)
	kit.Refuses(t, r.Do(t.Context(), "42", nil), "do", "orders:42", "the function is nil")
	kit.Refuses(t, r.Do(t.Context(), "", nil), "do", "orders:", "is ")
	var none context.Context
	kit.Refuses(t, r.Do(none, "42", nil), "do", "orders:42", "is nil")
	require.False(t, r.Obtain("42").IsHeld())
}

func TestRenew_WithALeaseThatMakesNoSense(t *testing.T) {
	kit.FakeWorld(t, func(w *kit.World) {
		r := w.Registry()
		l := r.Obtain("42")
		for _, held := range []bool{false, true} {
			if held {
				w.Lock(l)
			}
			for _, ttl := range []time.Duration{0, -1, math.MinInt64, 1, 2*time.Millisecond - 1} {
				why := fmt.Sprintf("Renew(%v): a lease must be at least 2ms", ttl)
				kit.Refuses(w.T, l.Renew(w.Context(), ttl), "renew", "orders:42", why)
				kit.Refuses(w.T, r.Renew(w.Context(), "42", ttl), "renew", "orders:42", why)
			}
		}
		require.True(w, l.IsHeld())
		require.Equal(w, time.Minute, w.Pttl("orders:42"), "nothing was changed")
		w.Unlock(l)
	})
}

func TestOptions_Defaults(t *testing.T) {
	kit.Worlds(t, func(w *kit.World) {
		r := w.Registry()
		w.Lock(r.Obtain("42"))
		left := w.Pttl("orders:42")
		require.LessOrEqual(w, left, 60*time.Second)
		require.Greater(w, left, 30*time.Second)
		if w.Fake {
			require.Equal(w, 60*time.Second, left)
		}
		w.Unlock(r.Obtain("42"))
	})
}

func TestOptions_DefaultCapacity(t *testing.T) {
	t.Parallel()
	const capacity = 100_000
	r := kit.UnusedRegistry(t)
	for i := range capacity {
		r.Obtain(strconv.Itoa(i))
	}
	require.Equal(t, capacity, kit.CachedLocks(r))
	for i := range 10 {
		r.Obtain(strconv.Itoa(capacity + i))
	}
	require.Equal(t, capacity, kit.CachedLocks(r))
}

func TestOptions_LeasesAreWholeMilliseconds(t *testing.T) {
	kit.FakeWorld(t, func(w *kit.World) {
		r := w.Registry(lockregistry.WithLease(2*time.Second + 999*time.Microsecond))
		l := r.Obtain("42")
		w.Lock(l)
		require.Equal(w, 2*time.Second, w.Pttl("orders:42"))
		require.NoError(w, l.Renew(w.Context(), 3*time.Second+time.Millisecond+999*time.Microsecond))
		require.Equal(w, 3001*time.Millisecond, w.Pttl("orders:42"))
		w.Lock(l, lockregistry.Lease(5*time.Second), lockregistry.Lease(4*time.Second+1))
		require.Equal(w, 4*time.Second, w.Pttl("orders:42"), "the last option counts")
		w.Unlock(l)
		w.Unlock(l)
	})
}

const randomUUID = `^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$`

func TestOptions_DefaultClientIDs(t *testing.T) {
	first, second := kit.UnusedRegistry(t), kit.UnusedRegistry(t)
	require.Regexp(t, randomUUID, kit.ClientID(first))
	require.Regexp(t, randomUUID, kit.ClientID(second))
	require.NotEqual(t, kit.ClientID(first), kit.ClientID(second))
}

// Registries with one client id stay separate even if their UUIDs differ only in the last bytes.
func TestOptions_ClientIDsThatAgree(t *testing.T) { // the source of UUIDs belongs to the process
	kit.FakeWorldAlone(t, func(w *kit.World) {
		named := func(last byte) *lockregistry.Registry {
			uuid.SetRand(bytes.NewReader(append(bytes.Repeat([]byte{7}, 14), last, last)))
			defer uuid.SetRand(nil)
			return w.Registry(lockregistry.WithClientID("billing"))
		}
		first, second := named(1), named(2)
		w.Lock(second.Obtain("another")) // so that the number of its next hold is larger
		w.Lock(first.Obtain("42"))
		require.False(w, w.TryElsewhere(second.Obtain("42")))
		require.True(w, first.Obtain("42").IsHeld())
		w.Unlock(first.Obtain("42"))
		w.Unlock(second.Obtain("another"))
	})
}

func TestOptions_ValuesWithAClientID(t *testing.T) {
	kit.Worlds(t, func(w *kit.World) {
		const id = "billing-%d+[7]" // not a pattern, wherever it is compared
		client := w.Client()
		opts := []lockregistry.Option{lockregistry.WithClientID(id), lockregistry.WithHandoff(0)}
		first, second := w.RegistryOn(client, opts...), w.RegistryOn(client, opts...)
		require.Equal(w, "Registry(orders, client id "+id+")", first.String())
		require.Equal(w, first.String(), second.String())

		// The value is the id, a random part, and the number of the hold.
		parts := func(r *lockregistry.Registry, path string) (random, number string) {
			w.Lock(r.Obtain(path))
			rest, ok := strings.CutPrefix(w.Do("GET", "orders:"+path), id+":")
			require.True(w, ok, rest)
			random, number, ok = strings.Cut(rest, ":")
			require.True(w, ok, rest)
			require.Regexp(w, randomUUID, random)
			return random, number
		}
		mine, one := parts(first, "1")
		again, two := parts(first, "2")
		others, theirs := parts(second, "3")
		require.Equal(w, mine, again)
		require.NotEqual(w, mine, others)
		require.Less(w, one, two)
		require.NotEmpty(w, theirs)

		// Even with one id they exclude each other, both ways.
		for path, holder := range map[string]*lockregistry.Registry{"1": first, "2": first, "3": second} {
			for _, r := range []*lockregistry.Registry{first, second} {
				require.False(w, w.TryElsewhere(r.Obtain(path)))
				require.Equal(w, r == holder, r.Obtain(path).IsHeld())
				if r != holder {
					w.Fails(r.Obtain(path).Unlock(w.Context()), lockregistry.ErrNotOwner, "unlock", "orders:"+path)
				}
			}
			w.Unlock(holder.Obtain(path))
		}
		require.True(w, w.TryElsewhere(second.Obtain("1")))
	})
}

// A Java caller that waits forever passes the largest possible number.
func TestOptions_TheLongestWait(t *testing.T) {
	kit.FakeWorld(t, func(w *kit.World) {
		r, other := w.Registry(), w.Registry()
		w.Pass(time.Second) // the wait reaches beyond the last moment that the registry can represent
		here, there := r.Obtain("42"), other.Obtain("42")
		w.Lock(here)
		inside := w.Goroutine().Starts(here, lockregistry.Wait(math.MaxInt64))
		outside := w.Goroutine().Start(func() error {
			ok, err := there.TryLock(w.Context(), lockregistry.Wait(math.MaxInt64))
			if err == nil && !ok {
				err = errors.New("did not lock")
			}
			return errors.Join(err, there.Unlock(w.Context()))
		})
		w.Pass(30 * time.Second)
		w.Pending(inside)
		w.Pending(outside)
		w.Do("DEL", "orders:42")
		require.NoError(w, <-outside)
		w.Pending(inside)
		w.Fails(here.Unlock(w.Context()), lockregistry.ErrLockLost, "unlock", "orders:42")
		require.NoError(w, <-inside)
	})
}
