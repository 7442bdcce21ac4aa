// Package hold is this process's possession of a key in Redis: a lease that is renewed, contexts that end with it, and the
// owners that have it one after another, or share it. The package knows no locks: a hold reports to its lock through [Above].
// Background commands wait in a [Schedule]; package background sends them.
//
// A hold has the four states of its [lease.State]:
//
//	asked   the call that obtains it is under way       its owner has nothing yet
//	live    the key is this hold's until a known time    the owner has the lock
//	lost    it cannot be relied on any more              Unlock and Renew return ErrLockLost, and contexts end with it
//	over    its owners have released it, or were evicted the lock is another's, or free
//
//	state  what happens                                  then   and
//	asked  Grant, GrantShort                             live   it has a time at which to look at it, if it is renewed
//	asked  the same, and too little of the lease is left asked  the call gives up, or asks again
//	live   the reply to a renewal: done                  live   for a lease from when the renewal was sent
//	live   the reply: failed, or late                    live   until the same time as before at most; sent again
//	live   the reply: another has the key, or none       lost   KeyTaken, KeyGone
//	live   the reply comes when the time is over         lost   RenewedTooLate
//	live   the time is over, as Valid or a look finds    lost   LeaseOver
//	live   Lose, GrantAgain                              lost   Forced, GrantedTwice
//	live   HandOff, then SetTerms by the next owner      live   contexts of the former owner end
//	live   Orphan of all owners, without contexts        live   it is not renewed any more
//	live   End                                           over   contexts end with context.Canceled
//	lost   the key's lease must have ended               lost   Clear has it removed, if it may be there still
//	lost   End                                           over   nothing: contexts have ended
//
// A lost hold stays lost, whatever replies come later.
//
// A loss and a waiter in this process find each other, whichever comes last:
//
//	the waiter    queues           then takes the hold's mutex, in Attend, and sees a loss
//	the loss      marks the hold   with the mutex, and then calls Lost, where the lock looks for waiters
//
// Attend does not take the mutex if the hold is watched already. A loss clears watched before it calls Lost, so if Attend still
// saw watched set, Lost finds the waiter.
//
// While a hold's mutex is held, the schedule's may be taken, and Clear, Count and RoundTrip be called; nothing else.
package hold
