package queue

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry/internal/clock"
	"github.com/lockregistry/lockregistry/internal/hold"
	"github.com/lockregistry/lockregistry/internal/protocol"
)

// Each side of a read-write lock expects the messages of its own grants: if one side finds a grant, the other side still expects
// the message of its own.
func TestEachSideExpectsItsOwnGrant(t *testing.T) {
	timer := clock.New()
	kind := hold.Kind{Format: protocol.NewWrite(protocol.Config{}), Env: &hold.Env{Clock: timer, NumberAt: len("me:")}}
	var all Shared
	var reader, writer Path
	reader.Init(all.Kind(kind, Reads), "", nil, nil, &writer)
	writer.Init(all.Kind(kind, Writes), "", nil, nil, &writer)
	for i, side := range []*Path{&reader, &writer} {
		h := hold.New(&side.Path, fmt.Sprintf("me:%d", i+1), hold.Terms{})
		h.AwaitMessage(timer.Now().Add(time.Minute))
		require.Zero(t, side.NoteKept(h))
	}
	require.True(t, reader.expects("1"))
	require.True(t, writer.expects("2"))
	require.False(t, reader.expects("2"))
	require.False(t, writer.expects("1"))
	require.False(t, writer.expects("3"))
}
