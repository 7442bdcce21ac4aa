package lockregistry.peer;

import java.time.Duration;
import java.util.List;
import java.util.Optional;

/** A semaphore whose permits have ids. */
public interface Permits {

	/** Acquires as many as asked for, or none: then the list is empty. Without a wait it waits for as long as it takes. */
	List<String> acquire(int permits, Optional<Duration> wait, Optional<Duration> lease) throws InterruptedException;

	/** Returns how many were released. */
	int release(List<String> ids);

	boolean extend(String id, Duration lease);

	void set(int permits);

	/** Sets the number unless there is one. */
	boolean begin(int permits);

	int available();

	int number();
}
