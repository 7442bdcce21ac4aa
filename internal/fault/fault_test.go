package fault_test

import (
	"context"
	"fmt"
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

func TestKind(t *testing.T) {
	t.Parallel()
	for want, err := range map[string]error{
		"":                  nil,
		"_OTHER":            io.EOF,
		"taken":             fmt.Errorf("about a key: %w", fault.Taken),
		"unavailable":       fault.Join(context.Canceled, fault.Unavailable), // a context that ended while the server was silent
		"canceled":          context.Canceled,
		"deadline_exceeded": context.DeadlineExceeded,
		"wrong_type":        fault.WrongType,
	} {
		require.Equal(t, want, fault.Kind(err))
	}
}
