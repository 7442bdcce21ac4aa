package several_test

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry/internal/fault"
	"github.com/lockregistry/lockregistry/internal/several"
)

var errOther = errors.New("NOPERM no")

func TestOrdered(t *testing.T) {
	t.Parallel()
	got, err := several.Ordered([]string{"c", "a", "c", "B", "a"})
	require.NoError(t, err)
	require.Equal(t, []string{"B", "a", "c"}, got)
	_, err = several.Ordered(nil)
	require.EqualError(t, err, "the list of paths is empty")
	many := make([]string, 20_001)
	for i := range many {
		many[i] = strconv.Itoa(i)
	}
	_, err = several.Ordered(many[1:])
	require.NoError(t, err)
	_, err = several.Ordered(many)
	require.EqualError(t, err, "20001 paths: AcquireAll takes 20000 at most")
}

func TestScripts(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		paths   string
		cluster bool
		want    string
	}{
		"none":                 {"", false, ""},
		"one":                  {"a", false, "a"},
		"all":                  {"a b c", false, "a,b,c"},
		"some by themselves":   {"a b- c d-", false, "a,c b- d-"},
		"all by themselves":    {"a- b-", false, "a- b-"},
		"slots":                {"{1}a {2}b {1}c {3}d {2}e", true, "{1}a,{1}c {2}b,{2}e {3}d"},
		"slots, one by itself": {"{1}a {2}b {1}c-", true, "{1}a {2}b {1}c-"},
	} {
		scripts := several.Scripts(strings.Fields(c.paths), c.cluster,
			func(path string) string { return path }, func(path string) bool { return strings.HasSuffix(path, "-") })
		var got []string
		for _, paths := range scripts {
			got = append(got, strings.Join(paths, ","))
		}
		require.ElementsMatch(t, strings.Fields(c.want), got, name)
	}
	var sizes []int
	for _, paths := range several.Scripts(make([]int, 2100), false, nil, nil) {
		sizes = append(sizes, len(paths))
	}
	require.Equal(t, []int{1000, 1000, 100}, sizes)
}

func TestCall_GoesOn(t *testing.T) {
	t.Parallel()
	once, waits, limited := several.Call{}, several.Call{Patient: true}, several.Call{Patient: true, Limited: true}
	fast := several.Call{Patient: true, Limited: true, FailFast: true}
	tooFar, unavailable := fault.OverdueError{Failure: fault.NoAnswer}, fault.AsUnavailable(errOther)
	for _, c := range []struct {
		call    several.Call
		err     error
		goesOn  bool
		failure error
	}{
		{once, fault.Busy, false, fault.Busy},
		{waits, fault.Busy, true, nil},
		{fast, fault.Busy, true, nil},
		{waits, fault.KeyGone.Err(), true, nil},
		{once, fault.Apart, true, nil},
		{fast, fault.Apart, true, nil},
		{waits, tooFar, true, fault.NoAnswer},
		{fast, tooFar, false, nil},
		{waits, fault.Late, true, fault.Late},
		{once, fault.Late, false, fault.Late},
		{waits, unavailable, false, unavailable},
		{limited, unavailable, true, unavailable},
		{fast, unavailable, false, nil},
		{limited, errOther, false, errOther},
		{waits, context.Canceled, false, context.Canceled},
	} {
		goesOn, failure := c.call.GoesOn(c.err)
		require.Equal(t, c.goesOn, goesOn, "%+v: %v", c.call, c.err)
		require.Equal(t, c.failure, failure, "%+v: %v", c.call, c.err)
	}
}

func TestBlamed(t *testing.T) {
	t.Parallel()
	held, silent := fault.HeldError{End: context.Canceled}, fault.Explain(context.Canceled, fault.AsUnavailable(fault.NoAnswer))
	for _, c := range []struct {
		blamed, taken int
		errs          []error
	}{
		{0, -1, []error{nil, nil}},
		{0, 0, []error{fault.Busy, nil, fault.Busy}},
		{2, 1, []error{nil, fault.Busy, errOther, fault.Late, fault.Busy}},
		{1, 1, []error{context.Canceled, fault.Busy, nil}},
		{1, 1, []error{context.Canceled, held, nil}},
		{0, 2, []error{silent, context.DeadlineExceeded, fault.Busy}},
		{1, -1, []error{nil, context.DeadlineExceeded, context.DeadlineExceeded}},
	} {
		require.Equal(t, c.blamed, several.Blamed(c.errs), "%v", c.errs)
		require.Equal(t, c.taken, several.Taken(c.errs), "%v", c.errs)
	}
}

func TestReply_Outcome(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		reply several.Reply
		want  several.Outcome
	}{
		{several.Reply{}, several.Granted},
		{several.Reply{Late: true}, several.Suspect},
		{several.Reply{Few: true}, several.Unknown},
		{several.Reply{Few: true, Late: true}, several.Unknown},
		{several.Reply{Astray: true}, several.Elsewhere},
		{several.Reply{Astray: true, Late: true}, several.Elsewhere},
		{several.Reply{Astray: true, Err: fault.NotSent}, several.Elsewhere},
		{several.Reply{Taken: 2}, several.Refused},
		{several.Reply{Taken: 2, Late: true}, several.Refused},
		{several.Reply{Taken: 2, Err: errOther}, several.Refused},
		{several.Reply{Err: fault.NotSent}, several.Refused},
		{several.Reply{Err: context.DeadlineExceeded}, several.Unknown},
		{several.Reply{Err: fault.NoAnswer}, several.Unknown},
	} {
		require.Equal(t, c.want, c.reply.Outcome(), "%+v", c.reply)
	}
}

func TestReleased(t *testing.T) {
	t.Parallel()
	all := []string{"a", "b", "c"}
	for _, c := range []struct {
		free        []int64
		err         error
		left, found []string
	}{
		{[]int64{1, 1, 1}, nil, nil, all},
		{[]int64{1, 0, 1}, nil, []string{"b"}, []string{"a", "c"}},
		{[]int64{0, 0, 0}, nil, all, nil},
		{nil, fault.NotSent, all, nil},
		{nil, fault.NoAnswer, nil, all},
	} {
		left, found := several.Released(all, c.free, c.err)
		require.Equal(t, c.left, left, "%v %v", c.free, c.err)
		require.Equal(t, c.found, found, "%v %v", c.free, c.err)
	}
}
