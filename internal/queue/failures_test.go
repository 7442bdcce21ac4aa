package queue

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// Each failure has the fate of its row, whatever other traits it has.
func TestFates(t *testing.T) {
	all := []state{stateAsk, stateLook, stateSure, stateAlone, stateTrace, stateTry}
	for name, c := range map[string]struct {
		at               []state
		what             traits
		next             state // stateHold: the same state again
		abandons, pauses bool
	}{
		"nothing will change":                      {all, lasting, stateEnded, false, false},
		"too few replicas have the lock, for good": {in1(stateSure), lasting, stateEnded, false, false},
		"a ticket, no reply":                       {in1(stateAsk), passing, stateAsk, true, true},
		"a ticket, not permitted":                  {in1(stateAsk), lasting | refused, stateEnded, false, false},
		"a ticket, then a look, not permitted":     {in1(stateAsk), lasting | refused | followUp, stateBackOff, false, false},
		"a ticket, then a look, no reply":          {in1(stateAsk), passing | followUp, stateAsk, true, true},
		"a ticket, while the slot moves":           {in1(stateAsk), passing | betweenNodes, stateAsk, true, true},
		"a ticket, while the slot moves for long":  {in1(stateAsk), passing | betweenNodes | stuck, stateAlone, true, false},
		"a look, no reply":                         {in1(stateLook), passing, stateLook, false, true},
		"a look, not permitted":                    {in1(stateLook), lasting | refused, stateBackOff, false, false},
		"a look, while the slot moves for long":    {in1(stateLook), passing | betweenNodes | stuck, stateAlone, false, false},
		"a try between tickets":                    {in1(stateAlone), passing | betweenNodes, stateAsk, true, true},
		"a try, no reply":                          {[]state{stateTry, stateTrace}, passing, stateHold, false, true},
		"a trace, not permitted":                   {in1(stateTrace), lasting | refused, stateTry, false, false},
		"a trace, while the slot moves":            {in1(stateTrace), passing | betweenNodes, stateTry, false, false},
		"a try, not permitted":                     {in1(stateTry), lasting | refused, stateEnded, false, false},
		"a renewal, no reply":                      {in1(stateSure), passing, stateLook, false, true},
		"too few replicas have the lock":           {in1(stateSure), passing | givenBack, stateAsk, false, true},
		"it was over before it counted":            {in1(stateSure), notOwner, stateAsk, false, false},
		"it was over before it counted, again":     {in1(stateSure), notOwner | repeated, stateAsk, false, true},
	} {
		for _, at := range c.at {
			f, next := fateOf(at, c.what), c.next
			if next == stateHold {
				next = at
			}
			require.Equal(t, next, f.next, "%s, %d", name, at)
			require.Equal(t, c.abandons, f.abandons, name)
			require.Equal(t, c.pauses, f.pauses, name)
		}
	}
	for _, at := range all { // no failure is without a row, and none leads to a hold
		for what := range traits(1 << 9) {
			if what&(passing|lasting) == 0 {
				continue
			}
			f := fateOf(at, what)
			require.NotZero(t, f.at, "%d %b", at, what)
			require.NotEqual(t, stateHold, f.next)
		}
	}
}

func in1(s state) []state { return []state{s} }
