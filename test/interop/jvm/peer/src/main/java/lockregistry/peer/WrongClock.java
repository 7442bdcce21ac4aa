package lockregistry.peer;

/** Stands for System where a library is to have a wrong clock; see StartWrong in internal/peer. */
public final class WrongClock {

	private static final long AHEAD = Long.getLong("lockregistry.ahead", 0);

	private WrongClock() {
	}

	public static long currentTimeMillis() {
		return System.currentTimeMillis() + AHEAD;
	}
}
