package lockregistry

import (
	"context"
	"errors"

	"github.com/lockregistry/lockregistry/internal/protocol"
	"github.com/lockregistry/lockregistry/internal/tenure"
)

// A hold's fencing token is drawn by a script while the hold owns the key, or as it becomes the owner; see
// internal/protocol/lua/fencing.lua. So later owners draw later, and each draw gives more than all before. The scripts that
// make other holds the owner, of waiting calls, draw nothing: the grantee does so itself before its call returns. So the
// granter need not know about tokens. Docs/fencing.md has the cases.
//
// One draw gives tokensDrawn tokens in a row. Those after the first are for the next owners of this process to whom the hold is
// handed. They are more than those of earlier owners and less than those of any later draw, for as long as the hold has
// the key; once it has not, and another draw was made, they are too small, as they should be.

// WithFencing gives each hold a fencing token: a number that is larger than those of all earlier holds of its path. A program
// passes it on to what the lock protects, a row of a database for instance, which refuses a late writer: a process that was
// stopped for longer than its lease. See [Hold.Token] and [TokenFrom]. Locking again keeps the token.
//
// Holders in registries without this option, and Java's in Spring's format, draw no token: numbers grow over the grants to
// those that do. With LayoutRedisson plain locks share their numbers with Redisson's RFencedLock. The writers of read-write
// locks have tokens of their own in either layout, readers have none.
//
// Tokens are no less than the server's time in microseconds, but for those of LayoutRedisson. A counter for each path keeps the
// last one for an hour; with LayoutRedisson forever. Docs/fencing.md says what happens after a failover that has lost it.
//
// The key is set by a script then. A call that waited in the queue needs a round trip more. Default: no tokens, and no counters.
func WithFencing() Option { return func(s *settings) { s.fencing = true } }

// Token returns the hold's fencing token, see [WithFencing]; 0 for a registry without it and for the reader of a
// [ReadWriteLock]. It stays what it is when the hold is lost or released. Of a hold on several paths it is that of [Hold.Path].
func (h *Hold) Token() uint64 {
	if h == nil {
		return 0
	}
	return h.token
}

// TokenFrom returns the fencing token of the hold whose context ctx is, or is derived from: of [Registry.Do], [Lock.Context] or
// [Hold.Context], the innermost one if there are several. It is false when there is none, or when that hold has no token, see
// [Hold.Token]; also with a [NewOwner] within the hold's context. When the hold is over the token is still there: a write that
// comes late is refused for it.
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

// errReserved: a lock of such a path would be in the place of what another one needs.
var errReserved = errors.New("a path that ends in :waiters or :fencing, with a part in braces before, or in }:registry, is " +
	"reserved for what locks and registries keep beside the keys")

// errApart: the fencing counter must be in the slot of its key.
var errApart = errors.New("a cluster keeps the fencing counter of this lock in another slot than its key, because of the " +
	"braces in its name: leave them out, or put a part of the name into one pair of them, such as {order}42")

// fenceable tells whether the counter of a lock that wants tokens is within reach.
func (l *Lock) fenceable() bool {
	p := &l.redis
	return !p.Fencing || !l.reg.queues.Cluster || protocol.HashTag(p.Format.Counter(p.Key)) == protocol.HashTag(p.Key)
}
