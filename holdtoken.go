package lockregistry

// tokensDrawn is how many tokens the scripts draw at a time. So few that the counter does not get ahead of the clock while no
// more than 10 000 draws a second are made, which is what one path can have.
const tokensDrawn = 100

// draw gives the hold tokens, from this one on. Nobody but the call that obtains it knows the hold yet.
func (h *hold) draw(first uint64) {
	if h.path.fencing {
		e := h.own() // mutant: tokens used up
		e.token, e.spare = first, tokensDrawn-1
	}
}

// current is the token of the hold's owner; 0 when it has none.
func (h *hold) current() uint64 {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.extra().token
}

// nextToken makes the next token that of the owner to be. It reports false when there is none left. The caller holds the mutex.
func (h *hold) nextToken() bool {
	if !h.path.fencing {
		return true
	}
	if h.extra().spare == 0 {
		return false
	}
	e := h.own()
	e.token++ // mutant: same token
	e.spare--
	return true
}
