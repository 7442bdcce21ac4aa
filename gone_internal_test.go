package lockregistry

import (
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry/internal/owner"
)

func TestLivingGoroutines(t *testing.T) {
	numbers, quit, done := make(chan owner.ID), make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		numbers <- owner.Calling()
		<-quit
	}()
	other := <-numbers
	living := livingGoroutines(math.MaxInt)
	require.True(t, living[other])
	require.True(t, living[owner.Calling()])
	close(quit)
	<-done
	require.Eventually(t, func() bool {
		living := livingGoroutines(math.MaxInt)
		return living != nil && !living[other]
	}, 10*time.Second, time.Millisecond)
	require.Nil(t, livingGoroutines(1))
}

// What cannot be read tells nothing: nobody is taken for gone because of it.
func TestGoroutinesOfWhatIsPrinted(t *testing.T) {
	own := owner.Calling()
	for printed, want := range map[string]map[owner.ID]bool{
		"goroutine %d [running]:\nmain.main()\n\t/goroutine 9 x.go:1\ncreated by main in goroutine 8\n\n" +
			"goroutine 7 [select, 3 minutes]:\n": {own: true, 7: true},
		"goroutine %d gp=0xc0 m=0 mp=0x1 [running]:\n\ngoroutine 7 gp=0xc1 m=nil [sleep]:\n": {own: true, 7: true},
		"fiber %d [running]:\n\ngoroutine 7 [sleep]:\n":                                      nil,
	} {
		require.Equal(t, want, goroutinesOf(fmt.Appendf(nil, printed, own)))
	}
}

// The program is stopped for a thousandth of the time, however many registries look for goroutines that are gone.
func TestRegistriesShareTheirLooks(t *testing.T) {
	var c census
	living, rest, looked := c.look(math.MaxInt)
	require.True(t, looked)
	require.True(t, living[owner.Calling()])
	require.Positive(t, rest)
	c.next = time.Now().Add(time.Minute) // a long rest
	living, rest, looked = c.look(math.MaxInt)
	require.False(t, looked)
	require.Nil(t, living)
	require.InDelta(t, time.Minute, rest, float64(10*time.Second))
	c.next = time.Time{}
	living, rest, looked = c.look(0)
	require.True(t, looked)
	require.Nil(t, living, "there are too many")
	require.Less(t, rest, time.Minute)

	client := embedded(t).client
	one, other := newBackground(&Registry{client: client}), newBackground(&Registry{client: client})
	require.Same(t, one.gone.census, other.gone.census)
}
