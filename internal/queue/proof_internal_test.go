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
	p.add(proofOf{stays, one}, nil) // there is none to forget
	for range 10 {
		now := transport.New(&single{}).First
		leads := func(n *transport.Node) bool { return n == now || n == stays }
		p.add(proofOf{now, one}, leads)
		p.add(proofOf{now, other}, leads)
		require.Contains(t, *p.known.Load(), proofOf{stays, one})
		require.Contains(t, *p.known.Load(), proofOf{now, one})
		require.Contains(t, *p.known.Load(), proofOf{now, other})
		require.Len(t, *p.known.Load(), 3)
	}
}
