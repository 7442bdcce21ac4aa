package queue

import (
	"testing"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry/internal/protocol"
	"github.com/lockregistry/lockregistry/internal/transport"
)

// single is a client of one server, which is not asked.
type single struct{ rueidis.Client }

func (single) Mode() rueidis.ClientMode { return rueidis.ClientModeStandalone }

// However often the masters of a cluster change, exactly the proofs of the present masters are kept.
func TestProofs_OfServersThatLeadNoMoreAreForgotten(t *testing.T) {
	var p proofs
	one, other := &protocol.Needs{}, &protocol.Needs{}
	stays := transport.New(&single{}).First
	p.prove(proofOf{stays, one}, nil) // there is none to forget
	for range 10 {
		now := transport.New(&single{}).First
		leads := func(n *transport.Node) bool { return n == now || n == stays }
		p.prove(proofOf{now, one}, leads)
		p.prove(proofOf{now, other}, leads)
		require.True(t, p.proven(proofOf{stays, one}))
		require.True(t, p.proven(proofOf{now, one}))
		require.True(t, p.proven(proofOf{now, other}))
		require.Len(t, *p.known.Load(), 3)
	}
}
