package lockregistry.peer;

import java.time.Duration;
import java.util.Optional;

/** A semaphore. */
public interface Permits {

	/**
	 * Acquires a permit, and returns its id; empty if none was free. Without a wait it waits for as long as it takes.
	 */
	String acquire(Optional<Duration> wait, Optional<Duration> lease) throws InterruptedException;

	/** Returns how many were released. */
	int release(String id);

	/** Sets the number unless there is one. */
	boolean begin(int permits);
}
