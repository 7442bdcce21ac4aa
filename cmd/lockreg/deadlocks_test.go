package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry"
	"github.com/lockregistry/lockregistry/cmd/lockreg/internal/view"
	"github.com/lockregistry/lockregistry/observe"
)

// finds is a registry that finds what it is made of.
type finds []observe.Deadlock

func (f finds) Deadlocks(context.Context) ([]observe.Deadlock, error) { return f, nil }

type fails struct{ error }

func (f fails) Deadlocks(context.Context) ([]observe.Deadlock, error) { return nil, f.error }

func TestDeadlocksShown(t *testing.T) {
	t.Parallel()
	label := observe.Label{Registry: "r", Host: "web-1", PID: 4711, Name: "billing"}
	found := finds{{Waits: []observe.DeadlockWait{
		{Path: "b", Owner: "goroutine 17", Holds: []string{"a", "x\x1b"}, Label: label, Since: time.Now().Add(-90 * time.Second)},
		{Path: "a", Owner: "hold of b", Holds: []string{"b"}},
	}}}
	run := func(f finder, asJSON bool) (code int, out, errs string) {
		var stdout, stderr bytes.Buffer
		a := &app{out: &stdout, err: &stderr, json: asJSON}
		code = a.tell(a.deadlocks(context.Background(), f, func() string { return "; why" }))
		return code, stdout.String(), stderr.String()
	}

	code, out, errs := run(found, false)
	assert.Equal(t, 1, code)
	assert.Empty(t, errs)
	assert.Regexp(t, `(?m)^OWNER +PROCESS +HOLDS +WAITS FOR +SINCE$`, out)
	assert.Regexp(t, `(?m)^goroutine 17 +billing on web-1, process 4711 +a, x\\x1b +b +1m3\ds ago$`, out)
	assert.Regexp(t, `(?m)^hold of b +a Go process, not known +b +a +unknown$`, out)

	code, out, _ = run(found, true)
	assert.Equal(t, 1, code)
	var deadlocks []view.Deadlock
	require.NoError(t, json.Unmarshal([]byte(out), &deadlocks))
	require.Len(t, deadlocks, 1)
	assert.Equal(t, []string{"a", "x\x1b"}, deadlocks[0].Waits[0].Holds)

	code, out, _ = run(finds{}, false)
	assert.Zero(t, code)
	assert.Equal(t, "no deadlocks; why\n", out)
	code, out, _ = run(finds{}, true)
	assert.Zero(t, code)
	assert.Equal(t, "[]\n", out)

	code, _, errs = run(fails{lockregistry.ErrUnavailable}, false)
	assert.Equal(t, 69, code)
	assert.Contains(t, errs, "Redis did not answer")
	code, _, _ = run(fails{errors.New("bad input")}, false)
	assert.Equal(t, 64, code)
}

func TestShort(t *testing.T) {
	t.Parallel()
	for d, want := range map[time.Duration]string{
		0: "0s", 1500 * time.Microsecond: "2ms", 1540 * time.Millisecond: "1.5s", 30 * time.Second: "30s", 150 * time.Second: "2m30s",
		10 * time.Minute: "10m00s", 2*time.Hour + 3*time.Minute + 59*time.Second: "2h03m", 72 * time.Hour: "3 days",
	} {
		assert.Equal(t, want, short(d))
	}
}
