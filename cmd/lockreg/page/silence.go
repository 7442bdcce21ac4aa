package page

import (
	"bytes"
	"context"
	"errors"
	"time"

	"github.com/lockregistry/lockregistry"
	"github.com/lockregistry/lockregistry/observe"
)

// inspector is a source that can be asked something small, as a registry can. A pass may take long although Redis answers.
type inspector interface {
	Inspect(ctx context.Context, path string) (observe.LockInfo, error)
}

const (
	probePath  = "lockreg"
	probeEach  = 500 * time.Millisecond
	probeLimit = 800 * time.Millisecond // with the pause it is less than two seconds until streams are told
)

// watch asks something small again and again while there are streams, and tells them when there is no answer.
func (f *feed) watch(over <-chan struct{}) {
	source, ok := f.source.(inspector)
	if !ok {
		return
	}
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	f.watchers.Go(func() {
		select {
		case <-over:
			stop()
		case <-ctx.Done():
		}
	})
	seen := time.Now()
	for ctx.Err() == nil {
		asking, cancel := context.WithTimeout(ctx, probeLimit)
		_, err := source.Inspect(asking, probePath)
		cancel()
		switch {
		case ctx.Err() != nil:
		case errors.Is(err, lockregistry.ErrUnavailable), errors.Is(err, context.DeadlineExceeded):
			f.silence(seen.UnixMilli())
		default: // an error of Redis is an answer
			seen = time.Now()
			f.silence(0)
		}
		select {
		case <-time.After(probeEach):
		case <-ctx.Done():
		}
	}
	f.silence(0)
}

// silence tells the streams since when Redis does not answer; 0: it does.
func (f *feed) silence(since int64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.silent == since {
		return
	}
	f.silent = since
	if since == 0 && f.skip != nil {
		f.skip() // the shown state is old
	}
	text := silenceEvent(since)
	for s := range f.streams {
		if s.stale && f.now != nil { // take tells it
			continue
		}
		s.queue = append(s.queue, text)
		s.queued += len(text)
		select {
		case s.wake <- struct{}{}:
		default:
		}
	}
}

func silenceEvent(since int64) []byte {
	var out bytes.Buffer
	event(&out, "silence", struct {
		Since int64 `json:"since"` // Unix ms; 0: it answers
	}{since})
	return out.Bytes()
}
