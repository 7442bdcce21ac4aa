package peer

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"maps"
	"sync"
)

// queued is how many requests may wait for one thread before Serve reads no
// further.
const queued = 64

// Serve is the other side: it reads requests until in ends and has each carried
// out by a goroutine that stands for the thread which the request names.
func Serve(in io.Reader, out io.Writer, run func(request Fields) (Fields, error)) error {
	var (
		writing sync.Mutex
		threads = map[string]chan Fields{}
	)
	answer := func(request Fields) {
		reply := Fields{"id": request["id"], "begin": Now()}
		result, err := run(request)
		maps.Copy(reply, result)
		reply["end"] = Now()
		if err != nil {
			failure := &RemoteError{Class: fmt.Sprintf("%T", err), Message: err.Error()}
			_ = errors.As(err, &failure)
			reply["error"], reply["message"] = failure.Class, failure.Message
		}
		writing.Lock()
		defer writing.Unlock()
		_, _ = io.WriteString(out, reply.line())
	}
	defer func() {
		for _, thread := range threads {
			close(thread)
		}
	}()
	lines := bufio.NewScanner(in)
	lines.Buffer(nil, longest)
	for lines.Scan() {
		request, err := parse(lines.Text())
		if err != nil {
			return err
		}
		thread := threads[request["thread"]]
		if thread == nil {
			thread = make(chan Fields, queued)
			threads[request["thread"]] = thread
			go func() {
				for request := range thread {
					answer(request)
				}
			}()
		}
		thread <- request
	}
	return lines.Err()
}
