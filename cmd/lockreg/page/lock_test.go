package page_test

import (
	"context"
	"encoding/json"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry"
	"github.com/lockregistry/lockregistry/inspect"
)

// asked is a source that can be asked for one path.
type asked struct {
	*fake

	times   atomic.Int64 // not by the page itself
	probes  atomic.Int64 // by the page itself
	failure error
}

func (a *asked) Inspect(_ context.Context, path string) (inspect.Lock, error) {
	if path != "lockreg" {
		a.times.Add(1)
	} else {
		a.probes.Add(1)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.locks[path], a.failure
}

// Without a pass, or for what that has not found, the source is asked for one path once. What is free is said to be.
func TestOneLockWhileNobodyLooks(t *testing.T) {
	t.Parallel()
	source := &asked{fake: newFake()}
	source.set(someLock("a b", 2))
	h := newPage(t, source)
	one := func(path string) (code int, answer struct {
		At   int64 `json:"at"`
		Lock *struct {
			Key string `json:"key"`
		} `json:"lock"`
		Note string `json:"note"`
	}) {
		got := request(h, "GET", "/lock?path="+path)
		require.NoError(t, json.Unmarshal([]byte(got.body()), &answer))
		return got.code(), answer
	}
	code, answer := one("a+b")
	require.Equal(t, 200, code)
	require.Equal(t, "orders:a b", answer.Lock.Key)
	require.WithinDuration(t, time.Now(), time.UnixMilli(answer.At), time.Minute)
	code, answer = one("free")
	require.Equal(t, 200, code)
	require.Nil(t, answer.Lock)
	require.Equal(t, "nobody holds it, and nobody waits in Redis", answer.Note)
	require.WithinDuration(t, time.Now(), time.UnixMilli(answer.At), time.Minute)
	_, answer = one("")
	require.Contains(t, answer.Note, "no path is given")
	require.EqualValues(t, 2, source.times.Load())
	require.Zero(t, source.passes.Load())

	b := look(t, h)
	require.Eventually(t, func() bool { return strings.Contains(b.read(), `"path":"a b"`) }, 20*time.Second, time.Millisecond)
	_, answer = one("a+b")
	require.NotNil(t, answer.Lock)
	require.Empty(t, answer.Note)
	require.EqualValues(t, 2, source.times.Load(), "the last pass found it")

	source.do(func() { source.failure = lockregistry.ErrUnavailable })
	got := request(h, "GET", "/lock?path=free")
	require.Equal(t, 502, got.code())
	require.Contains(t, got.body(), `"error":"`)
}
