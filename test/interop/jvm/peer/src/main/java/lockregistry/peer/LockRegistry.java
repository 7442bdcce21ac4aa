package lockregistry.peer;

import java.time.Duration;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.locks.Lock;

/**
 * The locks of one prefix, as one library keeps them. What a library cannot do stays unsupported here, so that a test
 * which asks for it fails instead of testing something else.
 */
public interface LockRegistry extends AutoCloseable {

	/** The kinds of lock that a path can name. */
	enum Kind {
		PLAIN, READ, WRITE, FENCED, SPIN, FAIR, NONREENTRANT
	}

	Lock obtain(String path, Kind kind);

	default void lock(Lock lock, Duration lease) {
		throw new UnsupportedOperationException("this library has no lease for one lock() alone");
	}

	default boolean tryLock(Lock lock, Duration wait, Duration lease) throws InterruptedException {
		throw new UnsupportedOperationException("this library has no lease for one tryLock() alone");
	}

	default boolean tryLock(Lock lock, Duration wait) throws InterruptedException {
		return lock.tryLock(wait.toMillis(), TimeUnit.MILLISECONDS);
	}

	/** Locks, and returns the fencing token. */
	default long fence(Lock lock) {
		throw new UnsupportedOperationException("this library has no fencing tokens");
	}

	default void renew(String path, Duration lease) {
		throw new UnsupportedOperationException("this library cannot renew a lock");
	}

	/** Whether the calling thread holds the lock, by the library's own word. */
	default boolean isHeld(Lock lock) {
		throw new UnsupportedOperationException("this library does not tell who holds a lock");
	}

	/** The semaphore of a path, whose permits have ids unless it is anonymous. */
	default Permits permits(String path, boolean anonymous) {
		throw new UnsupportedOperationException("this library has no semaphores");
	}

	/** Begins to campaign for the leadership of a role. */
	default Campaign campaign(String role) {
		throw new UnsupportedOperationException("this library elects no leaders");
	}

	/** What campaigns for a role, and leads when it is elected. */
	interface Campaign {

		boolean leads();

		/** Gives the leadership to others, and campaigns again. */
		void giveUp();

		void stop();
	}

	@Override
	void close();
}
