package main

import (
	"math"
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestUnitsAreWrittenWithThreeDigits(t *testing.T) {
	assert.Equal(t, "61.2 µs", nanoseconds.write(61_234))
	assert.Equal(t, "950 ns", nanoseconds.write(950.4))
	assert.Equal(t, "1.50 s", nanoseconds.write(1.5e9))
	assert.Equal(t, "1 248 B", byteCount.write(1248))
	assert.Equal(t, "104 MB", byteCount.write(104e6))
	assert.Equal(t, "72 000/s", perSecond.write(72_000))
	assert.Equal(t, "99.3 %", share.write(0.993))
	assert.Equal(t, "3.00", count.write(3))
	assert.Equal(t, "0", count.write(0))
	assert.Equal(t, "0.033", fine(1.0/30))
	assert.Equal(t, "1.024", fine(1.0242))
}

func TestWhatWasNotMeasuredIsADash(t *testing.T) {
	for _, u := range []unit{count, nanoseconds, byteCount, perSecond, share, times} {
		assert.Equal(t, "–", u.write(math.NaN()))
	}
	assert.Equal(t, "–", fine(math.NaN()))
	assert.Equal(t, "–", fine(math.Inf(1)))
}
