package background_test

import (
	"errors"
	"log/slog"
	"testing"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry/internal/background"
	"github.com/lockregistry/lockregistry/internal/health"
	"github.com/lockregistry/lockregistry/internal/transport"
)

// single is a client of one server, which is not asked.
type single struct{ rueidis.Client }

func (single) Mode() rueidis.ClientMode { return rueidis.ClientModeStandalone }

// When tasks in the background fail, and when they succeed again, this is reported and logged, but not after Close.
func TestWork_TellsOfFailuresUntilItIsClosed(t *testing.T) {
	silent, way := errors.New("no answer"), transport.New(&single{})
	defer way.Close()
	var told []error
	var lines []string
	w := background.New(&single{}, way, background.Tells{
		Verify:   func(string) { require.Fail(t, "there is no other server") },
		Renewing: func(_ int, failure error) { told = append(told, failure) },
		Log:      func(_ slog.Level, line string, _ ...slog.Attr) { lines = append(lines, line) },
	})
	w.Health.Note(way.First, health.Outcome{Tasks: 1, Failure: silent, Sent: way.Clock.Now()})
	w.Health.Note(way.First, health.Outcome{Tasks: 1, Succeeded: true, Wrote: true, Sent: way.Clock.Now().Add(1)})
	require.Equal(t, []error{silent, nil}, told)
	require.Len(t, lines, 2)
	require.Contains(t, lines[0], "does not answer")

	w.Close()
	w.Wait()
	w.Health.Note(way.First, health.Outcome{Tasks: 1, Failure: silent, Sent: way.Clock.Now()})
	require.Len(t, told, 2)
	require.Len(t, lines, 2)
}
