package belief

import "github.com/lockregistry/lockregistry/internal/clock"

// Refusals say when to repeat a question that a server has refused. The zero value is for a question that has not been asked
// yet.
type Refusals struct {
	inARow int
	ended  bool          // the connection has ended at the last question, although the server answers other ones
	until  clock.Instant // the question is not asked before this
}

// Allowed reports whether the question may be asked now.
func (r *Refusals) Allowed(now clock.Instant) bool { return now >= r.until }

// Refused is the event that the server has refused the question. Servers log refusals, so it is asked less often after each.
func (r *Refusals) Refused(now clock.Instant) {
	r.inARow++
	r.ended, r.until = false, now.Add(AgainAfter(r.inARow))
}

// Answered is the event that the server has answered it.
func (r *Refusals) Answered() { r.inARow, r.ended = 0, false }

// Unclear is the event that there was no reply, which says nothing.
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

// Avoid is the event that the question must not be asked for MostAgain.
func (r *Refusals) Avoid(now clock.Instant) { r.until = now.Add(MostAgain) }
