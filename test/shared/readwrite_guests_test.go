package shared_test

import (
	"context"
	"errors"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry"
	"github.com/lockregistry/lockregistry/internal/redistest"
	"github.com/lockregistry/lockregistry/test/internal/kit"
)

// Guests are places in the queue for writers that have no ticket.

// invited has a writer poll, for which there is a guest in the queue, until the function that it returns is called.
func invited(w *kit.World) (gone func()) {
	w.Helper()
	ctx, cancel := context.WithCancel(w.Context())
	polls := w.Goroutine().Start(func() error { return w.Pair(kit.Polling).Writer.Lock(ctx) })
	w.Await("its guest", func() bool { return w.Do("ZSCORE", kit.RwQueue, "guest") != "(nil)" })
	return func() {
		cancel()
		require.ErrorIs(w, <-polls, context.Canceled)
	}
}

func calls(w *kit.World, command string) int {
	_, after, _ := strings.Cut(w.Do("INFO", "commandstats"), "cmdstat_"+command+":calls=")
	n, _, _ := strings.Cut(after, ",")
	calls, err := strconv.Atoi(n)
	require.NoError(w, err)
	return calls
}

// A lost ticket comes back to its place, in front of a guest that has come in the meantime.
func TestReservation_ATicketInFrontOfAGuest(t *testing.T) {
	kit.RealWorlds(t, func(w *kit.World) {
		holder, waiter := w.Pair(lockregistry.WithLease(20*time.Second)), w.Pair(lockregistry.WithPollInterval(kit.NoPoll))
		w.Lock(holder.Reader)
		g := w.Goroutine()
		writes := g.Starts(waiter.Writer)
		w.Watched()
		ticket := strings.Trim(w.Do("ZRANGEBYSCORE", kit.RwQueue, "0", "+inf"), "[]")
		w.Do("ZREM", kit.RwQueue, ticket)
		invited(w)()
		w.Do("CLIENT", "KILL", "TYPE", "pubsub") // so that it looks
		w.Await("its ticket", func() bool { return w.Do("ZCOUNT", kit.RwQueue, "0", "+inf") == "2" })
		before := calls(w, "evalsha")
		<-time.After(time.Second)
		require.Less(w, calls(w, "evalsha")-before, 30)
		w.Unlock(holder.Reader)
		soon(w, writes)
		require.NoError(w, g.Unlock(waiter.Writer))
	})
}

// On a cluster the key of a guest has to be declared, and may be refused: then the writer polls without a guest.
func TestReservation_AGuestThatIsRefused(t *testing.T) {
	t.Parallel()
	nodes := redistest.StartCluster(t, 3)
	for _, n := range nodes {
		n.Command(t, "ACL", "SETUSER", "app", "on", ">secret", "~orders:42", "~{orders:42}:*", "&*", "+@all")
	}
	for name, change := range map[string]func(o *rueidis.ClientOption){
		"permission": func(o *rueidis.ClientOption) { o.Username, o.Password = "app", "secret" },
		"moving": func(*rueidis.ClientOption) {
			i := slices.IndexFunc(nodes, func(n *redistest.Server) bool { _, err := n.Do("EXISTS", kit.TheKey); return err == nil })
			from, to := nodes[i], nodes[(i+1)%3]
			slot := from.Command(t, "CLUSTER", "KEYSLOT", kit.TheKey)
			to.Command(t, "CLUSTER", "SETSLOT", slot, "IMPORTING", from.Command(t, "CLUSTER", "MYID"))
			from.Command(t, "CLUSTER", "SETSLOT", slot, "MIGRATING", to.Command(t, "CLUSTER", "MYID"))
			t.Cleanup(func() {
				from.Command(t, "CLUSTER", "SETSLOT", slot, "STABLE")
				to.Command(t, "CLUSTER", "SETSLOT", slot, "STABLE")
			})
		},
	} {
		t.Run(name, func(t *testing.T) {
			made := func(change func(*rueidis.ClientOption), opts ...lockregistry.Option) *lockregistry.ReadWriteLock {
				o := rueidis.ClientOption{InitAddress: []string{nodes[0].Addr()}, DisableCache: true}
				change(&o)
				client, err := kit.NewClient(o)
				require.NoError(t, err)
				t.Cleanup(client.Close)
				r, err := lockregistry.New(client, "orders", opts...)
				require.NoError(t, err)
				t.Cleanup(func() { require.NoError(t, r.Close()) })
				return r.ReadWrite("42")
			}
			reader := made(func(*rueidis.ClientOption) {}).Reader()
			require.NoError(t, reader.Lock(t.Context()))
			owner, got := lockregistry.ContextWithOwner(t.Context()), make(chan error, 1)
			writer := made(change, kit.Polling).Writer()
			go func() { got <- writer.Lock(owner, lockregistry.Wait(10*time.Second)) }()
			select {
			case err := <-got:
				require.FailNow(t, "it does not wait", "%v", err)
			case <-time.After(500 * time.Millisecond):
			}
			require.NoError(t, kit.UnlessLate(reader.Unlock(t.Context())))
			require.NoError(t, <-got)
			require.NoError(t, kit.UnlessLate(writer.Unlock(owner)))
		})
	}
}

// Readers with a long handoff limit still ask often enough to notice a guest.
func TestReservation_AGuestOfReadersWithALongHandoff(t *testing.T) {
	kit.RealWorlds(t, func(w *kit.World) {
		_, stop := readOn(w, lockregistry.WithHandoff(time.Second))
		defer stop()
		writer := w.Pair(kit.Polling).Writer
		for range 2 {
			ok, err := writer.TryLock(w.Context(), lockregistry.Wait(starved))
			require.NoError(w, err)
			require.True(w, ok)
			w.Unlock(writer)
		}
	})
}

// A writer whose connection for wake-ups cannot be made polls, and gets a guest, too.
func TestReservation_AGuestOfAWriterWithoutItsConnection(t *testing.T) {
	kit.RealWorlds(t, func(w *kit.World) {
		var shut atomic.Bool
		dial := func(ctx context.Context) (net.Conn, error) {
			if shut.Load() {
				return nil, errors.New("no more connections")
			}
			return w.Dial(ctx)
		}
		client := w.ClientWith(dial)
		w.Connected(client)
		r := w.RegistryOn(client)
		w.KnownWell(r)
		shut.Store(true)
		for range 2 {
			_, stop := readOn(w)
			defer stop()
		}
		writer := r.ReadWrite("42").Writer()
		for range 2 {
			var ok bool
			require.NoError(w, w.Answer(func() (err error) {
				ok, err = writer.TryLock(w.Context(), lockregistry.Wait(8*time.Second))
				return err
			}))
			require.True(w, ok)
			w.Released(writer.Unlock(w.Context()))
			<-time.After(50 * time.Millisecond)
		}
	})
}

// A reader that may not ask for the time does not fail for a guest.
func TestReservation_AGuestAndAReaderWithoutPermissions(t *testing.T) {
	kit.RealWorlds(t, func(w *kit.World) {
		holder := w.Pair()
		w.Lock(holder.Reader)
		gone := invited(w)
		reader := kit.PairOf(w.RegistryOn(w.ClientWith(w.Dial, w.Allowed("-time")))).Reader
		for range 3 {
			ok, err := reader.TryLock(w.Context(), lockregistry.Wait(starved))
			require.NoError(w, err)
			require.True(w, ok)
			w.Unlock(reader)
		}
		gone()
		w.Unlock(holder.Reader)
	})
}

// A guest that came an hour from now is due to a clock that has been set back since.
func TestReservation_AGuestWhenTheClockGoesBack(t *testing.T) {
	t.Parallel()
	for name, opts := range map[string][]lockregistry.Option{"tickets": nil, "polling": {kit.Polling}} {
		t.Run(name, func(t *testing.T) {
			kit.RealWorlds(t, func(w *kit.World) {
				holder := w.Pair()
				w.Lock(holder.Reader)
				at := time.Now().Add(time.Hour)
				ends := strconv.FormatInt(-at.UnixMilli(), 10)
				w.Do("ZADD", kit.RwQueue, ends, "open", ends, "wide", strconv.FormatInt(at.UnixMicro(), 10), "guest")
				reader := w.Pair(opts...).Reader
				ok, err := reader.TryLock(w.Context(), lockregistry.Wait(starved))
				require.NoError(w, err)
				require.True(w, ok)
				w.Unlock(reader)

				w.Do("DEL", kit.RwQueue)
				w.Do("ZADD", kit.RwQueue, ends, "open", ends, "wide")
				invited(w)()
				w.Unlock(holder.Reader)
			})
		})
	}
}

// A client that subscribes like a waiting writer delays the readers of a process half of the time, at most, while one of them
// reads on.
func TestReservation_ASubscribedWriterDoesNotKeepReadersOut(t *testing.T) {
	kit.RealWorlds(t, func(w *kit.World) {
		p, listener := w.Pair(), w.Client()
		ctx, cancel := context.WithCancel(w.Context())
		listens := w.Goroutine().Start(func() error {
			channel := listener.B().Subscribe().Channel("redisson_rwlock:{orders:42}").Build()
			return listener.Receive(ctx, channel, func(rueidis.PubSubMessage) {})
		})
		w.Lock(p.Reader)
		for range 8 {
			g := w.Goroutine()
			ok, err := g.Try(p.Reader, lockregistry.Wait(starved))
			require.NoError(w, err)
			require.True(w, ok)
			require.NoError(w, g.Unlock(p.Reader))
			<-time.After(100 * time.Millisecond)
		}
		w.Unlock(p.Reader)
		cancel()
		require.ErrorIs(w, <-listens, context.Canceled)
	})
}
