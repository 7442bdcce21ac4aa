package page

import "time"

// waits is a histogram: how many have waited for less than 1, 5, 30 and 60 s, and how many for longer.
type waits [5]int

var waitsBelow = [...]time.Duration{time.Second, 5 * time.Second, 30 * time.Second, time.Minute}

func (w *waits) add(waited time.Duration) {
	i := 0
	for i < len(waitsBelow) && waited >= waitsBelow[i] {
		i++
	}
	w[i]++
}
