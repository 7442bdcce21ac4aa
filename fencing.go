package lockregistry

import (
	"context"

	"github.com/lockregistry/lockregistry/internal/tenure"
)

// A script draws a hold's fencing tokens while the hold owns the key, or as it becomes the owner, see lua/fencing.lua. So later
// owners draw later, and get larger tokens. A script that grants the lock to a waiting call draws nothing: that call draws its
// tokens before it returns. So the granter need not know about tokens.
//
// Tokens that a hold's owner does not use are kept for the owners to whom the hold is handed. They are smaller than those of
// later draws. So they are too small, as they should be, once the hold has lost the key and another hold has drawn.

// WithFencing gives each hold a fencing token: a number that is larger than the tokens of all earlier holds of its path. Default:
// no tokens.
//
// Pass the token to the store that the lock protects, such as a database. The store must reject a write whose token is smaller
// than one that it has already seen: such a write comes from a process that was stopped for longer than its lease. See
// [Hold.Token] and [TokenFrom].
//
// # Details
//
// Locking again keeps the token. With this option a script sets the key, and a call that waited in the queue needs one more round
// trip. A counter for each path keeps the last token for an hour, in Redisson's format indefinitely.
//
//   - Holders in registries without this option draw no tokens; neither do Java's holders in Spring's format.
//   - With [WithRedissonLayout] plain locks share the counter with Redisson's RFencedLock.
//   - Writers of read-write locks have their own counter in either layout. Readers have no tokens.
//   - Tokens are at least the server's time in microseconds, except in Redisson's format. If a failover loses the counter, tokens
//     continue from the new master's clock, which must not be behind. In Redisson's format the same tokens are issued again.
func WithFencing() Option { return func(s *settings) { s.fencing = true } }

// Token returns the hold's fencing token, see [WithFencing]. It is 0 in a registry without fencing, and for the reader of a
// [ReadWriteLock]. It does not change when the hold is lost or released. For a hold on several paths it is the token of the first
// path; see [Hold.TokenOf] for the others.
func (h *Hold) Token() uint64 {
	if h == nil {
		return 0
	}
	return h.token
}

// TokenFrom returns the fencing token of the hold that ctx carries, see [WithFencing]. Ctx is a context from [Registry.Do],
// [Lock.Context] or [Hold.Context], or a child of it. If it carries several holds, the innermost one counts.
//
// TokenFrom reports false when ctx carries no hold, when the hold has no token, see [Hold.Token], and when [ContextWithOwner] was
// called within the hold's context. It still returns the token when the hold is over, so that a late write is rejected.
func TokenFrom(ctx context.Context) (uint64, bool) {
	if ctx == nil {
		return 0, false
	}
	t := tenure.CarriedBy(ctx).Innermost()
	if t == nil {
		return 0, false
	}
	return t.Token, t.Token > 0
}
