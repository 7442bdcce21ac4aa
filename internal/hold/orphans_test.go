package hold

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry/internal/clock"
)

// The program is stopped for a thousandth of the time, however many registries look for goroutines that are gone.
func TestGone_RegistriesShareTheirLooks(t *testing.T) {
	alike := func() *OrphanWatch { return NewOrphanWatch(nil, clock.New(), nil, nil) }
	one, other := alike(), alike()
	require.Same(t, one.Scan, other.Scan)
}
