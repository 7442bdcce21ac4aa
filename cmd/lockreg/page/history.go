package page

import (
	"slices"
	"time"
)

const (
	fineFor     = 10 * time.Minute // for so long samples are a second apart
	betweenFine = time.Second
	coarseFor   = 6 * time.Hour // and then ten, for so long
	betweenOld  = 10 * time.Second

	// mostSamples bounds the memory, also where every other sample is a gap.
	mostSamples = int(fineFor/betweenFine) + int(coarseFor/betweenOld) + 200
)

// sample is a point of the charts: when (Unix ms), from when on nothing is known and why (a gap), and for each prefix what is in
// [sums.figures]. It does not change.
type sample []int64

const (
	sampleHead = 2 // of a sample, before the figures
	figures    = 5 // of a prefix: locks held, waiters, oldest wait (ms), grants and handoffs so far
)

// Why nothing is known from then on.
const (
	known    int64 = iota
	nobody         // looked
	noAnswer       // of Redis
)

func (s sample) at() int64 { return s[0] }
func (s sample) gap() bool { return s[1] != known }

// merged is two samples as one: the most that was held, and that waited. Counts are those of the first, which has the time.
func (s sample) merged(later sample) sample {
	both := slices.Clone(s)
	for i := sampleHead; i < len(both); i++ {
		if (i-sampleHead)%figures < 3 {
			both[i] = max(both[i], later[i])
		}
	}
	return both
}

// history is what the charts show. It stays without browsers.
type history struct {
	samples []sample
	old     int // so many of them are thinned out
}

// add adds a sample, unless the last one is too young.
func (h *history) add(s sample) {
	if n := len(h.samples); n > 0 && !h.samples[n-1].gap() && s.at()-h.samples[n-1].at() < betweenFine.Milliseconds() {
		return
	}
	h.samples = append(h.samples, s)
	h.thin(s.at())
}

// pause says that nothing is known from a time on.
func (h *history) pause(at time.Time, why int64) {
	if n := len(h.samples); n > 0 && !h.samples[n-1].gap() {
		h.samples = append(h.samples, sample{max(at.UnixMilli(), h.samples[n-1].at()), why})
		h.thin(at.UnixMilli())
	}
}

// thin thins out what is no longer young, and forgets what is too old.
func (h *history) thin(now int64) {
	for h.old < len(h.samples) && h.samples[h.old].at() < now-fineFor.Milliseconds() {
		s := h.samples[h.old]
		if h.old > 0 {
			before := h.samples[h.old-1]
			if !s.gap() && !before.gap() && s.at()-before.at() < betweenOld.Milliseconds() {
				h.samples[h.old-1] = before.merged(s)
				h.samples = slices.Delete(h.samples, h.old, h.old+1)
				continue
			}
		}
		h.old++
	}
	drop := max(0, len(h.samples)-mostSamples)
	for drop < len(h.samples) && h.samples[drop].at() < now-coarseFor.Milliseconds() {
		drop++
	}
	if drop > 0 {
		h.samples = slices.Delete(h.samples, 0, drop)
		h.old = max(0, h.old-drop)
	}
}

// all is a copy.
func (h *history) all() []sample { return append([]sample{}, h.samples...) }
