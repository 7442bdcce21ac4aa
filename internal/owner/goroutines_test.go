package owner

import (
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestGoroutineScan_LivingGoroutines(t *testing.T) {
	numbers, quit, done := make(chan ID), make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		numbers <- Calling()
		<-quit
	}()
	other := <-numbers
	all := new(GoroutineScan).living()
	require.True(t, all[other])
	require.True(t, all[Calling()])
	close(quit)
	<-done
	require.Eventually(t, func() bool {
		all := new(GoroutineScan).living()
		return all != nil && !all[other]
	}, 10*time.Second, time.Millisecond)
}

// Output that cannot be read proves nothing: no goroutine is taken for gone because of it.
func TestGoroutineScan_GoroutinesOfWhatIsPrinted(t *testing.T) {
	own := Calling()
	for printed, want := range map[string]map[ID]bool{
		"goroutine %d [running]:\nmain.main()\n\t/goroutine 9 x.go:1\ncreated by main in goroutine 8\n\n" +
			"goroutine 7 [select, 3 minutes]:\n": {own: true, 7: true},
		"goroutine %d gp=0xc0 m=0 mp=0x1 [running]:\n\ngoroutine 7 gp=0xc1 m=nil [sleep]:\n": {own: true, 7: true},
		"fiber %d [running]:\n\ngoroutine 7 [sleep]:\n":                                      nil,
	} {
		require.Equal(t, want, goroutinesOf(fmt.Appendf(nil, printed, own)))
	}
}

// The program is stopped for a thousandth of the time, however many ask.
func TestGoroutineScan_Rests(t *testing.T) {
	var c GoroutineScan
	all, rest, looked := c.Look(math.MaxInt)
	require.True(t, looked)
	require.True(t, all[Calling()])
	require.Positive(t, rest)
	c.next = time.Now().Add(time.Minute) // a long rest
	all, rest, looked = c.Look(math.MaxInt)
	require.False(t, looked)
	require.Nil(t, all)
	require.InDelta(t, time.Minute, rest, float64(10*time.Second))
	c.next = time.Time{}
	all, rest, looked = c.Look(0)
	require.True(t, looked)
	require.Nil(t, all, "there are too many")
	require.Equal(t, 1, c.Counts())
	require.Less(t, rest, time.Minute)
}

// A process that stood still during a count looks again before long.
func TestGoroutineScan_RestsNoLongerThanItMust(t *testing.T) {
	require.Equal(t, 20*time.Second, restAfter(20*time.Millisecond))
	require.Equal(t, 10*time.Minute, restAfter(time.Minute))
	require.Equal(t, 10*time.Minute, restAfter(math.MaxInt64))
}
