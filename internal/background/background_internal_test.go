package background

import (
	"errors"
	"testing"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry/internal/cleanup"
	"github.com/lockregistry/lockregistry/internal/health"
	"github.com/lockregistry/lockregistry/internal/protocol"
	"github.com/lockregistry/lockregistry/internal/transport"
)

// A reply counts as a write only if a server that refuses writes could not have given it.
func TestSender_WhatAReplySaysAboutAServer(t *testing.T) {
	removal, refused, silent := removing{cleanup.Try{}}, &rueidis.RedisError{}, errors.New("no answer")
	for name, c := range map[string]struct {
		n    int64
		err  error
		want health.Outcome
	}{
		"removed":                           {1, nil, health.Outcome{Succeeded: true, Wrote: true}},
		"removed, and others wait":          {protocol.Contended, nil, health.Outcome{Succeeded: true, Wrote: true}},
		"removed, but its queue is refused": {protocol.NoQueue, nil, health.Outcome{Succeeded: true}},
		"there was nothing to remove":       {0, nil, health.Outcome{Succeeded: true}},
		"it is another's":                   {-1, nil, health.Outcome{Succeeded: true}},
		"refused":                           {0, refused, health.Outcome{Failure: refused, Refused: true}},
		"no answer":                         {0, silent, health.Outcome{Failure: silent}},
	} {
		node := &transport.Node{}
		s := outcomes{kind: health.Removals, sent: 7, of: map[*transport.Node]*health.Outcome{}}
		s.note(node, removal, c.n, c.err)
		c.want.Kind, c.want.Sent, c.want.Tasks = health.Removals, 7, 1
		require.Equal(t, c.want, *s.of[node], name)
	}
}

// One master's reply says nothing about another master, and a refusal outweighs silence.
func TestSender_EachNodeHasAnOutcome(t *testing.T) {
	one, other := &transport.Node{}, &transport.Node{}
	refused, silent := &rueidis.RedisError{}, errors.New("no answer")
	s := outcomes{kind: health.Removals, of: map[*transport.Node]*health.Outcome{}}
	task := removing{cleanup.Try{}}
	s.note(one, task, 1, nil)
	s.note(other, task, 0, silent)
	s.note(other, task, 0, refused)
	s.note(other, task, 0, silent)
	s.note(one, task, 0, nil)
	require.Equal(t, health.Outcome{Kind: health.Removals, Tasks: 2, Succeeded: true, Wrote: true}, *s.of[one])
	require.Equal(t, health.Outcome{Kind: health.Removals, Tasks: 3, Failure: refused, Refused: true}, *s.of[other])
}
