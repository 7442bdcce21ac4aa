package lockregistry

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// The program is stopped for a thousandth of the time, however many registries look for goroutines that are gone.
func TestGone_RegistriesShareTheirLooks(t *testing.T) {
	reg := embedded(t)
	alike := func() *background { return newBackground(&Registry{client: reg.client, transport: reg.transport}) }
	one, other := alike(), alike()
	require.Same(t, one.gone.census, other.gone.census)
}
