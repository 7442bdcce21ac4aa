package main

import (
	"bytes"
	"context"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry/internal/redistest"
)

const springValue = "5f0c6f0e-1f4e-4d6c-9d5a-2f3e6f1a7b11"

// due is a context whose deadline comes when a test says so.
type due struct {
	context.Context
	over chan struct{}
}

func (d due) Done() <-chan struct{} { return d.over }

func (d due) Err() error {
	select {
	case <-d.over:
		return context.DeadlineExceeded
	default:
		return nil
	}
}

// stepping is a client that calls then after each command to one of its servers.
type stepping struct {
	rueidis.Client
	then func()
}

func (s stepping) Nodes() map[string]rueidis.Client {
	nodes := s.Client.Nodes()
	for address, node := range nodes {
		nodes[address] = stepping{node, s.then}
	}
	return nodes
}

func (s stepping) Do(ctx context.Context, command rueidis.Completed) rueidis.RedisResult {
	defer s.then()
	return s.Client.Do(ctx, command)
}

func clientOf(t *testing.T, addresses ...string) rueidis.Client {
	t.Helper()
	client, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: addresses, DisableCache: true})
	require.NoError(t, err)
	t.Cleanup(client.Close)
	return client
}

// When the time is over before all keys are read, that nothing was found says nothing.
func TestPrefixesOf_TheTimeIsOver(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	s.Command(t, "EVAL", "for i = 1, 2000 do redis.call('SET', 'shop:{' .. i .. '}:registry', '{}') end", "0")
	ctx := due{t.Context(), make(chan struct{})}
	found, why := prefixesOf(ctx, stepping{clientOf(t, s.Addr()), sync.OnceFunc(func() { close(ctx.over) })})
	require.ErrorIs(t, why, context.DeadlineExceeded)
	require.ErrorContains(t, why, "the keys were not all read in time")
	require.Positive(t, found["shop"])
	require.Less(t, found["shop"], 2000)

	var out bytes.Buffer
	a := &app{out: &out}
	require.Equal(t, exit{exitUnavailable, why}, a.printPrefixes(found, why))
	require.Regexp(t, `^PREFIX +KEYS\nshop +\d+\n\nnot complete: 1 prefixes\n$`, out.String())
	out.Reset()
	require.Equal(t, exit{exitUnavailable, why}, a.printPrefixes(nil, why))
	require.Empty(t, out.String())
	a.json = true
	require.Equal(t, exit{exitUnavailable, why}, a.printPrefixes(found, why))
	require.Empty(t, out.String(), "part of it would look complete")
}

// A lock counts for a prefix with colons wherever SCAN finds the record that shows this prefix.
func TestPrefixesOf_PrefixesWithColons(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	s.Command(t, "EVAL", `for n = 1, 5 do
		redis.call('SET', 'my:app' .. n .. ':{`+springValue+`}:registry', '{}')
		for i = 1, 1000 do redis.call('SET', 'my:app' .. n .. ':a:' .. i, ARGV[1]) end
	end`, "0", springValue)
	for _, key := range []string{"my:other:a", "my:app1", "shop:a"} {
		s.Command(t, "SET", key, springValue)
	}
	found, err := prefixesOf(t.Context(), clientOf(t, s.Addr()))
	require.NoError(t, err)
	require.Equal(t, map[string]int{
		"my:app1": 1001, "my:app2": 1001, "my:app3": 1001, "my:app4": 1001, "my:app5": 1001, "my": 2, "shop": 1,
	}, found)
}

// A user who may read no values is told that the list is not complete. What docs/permissions.md says is enough for all.
func TestPrefixes_DocumentedUser(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	s.Command(t, "SET", "shop:a", springValue, "PX", "600000")
	s.Command(t, "SET", "my:app:{"+springValue+"}:registry", "{}")
	lockreg := func(user string, args ...string) (code int, out, errs string) {
		var stdout, stderr bytes.Buffer
		a := &app{in: &bytes.Buffer{}, out: &stdout, err: &stderr}
		code = a.execute(append(args, "--url", "redis://"+user+":secret@"+s.Addr()))
		return code, stdout.String(), stderr.String()
	}
	s.Command(t, documentedUser(t, "viewing")...)
	code, out, errs := lockreg("viewer", "prefixes")
	require.Equal(t, exitUnavailable, code)
	require.Equal(t, "PREFIX  KEYS\nmy:app  1\n\nnot complete: 1 prefixes\n", out)
	require.Contains(t, errs, "lockreg: not all values can be read: NOPERM ")

	lister := documentedUser(t, "listing prefixes")
	s.Command(t, lister...)
	code, out, errs = lockreg(lister[2], "prefixes")
	require.Zero(t, code, errs)
	require.Equal(t, "PREFIX  KEYS\nmy:app  1\nshop    1\n", out)

	_, out, errs = lockreg("viewer", "ls", "my:ap")
	require.Contains(t, out+errs, "did you mean my:app?")

	s.Command(t, strings.Fields("ACL SETUSER nobody reset on >secret ~* &* +@all -eval -eval_ro")...)
	code, _, errs = lockreg("nobody", "prefixes")
	require.Equal(t, exitUnavailable, code)
	require.Contains(t, errs, "lockreg doctor says what this user is not permitted")
}

// A key of a cluster is counted once, however many replicas have it.
func TestPrefixesOf_ACluster(t *testing.T) {
	t.Parallel()
	d := redistest.StartReplicatedCluster(t, 1, 1)
	master, replica := d.Servers[0], d.Servers[1]
	master.Command(t, "SET", "shop:a", springValue, "PX", "600000")
	require.True(t, redistest.Await(time.Minute, func() bool { return replica.Command(t, "DBSIZE") == "1" }))
	client := clientOf(t, d.Addresses()...)
	require.Len(t, client.Nodes(), 2)
	found, err := prefixesOf(t.Context(), client)
	require.NoError(t, err)
	require.Equal(t, map[string]int{"shop": 1}, found)
}
