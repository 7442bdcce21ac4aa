package torture

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/redis/rueidis"
)

// A read-write lock as simple as can be: every hold is a field of its own, and a waiting call asks again and again. Without a
// flaw the storms must find no fault in it; with any one of these flaws they must.
const (
	soundly        = "is sound"
	writesWithRead = "a writer does not mind readers"
	readsForever   = "a reader ignores the end of its lease"
	endsOthers     = "the lease of a reader ends others' too"
	endsProcess    = "a removal means a process and not a hold"
	gives          = "giving the writing up gives the reading up too"
)

var flaws = []string{writesWithRead, readsForever, endsOthers, endsProcess, gives}

func flawed(flaw string) system {
	return system{flaw, false, func(client rueidis.Client, s settings) (process, error) {
		p := &pairProcess{client: client, id: uuid.NewString(), flaw: flaw, settings: s, holds: map[pairKey]*pairHold{}}
		return pairSide{p, false}, nil
	}}
}

func flawedSystems() (all []system) {
	for _, f := range append(slices.Clone(flaws), soundly) {
		all = append(all, flawed(f))
	}
	return all
}

// The lock is a hash from the names of holds to "<kind> <end in ms>". The last arguments are 1 for flaws.
const (
	pairObtain = `
local t = redis.call('TIME')
local now = t[1] * 1000 + math.floor(t[2] / 1000)
local last = now + ARGV[2]
local all = redis.call('HGETALL', KEYS[1])
for i = 1, #all, 2 do
  local kind, till = string.match(all[i + 1], '^(%a) (%d+)$')
  if tonumber(till) <= now then
    redis.call('HDEL', KEYS[1], all[i])
  elseif all[i] == ARGV[1] or (kind == 'w' or ARGV[3] == 'w' and ARGV[5] ~= '1') and all[i] ~= ARGV[4] then
    return 0
  else
    last = math.max(last, tonumber(till))
  end
end
if ARGV[6] == '1' then last = now + ARGV[2] end
redis.call('HSET', KEYS[1], ARGV[1], ARGV[3] .. ' ' .. (now + ARGV[2]))
redis.call('PEXPIRE', KEYS[1], last - now)
return 1`
	pairRelease = `
for _, name in ipairs(redis.call('HKEYS', KEYS[1])) do
  if name == ARGV[1] or string.sub(name, 1, #ARGV[2]) == ARGV[2] and ARGV[3] == '1' then
    redis.call('HDEL', KEYS[1], name)
  end
end
return 1`
)

var pairLua = map[string]*rueidis.Lua{
	pairObtain: rueidis.NewLuaScript(pairObtain), pairRelease: rueidis.NewLuaScript(pairRelease),
}

type pairProcess struct {
	client   rueidis.Client
	id       string
	flaw     string
	settings settings
	numbers  atomic.Uint64

	mu    sync.Mutex
	holds map[pairKey]*pairHold
}

// pairKey says which owner has which side of which path.
type pairKey struct {
	owner uint64
	path  string
	reads bool
}

// pairHold is its own context, which ends by the clock.
type pairHold struct {
	context.Context
	name  string
	until time.Time // zero: it does not end by itself
}

func (h *pairHold) Err() error {
	if !h.until.IsZero() && !time.Now().Before(h.until) {
		return errNaiveLost
	}
	return nil
}

// pairSide is one side, reading or writing, of all locks of a process.
type pairSide struct {
	*pairProcess
	reads bool
}

func (p pairSide) reader() process                                    { return pairSide{p.pairProcess, true} }
func (p pairSide) upgrade(context.Context, string) error              { return nil }
func (p pairSide) held(string) bool                                   { return true } // the context knows
func (p pairSide) close()                                             {}
func (p pairSide) renew(context.Context, string, time.Duration) error { return nil }

func (p pairSide) key(ctx context.Context, path string) pairKey {
	owner, _ := ctx.Value(ownerKey{}).(uint64)
	return pairKey{owner, path, p.reads}
}

func (p pairSide) hold(k pairKey) *pairHold {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.holds[k]
}

func (p pairSide) set(k pairKey, h *pairHold) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.holds[k] = h
}

func (p pairSide) context(ctx context.Context, path string) context.Context {
	return p.hold(p.key(ctx, path))
}

func (p pairSide) lock(ctx context.Context, path string, wait, lease time.Duration) (bool, error) {
	if lease == 0 {
		lease = p.settings.Lease
	}
	if wait >= 0 {
		limited, cancel := context.WithTimeout(ctx, max(wait, 50*time.Millisecond))
		defer cancel()
		ctx = limited
	}
	k := p.key(ctx, path)
	kind, under := "w", ""
	if p.reads {
		kind = "r"
		if above := p.hold(pairKey{k.owner, path, false}); above != nil {
			under = above.name
		}
	}
	for {
		h := &pairHold{Context: context.Background(), name: fmt.Sprint(p.id, ":", p.numbers.Add(1))}
		sent := time.Now()
		granted, err := pairLua[pairObtain].Exec(ctx, p.client, []string{keyOf(path)}, []string{
			h.name, strconv.FormatInt(lease.Milliseconds(), 10), kind, under,
			oneIf(p.flaw == writesWithRead), oneIf(p.flaw == endsOthers && p.reads),
		}).AsInt64()
		if h.until = sent.Add(lease - lease/100 - 2*time.Millisecond); granted == 1 {
			if h.Err() != nil {
				return false, context.DeadlineExceeded // the answer came too late
			}
			if p.flaw == readsForever && p.reads {
				h.until = time.Time{}
			}
			p.set(k, h)
			return true, nil
		}
		if err != nil || wait == 0 {
			return false, err
		}
		select {
		case <-ctx.Done():
			return false, ctx.Err()
		case <-time.After(2 * p.settings.Poll):
		}
	}
}

func (p pairSide) unlock(ctx context.Context, path string) error {
	k := p.key(ctx, path)
	h := p.hold(k)
	p.mu.Lock()
	delete(p.holds, k)
	p.mu.Unlock()
	whose := "" // everybody's
	if p.flaw == endsProcess {
		whose = p.id
	}
	return pairLua[pairRelease].Exec(ctx, p.client, []string{keyOf(path)}, []string{
		h.name, whose, oneIf(p.flaw == endsProcess || p.flaw == gives && !p.reads),
	}).Error()
}

func oneIf(on bool) string {
	if on {
		return "1"
	}
	return ""
}

var _ readWrite = pairSide{}
