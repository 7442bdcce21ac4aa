package lockregistry

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// The program is stopped for a thousandth of the time, however many registries look for goroutines that are gone.
func TestGone_RegistriesShareTheirLooks(t *testing.T) {
	client := embedded(t).client
	one, other := newBackground(&Registry{client: client}), newBackground(&Registry{client: client})
	require.Same(t, one.gone.census, other.gone.census)
}
