package belief

import "github.com/lockregistry/lockregistry/internal/clock"

// Refusals say when to repeat a question that a server has refused. The zero value is for one that was not asked yet.
type Refusals struct {
	inARow int
	ended  bool // the connection has ended at the last question, although the server answers other ones
	until  clock.Instant
}

// Allowed reports whether the question may be asked now.
func (r *Refusals) Allowed(now clock.Instant) bool { return now >= r.until }

// Refused is the event that the server has refused the question: each time is an entry in its log.
func (r *Refusals) Refused(now clock.Instant) {
	r.inARow++
	r.ended, r.until = false, now.Add(AgainAfter(r.inARow))
}

// Answered is the event that the server has answered it.
func (r *Refusals) Answered() { r.inARow, r.ended = 0, false }

// Unclear is the event that there was no reply, from which nothing follows.
func (r *Refusals) Unclear() { r.ended = false }

// Ended is the event that the connection, which others share, has ended at the question, although the server answers other ones.
// The first time may be chance.
func (r *Refusals) Ended(now clock.Instant) (chance bool) {
	if r.ended = !r.ended; r.ended {
		return true
	}
	r.Avoid(now)
	return false
}

// Avoid has the question not asked for MostAgain.
func (r *Refusals) Avoid(now clock.Instant) { r.until = now.Add(MostAgain) }
