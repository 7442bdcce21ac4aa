package fault_test

import (
	"context"
	"io"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry/internal/fault"
)

func TestJoin(t *testing.T) {
	require.NoError(t, fault.Join())
	require.NoError(t, fault.Join(nil, nil))
	require.Equal(t, io.EOF, fault.Join(nil, io.EOF))
	err := fault.Join(fault.Join(io.EOF, context.Canceled), nil, io.ErrClosedPipe)
	require.EqualError(t, err, "EOF; context canceled; io: read/write on closed pipe")
	for _, one := range []error{io.EOF, context.Canceled, io.ErrClosedPipe} {
		require.ErrorIs(t, err, one)
	}
	require.NotErrorIs(t, err, io.ErrUnexpectedEOF)
}
