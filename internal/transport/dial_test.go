package transport

import (
	"context"
	"io"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry/internal/fault"
)

// questioned is a client whose connections answer CLIENT INFO in some way, and know the database that was selected.
type questioned struct {
	rueidis.Client
	info   func(connection int) rueidis.RedisResult
	ok     rueidis.RedisResult
	silent bool // a connection breaks at any command
	made   int
	shared atomic.Pointer[rueidis.RedisResult] // what a shared one answers
	asked  atomic.Int32                        // shared ones
}

// questions makes a client whose shared connections give this answer.
func questions(client rueidis.Client, shared rueidis.RedisResult) *questioned {
	c := &questioned{Client: client}
	c.shared.Store(&shared)
	return c
}

type questionedWire struct {
	rueidis.DedicatedClient
	of       *questioned
	number   int
	ended    bool
	selected string
}

func (c *questioned) Do(_ context.Context, command rueidis.Completed) rueidis.RedisResult {
	if command.Commands()[0] == "CLIENT" {
		c.asked.Add(1)
	}
	return *c.shared.Load()
}

func (c *questioned) Dedicate() (rueidis.DedicatedClient, func()) {
	c.made++
	return &questionedWire{of: c, number: c.made}, func() {}
}

func (w *questionedWire) B() rueidis.Builder { return w.of.B() }
func (*questionedWire) Close()               {}

func (w *questionedWire) Do(_ context.Context, c rueidis.Completed) (reply rueidis.RedisResult) {
	reply = w.of.ok
	switch words := c.Commands(); {
	case w.ended || w.of.silent:
		reply = rueidis.NewErrorResult(io.EOF)
	case words[0] == "SELECT":
		w.selected = words[1]
	case words[0] == "CLIENT":
		reply = w.of.info(w.number)
	}
	w.ended = w.ended || !fault.Answered(reply.Error())
	return reply
}

// A proxy may end each connection at the question. After a few such connections, one fits all the same. One that ends is no
// proof, nor are connections that break at any command: otherwise one with another database might be used.
func TestExam_AConnectionEndsAtTheQuestion(t *testing.T) {
	client := onMiniredis(t)
	says := func(t *testing.T, script string) rueidis.RedisResult {
		t.Helper()
		return client.Do(t.Context(), client.B().Eval().Script(script).Numkeys(0).Build())
	}
	ends, other := rueidis.NewErrorResult(io.EOF), says(t, "return 'id=7 db=5 age=0 x=1'")
	begins := func(t *testing.T, shared rueidis.RedisResult, ended func(connection int) bool) (*questioned, *Client) {
		t.Helper()
		c := questions(client, shared)
		c.ok = says(t, "return 'PONG'")
		c.info = func(connection int) rueidis.RedisResult {
			if ended(connection) {
				return ends
			}
			return other
		}
		return c, New(c)
	}
	always := func(int) bool { return true }
	t.Run("each", func(t *testing.T) {
		c, way := begins(t, ends, always)
		for attempt := range 3 {
			require.NotNil(t, way.First.dials.dial(wanted{}))
			require.Equal(t, 4*(attempt+1), c.made)
		}
		require.Nil(t, way.First.own.dial(), "for a lone caller the database must be known")
		require.Equal(t, 12, c.made)
		asked := c.asked.Load()
		_, known := way.database(time.Minute)
		require.True(t, known)
		require.Equal(t, asked, c.asked.Load(), "others share that connection")
	})
	t.Run("each, and the database is known", func(t *testing.T) {
		_, way := begins(t, says(t, "return 'id=7 db=3 age=0 x=1'"), always)
		_, known := way.database(time.Minute)
		require.True(t, known)
		made := way.First.dials.dial(wanted{})
		require.NotNil(t, made)
		require.Equal(t, "3", made.DedicatedClient.(*questionedWire).selected) //nolint:forcetypeassert // see questioned
	})
	t.Run("by chance", func(t *testing.T) {
		c, way := begins(t, ends, func(connection int) bool { return connection <= enough })
		require.Nil(t, way.First.dials.dial(wanted{}))
		require.LessOrEqual(t, c.made, mostIdle)
	})
	t.Run("at anything", func(t *testing.T) {
		c, way := begins(t, ends, always)
		c.silent = true
		require.Nil(t, way.First.dials.dial(wanted{}))
		require.Equal(t, mostIdle, c.made)
	})
}

// A server that did not report the database of the shared connections, but reports that of another connection, is asked again.
func TestExam_TheServerTellsAfterAll(t *testing.T) {
	client := onMiniredis(t)
	says := func(script string) rueidis.RedisResult {
		return client.Do(t.Context(), client.B().Eval().Script(script).Numkeys(0).Build())
	}
	c := questions(client, says(`return redis.error_reply("NOPERM may not run the 'client|info' command")`))
	none, other := rueidis.NewErrorResult(fault.NoAnswer), says("return 'id=7 db=5 age=0 x=1'")
	c.info = func(int) rueidis.RedisResult { return other }
	way := New(c)
	_, known := way.database(time.Minute)
	require.True(t, known)
	way.First.belief.FoundSilent(0, way.Clock.Now())
	c.shared.Store(&none)
	require.Nil(t, way.First.dials.dial(wanted{}))
	c.shared.Store(&other)
	require.NotNil(t, way.First.dials.dial(wanted{}))
}

// A server may report the database of the shared connections, but not that of another one, as after a change of permissions.
// Then the database is selected on that one.
func TestExam_TheServerTellsNoMore(t *testing.T) {
	client := onMiniredis(t)
	says := func(script string) rueidis.RedisResult {
		return client.Do(t.Context(), client.B().Eval().Script(script).Numkeys(0).Build())
	}
	c := questions(client, says("return 'id=7 db=3 age=0 x=1'"))
	c.ok = says("return 'OK'")
	c.info = func(int) rueidis.RedisResult {
		return says(`return redis.error_reply("NOPERM may not run the 'client|info' command")`)
	}
	way := New(c)
	_, known := way.database(time.Minute)
	require.True(t, known)
	made := way.First.dials.dial(wanted{})
	require.NotNil(t, made)
	require.Equal(t, "3", made.DedicatedClient.(*questionedWire).selected) //nolint:forcetypeassert // see questioned
	way.Sole(3)
	require.Empty(t, way.First.dials.dial(wanted{}).DedicatedClient.(*questionedWire).selected) //nolint:forcetypeassert // likewise
}
