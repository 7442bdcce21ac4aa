package torture

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry"
	"github.com/lockregistry/lockregistry/internal/netfault"
	"github.com/lockregistry/lockregistry/internal/protocol"
	"github.com/lockregistry/lockregistry/internal/seam"
	"github.com/lockregistry/lockregistry/observe"
)

// process is what the tests need of one process that locks. The context names the owner, see [lockregistry.ContextWithOwner],
// so any goroutine may act for it.
type process interface {
	// lock waits at most that long, not at all for 0, and without end for a negative wait. A lease of 0 is the default one.
	lock(ctx context.Context, path string, wait, lease time.Duration) (bool, error)
	unlock(ctx context.Context, path string) error
	renew(ctx context.Context, path string, lease time.Duration) error
	// context ends when the owner of ctx loses the hold.
	context(ctx context.Context, path string) context.Context
	// held reports whether, as far as the process knows, somebody in it holds the path.
	held(path string) bool
	close()
}

// readWrite is a process with read-write locks. Used as a [process] it writes.
type readWrite interface {
	process
	// reader is the same process, reading. A writer may read too, and may then give up writing.
	reader() process
	// upgrade asks to write while the owner reads; that is refused.
	upgrade(ctx context.Context, path string) error
}

// settings are the settings of one process.
type settings struct {
	Lease   time.Duration
	Poll    time.Duration
	Renewal bool
	Wakeup  string
	Handoff time.Duration // negative: the default
	Fencing bool          // holds have fencing tokens
	Watched bool          // writers without a lease of their own are renewed, as in Redisson; readers always are
}

// system is a kind of lock under test.
type system struct {
	name string
	ours bool // the library, so that errors must be its own, too
	open func(client rueidis.Client, s settings) (process, error)
}

const prefix = "torture"

func keyOf(path string) string { return prefix + ":" + path }

// library is under test, redisson is the library with the other format, and sharing has read-write locks.
var (
	library  = layout("library", observe.LayoutSpring)
	redisson = layout("redisson", observe.LayoutRedisson)
	sharing  = system{"sharing", true, func(client rueidis.Client, s settings) (process, error) {
		format := observe.LayoutSpring
		if s.Watched {
			format = observe.LayoutRedisson
		}
		r, err := registry(client, s, format)
		if err != nil {
			return nil, err
		}
		return sharingProcess{libraryProcess{r, func(path string) *lockregistry.Lock { return r.ReadWrite(path).Writer() }}}, nil
	}}
)

func layout(name string, format observe.Layout) system {
	return system{name, true, func(client rueidis.Client, s settings) (process, error) {
		r, err := registry(client, s, format)
		if err != nil {
			return nil, err
		}
		return libraryProcess{r, r.Obtain}, nil
	}}
}

func registry(client rueidis.Client, s settings, format observe.Layout) (*lockregistry.Registry, error) {
	opts := []lockregistry.Option{
		lockregistry.WithLease(s.Lease),
		lockregistry.WithPollInterval(s.Poll),
		seam.Lockregistry.Wakeup(cmp.Or(s.Wakeup, "auto")).(lockregistry.Option),
		lockregistry.WithLogger(slog.New(slog.DiscardHandler)),
	}
	if format == observe.LayoutRedisson {
		opts = append(opts, lockregistry.WithRedissonLayout())
	}
	if s.Renewal {
		opts = append(opts, lockregistry.WithRenewal())
	}
	if s.Fencing {
		opts = append(opts, lockregistry.WithFencing())
	}
	if s.Handoff >= 0 {
		opts = append(opts, lockregistry.WithHandoff(s.Handoff))
	}
	return lockregistry.New(client, prefix, opts...)
}

type libraryProcess struct {
	registry *lockregistry.Registry
	at       func(path string) *lockregistry.Lock
}

func (p libraryProcess) lock(ctx context.Context, path string, wait, lease time.Duration) (bool, error) {
	var opts []lockregistry.LockOption
	if lease > 0 {
		opts = append(opts, lockregistry.Lease(lease))
	}
	l := p.at(path)
	if wait < 0 {
		err := l.Lock(ctx, opts...)
		return err == nil, err
	}
	if wait > 0 {
		opts = append(opts, lockregistry.Wait(wait))
	}
	return l.TryLock(ctx, opts...)
}

func (p libraryProcess) unlock(ctx context.Context, path string) error {
	return p.at(path).Unlock(ctx)
}

func (p libraryProcess) renew(ctx context.Context, path string, lease time.Duration) error {
	return p.at(path).Renew(ctx, lease)
}

func (p libraryProcess) context(ctx context.Context, path string) context.Context {
	return p.at(path).Context(ctx)
}

func (p libraryProcess) held(path string) bool { return p.at(path).IsHeld() }
func (p libraryProcess) close()                { _ = p.registry.Close() }

type sharingProcess struct{ libraryProcess }

func (p sharingProcess) reader() process {
	r := p.registry
	return libraryProcess{r, func(path string) *lockregistry.Lock { return r.ReadWrite(path).Reader() }}
}

func (p sharingProcess) upgrade(ctx context.Context, path string) error {
	_, err := p.at(path).TryLock(ctx)
	if errors.Is(err, lockregistry.ErrDeadlock) {
		return nil
	}
	return fmt.Errorf("asking to write while reading: %w", err)
}

// network says how a client uses the network.
type network struct {
	patience time.Duration // a connection is dead after about twice as long without a reply
	many     bool          // many connections for commands; with one, a test knows which commands meet a fault
}

var (
	single = network{patience: 500 * time.Millisecond}
	stormy = network{patience: 250 * time.Millisecond, many: true}
	calm   = network{patience: 10 * time.Second, many: true}
)

func (n network) dial(addr string) (rueidis.Client, error) {
	option := rueidis.ClientOption{
		InitAddress:       []string{addr},
		ForceSingleClient: true,
		ConnWriteTimeout:  n.patience,
	}
	if !n.many {
		option.PipelineMultiplex = -1
	}
	option.Dialer.KeepAlive = n.patience / 2 // also how often it asks whether the server is there
	return rueidis.NewClient(option)
}

// scripts says what each script of the library or of the naive lock does to a lock, by its body.
var scripts = sync.OnceValue(func() map[string]string {
	found := map[string]string{}
	for name, script := range protocol.Scripts() {
		name = strings.TrimSuffix(name, "_queued")
		found[script.Source] = name[strings.LastIndexByte(name, '_')+1:]
	}
	for name, body := range naiveScripts {
		found[body] = name
	}
	found[pairObtain], found[pairRelease] = "obtain", "release"
	return found
})

var names = sync.OnceValue(func() func(args []string) string { return netfault.Named(scripts()) })

func listen(tb testing.TB, backend string) *netfault.Proxy {
	tb.Helper()
	p, err := netfault.Listen(backend, names())
	require.NoError(tb, err)
	tb.Cleanup(p.Close)
	return p
}

// start starts a process of the system, whose client connects to an address.
func start(tb testing.TB, s system, n network, addr string, with settings) process {
	tb.Helper()
	client, err := n.dial(addr)
	for began := time.Now(); err != nil && time.Since(began) < 20*time.Second; { // a busy machine takes longer than its patience
		client, err = n.dial(addr)
	}
	require.NoError(tb, err)
	tb.Cleanup(client.Close)
	p, err := s.open(client, with)
	require.NoError(tb, err)
	tb.Cleanup(p.close)
	return p
}
