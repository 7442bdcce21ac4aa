package torture

import (
	"errors"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry"
	"github.com/lockregistry/lockregistry/internal/netfault"
)

// Holds as values, whose releases have unknown outcomes.

// TestReleasesOfUnknownOutcome expects a path that is to stay taken to do so, whatever happens to the command that releases it
// and to its reply. By the time of the second release, the lock is another owner's.
func TestReleasesOfUnknownOutcome(t *testing.T) {
	t.Parallel()
	for _, system := range []system{library, redisson} {
		server := serve(t)
		for _, b := range breakages {
			t.Run(system.name+"/"+b.name, func(t *testing.T) {
				t.Parallel()
				const least = 2 * time.Second
				s := newStage(t, system, server, settings{Lease: lease, Poll: poll, Handoff: -1})
				a, other := s.a.(libraryProcess).registry, s.b.(libraryProcess).registry
				began := time.Now()
				h, err := a.Acquire(s.Context(), s.path, lockregistry.AtLeast(least))
				require.NoError(s, err)
				s.proxy.Next(netfault.Match{Name: "release"}, b.fate)
				if err := h.Release(b.context(s.Context(), s)); err != nil {
					require.ErrorIs(s, err, lockregistry.ErrUnavailable)
				}
				if b.mute() {
					s.proxy.CutAll()
				}
				s.await("the release", func() bool {
					left, err := s.server.Do("PTTL", keyOf(s.path))
					ms, _ := strconv.Atoi(left)
					return err == nil && time.Duration(ms)*time.Millisecond <= least
				})
				early, err := a.Acquire(s.soon(s.Context()), s.path, lockregistry.NoWait())
				if err == nil { // the machine is busy
					require.GreaterOrEqual(s, time.Since(began), least, "its own registry got in")
					require.NoError(s, unlessLate(early.Release(s.Context())))
				} else if !errors.Is(err, lockregistry.ErrUnavailable) {
					require.ErrorIs(s, err, lockregistry.ErrTaken)
				}
				next, err := other.Acquire(s.soon(s.Context()), s.path)
				require.NoError(s, err)
				took := time.Since(began)
				require.GreaterOrEqual(s, took, least, "somebody got in")
				require.Less(s, took, least+s.limit)
				unharmed := s.unharmed()
				require.ErrorIs(s, h.Release(s.Context()), lockregistry.ErrNotOwner)
				if _, err := a.Acquire(s.soon(s.Context()), s.path, lockregistry.NoWait()); !errors.Is(err, lockregistry.ErrUnavailable) {
					require.ErrorIs(s, err, lockregistry.ErrTaken)
				}
				unharmed()
				require.NoError(s, next.Release(s.Context()))
				s.free()
				require.Empty(s, s.found)
			})
		}
	}
}
