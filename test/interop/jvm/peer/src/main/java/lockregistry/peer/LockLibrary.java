package lockregistry.peer;

import java.time.Duration;
import java.util.Optional;

/** A Java lock library that is to share locks with the Go one. */
public interface LockLibrary {

	LockRegistry open(Settings settings);

	/**
	 * How a registry is set up.
	 *
	 * @param port of the Redis server on this machine
	 * @param prefix of every key: a lock's key is {@code prefix:path}
	 * @param mode how a waiter learns of a release, or what servers there are, in the library's own words; empty for its
	 * default
	 * @param lease of a lock that is taken without one; empty for the library's default
	 * @param idle pause between two tries; empty for the library's default
	 * @param renewal whether held locks are renewed, for the libraries that leave the choice
	 */
	record Settings(int port, String prefix, Optional<String> mode, Optional<Duration> lease, Optional<Duration> idle,
			boolean renewal) {
	}
}
