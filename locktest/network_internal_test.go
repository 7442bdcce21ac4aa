package locktest

import (
	"net"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"
)

// Nothing gets through a network that hangs, in either direction, on connections old and new; each ends with an error.
func TestServer_NothingGetsThrough(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var server net.Conn
		n := &network{server: func() (client net.Conn, err error) {
			client, server = net.Pipe()
			return client, nil
		}}
		for _, dialed := range []string{"before", "meanwhile"} {
			if dialed == "meanwhile" {
				n.hang()
			}
			client, err := n.dial(t.Context())
			require.NoError(t, err)
			answers, questions := reads(client), reads(server)
			if dialed == "before" {
				n.hang()
			}
			_, err = client.Write([]byte("question"))
			require.NoError(t, err)
			_, err = server.Write([]byte("answer"))
			require.NoError(t, err)
			synctest.Wait()
			require.Empty(t, answers, dialed)
			require.Empty(t, questions, dialed)

			n.connect()
			require.Error(t, <-answers)
			require.Error(t, <-questions)
			_, err = client.Write([]byte("question"))
			require.Error(t, err)
			require.NoError(t, client.Close())
			require.Empty(t, n.conns)
		}
	})
}

// reads returns the result of the next read.
func reads(c net.Conn) <-chan error {
	result := make(chan error, 1)
	go func() {
		_, err := c.Read(make([]byte, 16))
		result <- err
	}()
	return result
}
