package torture

import (
	"context"
	"errors"
	"strconv"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/redis/rueidis"
)

// naive is a lock as people write it the first time, and many stay like that. All holds of a process carry only its id, a lease
// counts from the moment the reply arrives, and the local half is free as soon as unlock has tried. The tests of the library
// are worth nothing unless they find fault with it.
var naive = system{"naive", false, func(client rueidis.Client, s settings) (process, error) {
	return &naiveProcess{client: client, id: uuid.NewString(), settings: s, paths: map[string]*naivePath{}}, nil
}}

var naiveScripts = map[string]string{
	"obtain": `
local held = redis.call('GET', KEYS[1])
if held == ARGV[1] then redis.call('PEXPIRE', KEYS[1], ARGV[2]) return 1 end
if held then return 0 end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
return 1`,
	"release": `
if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end
return 0`,
	"renew": `
if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('PEXPIRE', KEYS[1], ARGV[2]) end
return 0`,
}

var naiveLua = func() map[string]*rueidis.Lua {
	compiled := map[string]*rueidis.Lua{}
	for name, body := range naiveScripts {
		compiled[name] = rueidis.NewLuaScript(body)
	}
	return compiled
}()

var errNaiveLost = errors.New("naive: lost")

type naiveProcess struct {
	client   rueidis.Client
	id       string
	settings settings

	mu    sync.Mutex
	paths map[string]*naivePath
}

type naivePath struct {
	local chan struct{} // has room for one element: the owner

	mu    sync.Mutex
	until time.Time
	timer *time.Timer
	lost  context.CancelCauseFunc
	ctx   context.Context
}

func (p *naiveProcess) path(name string) *naivePath {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.paths[name] == nil {
		p.paths[name] = &naivePath{local: make(chan struct{}, 1)}
	}
	return p.paths[name]
}

func (p *naiveProcess) ask(ctx context.Context, script, path string, lease time.Duration) (bool, error) {
	n, err := naiveLua[script].Exec(ctx, p.client, []string{keyOf(path)},
		[]string{p.id, strconv.FormatInt(lease.Milliseconds(), 10)}).AsInt64()
	return n == 1, err
}

func (p *naiveProcess) lock(ctx context.Context, path string, wait, lease time.Duration) (bool, error) {
	if lease == 0 {
		lease = p.settings.Lease
	}
	var timeout <-chan time.Time
	if wait >= 0 {
		timeout = time.After(wait)
	}
	l := p.path(path)
	select {
	case l.local <- struct{}{}:
	case <-ctx.Done():
		return false, ctx.Err()
	case <-timeout:
		return false, nil
	}
	for first := true; ; first = false {
		granted, err := p.ask(ctx, "obtain", path, lease)
		if granted {
			l.grant(lease)
			return true, nil
		}
		if err != nil && (first || ctx.Err() != nil) {
			<-l.local
			return false, err
		}
		select {
		case <-time.After(p.settings.Poll):
			continue
		case <-ctx.Done():
			err = ctx.Err()
		case <-timeout:
		}
		<-l.local
		return false, err
	}
}

func (l *naivePath) grant(lease time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.ctx, l.lost = context.WithCancelCause(context.Background())
	l.until = time.Now().Add(lease)
	lost := l.lost
	l.timer = time.AfterFunc(lease, func() { lost(errNaiveLost) })
}

func (p *naiveProcess) unlock(ctx context.Context, path string) error {
	l := p.path(path)
	l.mu.Lock()
	l.until = time.Time{}
	l.timer.Stop()
	l.lost(context.Canceled)
	l.mu.Unlock()
	defer func() { <-l.local }()
	removed, err := p.ask(ctx, "release", path, 0)
	if err == nil && !removed {
		return errNaiveLost
	}
	return err
}

func (p *naiveProcess) renew(ctx context.Context, path string, lease time.Duration) error {
	if lease == 0 {
		lease = p.settings.Lease
	}
	renewed, err := p.ask(ctx, "renew", path, lease)
	if err != nil {
		return err
	}
	if !renewed {
		return errNaiveLost
	}
	l := p.path(path)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.until = time.Now().Add(lease)
	l.timer.Reset(lease)
	return nil
}

func (p *naiveProcess) context(_ context.Context, path string) context.Context {
	l := p.path(path)
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.ctx
}

func (p *naiveProcess) held(path string) bool {
	l := p.path(path)
	l.mu.Lock()
	defer l.mu.Unlock()
	return time.Now().Before(l.until)
}

func (p *naiveProcess) close() {}
