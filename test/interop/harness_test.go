package interop

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry/internal/peer"
	"github.com/lockregistry/lockregistry/test/interop/monitor"
)

// everyProgram has one row for each program that can be started.
func everyProgram() []library {
	programs := []library{golang("auto")}
	for _, java := range javas() {
		if java.module != programs[len(programs)-1].module {
			programs = append(programs, java)
		}
	}
	return programs
}

func TestPeersTellWhatWentWrong(t *testing.T) {
	t.Parallel()
	for _, lib := range everyProgram() {
		t.Run(lib.program(), func(t *testing.T) {
			t.Parallel()
			s := open(t, lib, opening{prefix: uniquePrefix()})
			var failure *peer.RemoteError

			_, err := s.do(t, "dance", with("path"))
			require.ErrorAs(t, err, &failure)
			require.Contains(t, failure.Message, "dance")

			_, err = wait(t, s.peer.Send("main", "lock", peer.Fields{"registry": "ünknown & \"odd\" = +%", "path": "path"}))
			require.ErrorAs(t, err, &failure)
			require.Contains(t, failure.Message, "ünknown & ")
		})
	}
}

// A test that waits for a peer which dies must fail at once, and say why.
func TestDeathOfPeerEndsItsCalls(t *testing.T) {
	t.Parallel()
	for _, lib := range []library{golang("auto"), springs[0]} {
		t.Run(lib.program(), func(t *testing.T) {
			t.Parallel()
			prefix := uniquePrefix()
			holder := open(t, lib, opening{prefix: prefix})
			doomed := start(t, "doomed "+lib.name, lib)
			waiter := openOn(t, doomed, lib, opening{prefix: prefix})
			watch := monitor.Start(t, server.Addr())

			holder.lock(t, "path")
			waiting := waiter.startWaiting(t, watch, "path")
			require.NoError(t, doomed.Kill())
			_, err := wait(t, waiting)
			require.ErrorContains(t, err, "has ended")
			_, err = waiter.do(t, "lock", with("path"))
			require.ErrorContains(t, err, "has ended")
			holder.unlock(t, "path")
		})
	}
}

// Two processes with the same Java library exclude each other. So the sides in the other tests are what they seem.
func TestJavaProcessesExcludeEachOther(t *testing.T) {
	t.Parallel()
	for _, lib := range javas() {
		t.Run(lib.name, func(t *testing.T) {
			t.Parallel()
			prefix := uniquePrefix()
			one := openOn(t, peers.get(t, lib, 1), lib, opening{prefix: prefix})
			other := openOn(t, peers.get(t, lib, 2), lib, opening{prefix: prefix})
			watch := monitor.Start(t, server.Addr())

			one.lock(t, "path")
			require.False(t, other.tryLock(t, "path"))
			waiting := other.startWaiting(t, watch, "path")
			one.unlock(t, "path")
			ended(t, waiting)
			require.False(t, one.tryLock(t, "path"))
			other.unlock(t, "path")
			requireKey(t, one.key("path"), false)
		})
	}
}
