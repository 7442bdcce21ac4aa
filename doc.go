// Package lockregistry locks paths across processes with Redis, so that one process at a time ships an order, one node of a fleet
// runs a job, or at most five calls go to a partner at once. It is a Go port of Spring Integration's RedisLockRegistry, and
// shares its locks with Java services on the same Redis.
//
// [Open] makes a [Registry] for a prefix, and the registry has one [Lock] for each path:
//
//	registry, err := lockregistry.Open(ctx, "redis://localhost:6379", "orders")
//	...
//	defer registry.Close()
//	err = registry.Do(ctx, "42", func(ctx context.Context) error { return ship(ctx) })
//
// There are three ways to lock a path. They wait in the same queues, and exclude each other:
//
//   - [Registry.Do] locks, runs a function, and unlocks. The function gets a context that ends when the lock is lost.
//   - [Registry.Acquire] returns the lock as a value, a [Hold]. Any goroutine may release it.
//   - [Lock.Lock] and [Lock.Unlock] are for code that is ported from Java. The calling goroutine owns the lock, as a thread does
//     there.
//
// [Registry.Once] runs a job on one of several nodes. [Registry.AcquireAll] locks several paths together. [Registry.ReadWrite]
// returns read-write locks. A [Semaphore] admits several holders at a time, counted across all processes.
//
// A lock has two halves. The local half is a mutex among the goroutines of this process: reentrant, and first in, first out.
// Goroutines that wait for it do not touch Redis. The other half is the key "prefix:path" in Redis, which keeps other processes
// out. The key has a lease: when its holder crashes, the key expires.
//
// # Owners
//
// A [Hold] is an owner of its own, and cannot be locked again. A lock taken by Lock or Do belongs to the goroutine, or to the
// owner in the context, if [ContextWithOwner] made one. The owner may lock again, and must unlock as often as it has locked. If
// another owner calls Unlock, it gets [ErrNotOwner].
//
// # Leases
//
// A hold is valid only during its lease, minus a margin for clock drift:
//
//	valid until = sent + lease - 1 % - 1 ms
//
// Here sent is the time just before the command that granted or renewed the hold was sent. Once the hold is no longer valid, it
// is lost, whether or not Redis can be reached: contexts of [Lock.Context] are cancelled with the cause [ErrLockLost], and Lock
// and Unlock by the owner return that error, see [Lock.Unlock].
//
// [Lock.Do], [DoValue], [Lock.Acquire], [Registry.AcquireAll] and [Registry.Once] know when the work ends. Until then they renew
// the lease every third of its length. [Lease] and [WithLease] set that length, which is how long a crash keeps others out.
// [AtMost] limits how long the work may take.
//
// Locks taken by [Lock.Lock] and [Lock.TryLock] are not renewed, as in Spring. For these, use a lease that is long enough,
// [WithRenewal], or [Lock.Renew].
//
// # Waiting
//
// For each path one goroutine of a process waits on Redis. The others queue behind it in order of arrival. The processes queue in
// Redis: a release makes the first one the owner, and wakes no other process.
//
// Java does not know this queue. A waiter learns that Java has released the lock from the server itself (client-side caching),
// from messages on the channels that Spring and Redisson use, or by polling. It uses the first of these that the server and the
// user's permissions allow. See [WithPolling].
//
// When a goroutine unlocks while others of its process wait, the lock may pass to the next one without a command to Redis, and
// the key stays. [WithHandoff] limits how long that may go on. After that, other processes get their turn.
//
// # Formats
//
// A lock is a string with an expiry, as in Spring. With [WithRedissonLayout] it is a hash, as Redisson's RLock writes it. In
// either case [Registry.ReadWrite] returns read-write locks in the format of Redisson's RReadWriteLock: readers share the lock,
// and a writer excludes all others. A [Semaphore] has a format of its own, which Java does not know.
//
// # Errors
//
// Every error of a lock is a [*LockError] that names the operation and the key. Test for its reason with [errors.Is]:
// [ErrNotOwner], [ErrLockLost], [ErrTaken], [ErrUnavailable], [ErrClosed], [ErrCapacity], [ErrDeadlock], [ErrWrongType],
// [context.Canceled] and so on.
//
// # For operators
//
// Package inspect shows who holds the locks of a prefix and who waits for them, in all processes. It frees locks whose holders
// are gone. Package observe has the types with which a registry reports about itself.
package lockregistry
