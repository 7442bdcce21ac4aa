package connect

import (
	"context"
	"crypto/tls"
	"net"
	"testing"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"
)

// slowToClose is a connection whose Close blocks.
type slowToClose struct {
	net.Conn
	closes, goOn chan struct{}
}

func (c slowToClose) Close() error {
	close(c.closes)
	<-c.goOn
	return nil
}

type closed struct {
	net.Conn
	is bool
}

func (c *closed) Close() error {
	c.is = true
	return nil
}

// A connection that the user's function has made, and that is slow to close, holds nothing else up.
func TestOpening_ConnectionsThatAreSlowToClose(t *testing.T) {
	slow, late := slowToClose{closes: make(chan struct{}), goOn: make(chan struct{})}, &closed{}
	made := make(chan net.Conn, 2)
	made <- slow
	made <- late
	o := rueidis.ClientOption{DialCtxFn: func(context.Context, string, *net.Dialer, *tls.Config) (net.Conn, error) {
		return <-made, nil
	}}
	w := watch(&o)
	got, err := o.DialCtxFn(t.Context(), "", nil, nil)
	require.NoError(t, err)
	require.Equal(t, slow, got)
	reached := make(chan bool)
	go func() { reached <- w.close() }()
	<-slow.closes
	_, err = o.DialCtxFn(t.Context(), "", nil, nil)
	require.ErrorIs(t, err, context.Canceled)
	require.True(t, late.is, "what is made later is closed, too")
	close(slow.goOn)
	require.True(t, <-reached)
}
