package peer

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

// deaf is the environment variable that makes this program read nothing, and end only when it is killed.
const deaf = "LOCKREGISTRY_DEAF_PEER"

func TestMain(m *testing.M) {
	if os.Getenv(deaf) != "" {
		<-time.After(time.Hour)
	}
	Main(carryOut)
	goleak.VerifyTestMain(m)
}

// misfit is an error with a type of its own.
type misfit struct{}

func (misfit) Error() string { return "it does not fit" }

// carryOut runs in the other process, and does what the request's "do" says.
func carryOut(request Fields) (Fields, error) {
	switch request["do"] {
	case "echo":
		return Fields{"text": request["text"]}, nil
	case "fail":
		return nil, misfit{}
	case "exception":
		return nil, &RemoteError{Class: "java.lang.IllegalStateException", Message: "not mine"}
	case "print":
		fmt.Print(request["text"])
	case "hang":
		<-time.After(time.Hour)
	case "die":
		fmt.Fprint(os.Stderr, "last words")
		os.Exit(3)
	}
	return Fields{}, nil
}

func again(t *testing.T) *Peer {
	t.Helper()
	p, err := Again("other")
	require.NoError(t, err)
	t.Cleanup(func() {
		_ = p.Kill() // an error: it has ended before
		<-p.gone
	})
	return p
}

// within is long enough for any machine.
func within(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(cancel)
	return ctx
}

func TestPeer_CarriesOutRequests(t *testing.T) {
	t.Parallel()
	p := again(t)
	text := "a&b=c%\n\x00ü"
	reply, err := p.Do(within(t), "main", "echo", Fields{"text": text})
	require.NoError(t, err)
	require.Equal(t, text, reply.Fields["text"])
	require.False(t, reply.End.Before(reply.Begin))
	require.WithinDuration(t, time.Now(), reply.End, time.Minute)

	_, err = p.Do(within(t), "main", "fail", nil)
	require.Equal(t, &RemoteError{Class: "peer.misfit", Message: "it does not fit"}, err)
	_, err = p.Do(within(t), "main", "exception", nil)
	require.EqualError(t, err, "java.lang.IllegalStateException: not mine")
	require.NoError(t, p.Close())
}

// All calls of a process that dies end, and say what it wrote last.
func TestPeer_DiesAndItsCallsSaySo(t *testing.T) {
	t.Parallel()
	p := again(t)
	hangs := p.Send("first", "hang", nil)
	_, err := p.Do(within(t), "second", "die", nil)
	require.EqualError(t, err, "other has ended (exit status 3); its standard error ends:\nlast words")
	_, err = hangs.Wait(within(t))
	require.ErrorContains(t, err, "last words")

	_, err = p.Do(within(t), "third", "echo", nil)
	require.ErrorContains(t, err, "exit status 3", "a call that comes later")
	require.EqualError(t, p.Close(), "other: exit status 3; its standard error ends:\nlast words")
	require.ErrorContains(t, p.Kill(), "cannot kill other")
}

func TestPeer_IsKilled(t *testing.T) {
	t.Parallel()
	p := again(t)
	hangs := p.Send("main", "hang", nil)
	require.NoError(t, p.Kill())
	_, err := hangs.Wait(within(t))
	require.ErrorContains(t, err, "other has ended (signal: killed)")
	require.ErrorContains(t, p.Close(), "signal: killed")
}

// Lines that are no replies, or replies to nothing, do no harm. A reply without times is an error.
func TestPeer_WritesGarbage(t *testing.T) {
	t.Parallel()
	p := again(t)
	for _, text := range []string{
		"\n", "garbage\n", "%zz\n", "id=%\n", "id=99&begin=1&end=1\n", "id=1&begin=1&end=1\n",
		strings.Repeat("x", 1<<20) + "\n",
	} {
		_, err := p.Do(within(t), "main", "print", Fields{"text": text})
		require.NoError(t, err)
	}
	reply, err := p.Do(within(t), "main", "echo", Fields{"text": "sense"})
	require.NoError(t, err)
	require.Equal(t, "sense", reply.Fields["text"])

	call := p.Send("main", "print", Fields{"text": "id=9&begin=soon&end=1\n"}) // the ninth request is this one
	_, err = call.Wait(within(t))
	require.ErrorContains(t, err, "field begin of a reply is no time")
	require.NoError(t, p.Close())
}

// A call waits no longer than its context, other threads go on, and Close kills what does not end.
func TestPeer_Hangs(t *testing.T) {
	t.Parallel()
	cmd := exec.CommandContext(t.Context(), os.Args[0])
	cmd.Env = append(os.Environ(), deaf+"=1")
	p, err := Start("deaf", cmd)
	require.NoError(t, err)
	p.limit = time.Millisecond
	call := p.Send("main", "echo", nil)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = call.Wait(ctx)
	require.ErrorIs(t, err, context.Canceled)
	require.ErrorContains(t, err, "no reply to echo map[] on thread main of deaf")
	require.EqualError(t, p.Close(), "deaf did not end within 1ms")
	_, err = call.Wait(within(t))
	require.ErrorContains(t, err, "deaf has ended (signal: killed)")
}

// A request that does not fit into the pipe waits for a process that reads nothing. Close ends the process.
func TestPeer_HangsAndReadsNothing(t *testing.T) {
	t.Parallel()
	cmd := exec.CommandContext(t.Context(), os.Args[0])
	cmd.Env = append(os.Environ(), deaf+"=1")
	p, err := Start("deaf", cmd)
	require.NoError(t, err)
	p.limit = time.Millisecond
	sent := make(chan *Call)
	go func() { sent <- p.Send("main", "echo", Fields{"text": strings.Repeat("x", 1<<20)}) }()
	for entered := false; !entered; {
		p.mu.Lock()
		entered = len(p.pending) == 1
		p.mu.Unlock()
	}
	require.EqualError(t, p.Close(), "deaf did not end within 1ms")
	_, err = (<-sent).Wait(within(t))
	require.Error(t, err)
}

func TestPeer_OfNoProgram(t *testing.T) {
	t.Parallel()
	_, err := Start("none", exec.CommandContext(t.Context(), "/nonexistent/program"))
	require.ErrorContains(t, err, "cannot start none")
}

// servePiped serves requests in this process. Each reply is a line.
func servePiped(run func(Fields) (Fields, error), requests string) (replies []Fields, err error) {
	var out strings.Builder
	var carriedOut sync.WaitGroup
	carriedOut.Add(strings.Count(requests, "do="))
	in, done := io.Pipe()
	go func() {
		_, _ = io.WriteString(done, requests)
		carriedOut.Wait()
		_ = done.Close()
	}()
	written := writer(func(p []byte) (int, error) {
		defer carriedOut.Done()
		return out.Write(p)
	})
	err = Serve(in, written, run)
	_ = in.Close()
	for line := range strings.Lines(out.String()) {
		fields, broken := parse(strings.TrimSuffix(line, "\n"))
		err = errors.Join(err, broken)
		replies = append(replies, fields)
	}
	return replies, err
}

type writer func(p []byte) (int, error)

func (w writer) Write(p []byte) (int, error) { return w(p) }

// Requests for one thread are carried out in their order, those for others meanwhile.
func TestServe_ThreadsOfTheirOwn(t *testing.T) {
	t.Parallel()
	reached := make(chan bool)
	replies, err := servePiped(func(request Fields) (Fields, error) {
		switch request["do"] {
		case "wait":
			<-reached
		case "reach":
			reached <- true
		}
		return Fields{}, nil
	}, "id=1&thread=a&do=wait\nid=2&thread=a&do=nothing\nid=3&thread=b&do=reach\n")
	require.NoError(t, err)
	var ofA []string
	for _, reply := range replies {
		if reply["id"] != "3" {
			ofA = append(ofA, reply["id"])
		}
	}
	require.Equal(t, []string{"1", "2"}, ofA)
	require.Len(t, replies, 3)
}

func TestServe_EndsAtGarbage(t *testing.T) {
	t.Parallel()
	_, err := servePiped(carryOut, "%zz\n")
	require.ErrorContains(t, err, "no line of the protocol")
}

func TestTail_KeepsTheEnd(t *testing.T) {
	t.Parallel()
	kept := &tail{}
	for _, text := range []string{"begin", strings.Repeat("x", tailSize), "end"} {
		n, err := kept.Write([]byte(text))
		require.NoError(t, err)
		require.Equal(t, len(text), n)
	}
	require.Equal(t, strings.Repeat("x", tailSize-3)+"end", kept.String())
}
