package lockregistry.peer;

import java.time.Instant;
import java.time.temporal.ChronoUnit;

/** Wall-clock time, which other processes of this machine can compare with their own. */
final class Clock {

	private Clock() {
	}

	static String micros() {
		return Long.toString(ChronoUnit.MICROS.between(Instant.EPOCH, Instant.now()));
	}
}
