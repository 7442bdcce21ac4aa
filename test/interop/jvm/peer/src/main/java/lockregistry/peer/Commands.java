package lockregistry.peer;

import java.time.Duration;
import java.util.Arrays;
import java.util.EnumSet;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.NoSuchElementException;
import java.util.Optional;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.locks.Lock;

import lockregistry.peer.LockRegistry.Kind;

/**
 * What a request can ask for. Every method runs on the thread that the request names, because a lock belongs to the
 * thread that took it.
 */
final class Commands {

	private final LockLibrary library;

	private final Map<String, LockRegistry> registries = new ConcurrentHashMap<>();

	private final Map<String, Integer> ports = new ConcurrentHashMap<>();

	private final Map<String, LockRegistry.Campaign> campaigns = new ConcurrentHashMap<>();

	Commands(LockLibrary library) {
		this.library = library;
	}

	/** Carries a request out and returns the fields of the reply. */
	Map<String, String> run(Request request) throws Exception {
		String command = request.text("do");
		return switch (command) {
			case "open" -> open(request);
			case "close" -> close(request);
			case "lock" -> lock(request);
			case "fence" -> Map.of("value", Long.toString(registry(request).fence(lockOf(request))));
			case "trylock" -> Map.of("value", Boolean.toString(tryLock(request)));
			case "unlock" -> unlock(request);
			case "renew" -> renew(request);
			case "isheld" -> Map.of("value", Boolean.toString(registry(request).isHeld(lockOf(request))));
			case "sleeps" -> Map.of("value", Boolean.toString(sleeps(request.text("of"), request.text("in"))));
			case "campaign" -> campaign(request);
			case "leads" -> Map.of("value", Boolean.toString(campaignOf(request).leads()));
			case "giveup" -> giveUp(request);
			case "stop" -> stop(request);
			case "hold" -> hold(request);
			case "count" -> count(request);
			case "write" -> write(request);
			case "verify" -> verify(request);
			case "share" -> share(request);
			case "enter" -> Map.of("value", permits(request).acquire(request.millis("wait"), request.millis("lease")));
			case "leave" -> Map.of("value", Integer.toString(permits(request).release(request.text("permit"))));
			case "beginpermits" -> Map.of("value", Boolean.toString(permits(request).begin(request.number("n"))));
			default -> throw new IllegalArgumentException("no command is called '" + command + "'");
		};
	}

	private Map<String, String> open(Request request) {
		LockRegistry registry = this.library.open(new LockLibrary.Settings(request.number("port"),
				request.text("prefix"), request.optional("mode"), request.millis("lease"), request.millis("idle"),
				request.optional("renewal").map(Boolean::parseBoolean).orElse(false)));
		this.ports.put(request.text("registry"), request.number("port"));
		this.registries.put(request.text("registry"), registry);
		return Map.of();
	}

	private Map<String, String> close(Request request) {
		registry(request).close();
		this.registries.remove(request.text("registry"));
		return Map.of();
	}

	private Permits permits(Request request) {
		return registry(request).permits(request.text("path"), request.optional("anonymous").isPresent());
	}

	private LockRegistry registry(Request request) {
		String name = request.text("registry");
		return Optional.ofNullable(this.registries.get(name))
				.orElseThrow(() -> new NoSuchElementException("no registry is called '" + name + "': open it first"));
	}

	private Lock lockOf(Request request) {
		return lockOf(request, request.optional("kind").orElse("plain"));
	}

	private Lock lockOf(Request request, String kind) {
		return registry(request).obtain(request.text("path"), Kind.valueOf(kind.toUpperCase(Locale.ROOT)));
	}

	private Map<String, String> lock(Request request) {
		Optional<Duration> lease = request.millis("lease");
		if (lease.isPresent()) {
			registry(request).lock(lockOf(request), lease.get());
		}
		else {
			lockOf(request).lock();
		}
		return Map.of();
	}

	private boolean tryLock(Request request) throws InterruptedException {
		Optional<Duration> lease = request.millis("lease");
		Optional<Duration> wait = request.millis("wait");
		if (lease.isPresent()) {
			return registry(request).tryLock(lockOf(request), wait.orElse(Duration.ZERO), lease.get());
		}
		if (wait.isPresent()) {
			return registry(request).tryLock(lockOf(request), wait.get());
		}
		return lockOf(request).tryLock();
	}

	private Map<String, String> unlock(Request request) {
		lockOf(request).unlock();
		return Map.of();
	}

	private Map<String, String> renew(Request request) {
		registry(request).renew(request.text("path"), request.millis("lease").orElseThrow());
		return Map.of();
	}

	private Map<String, String> campaign(Request request) {
		this.campaigns.put(campaignName(request), registry(request).campaign(request.text("path")));
		return Map.of();
	}

	private static String campaignName(Request request) {
		return request.text("registry") + ' ' + request.text("path");
	}

	private LockRegistry.Campaign campaignOf(Request request) {
		return Optional.ofNullable(this.campaigns.get(campaignName(request)))
				.orElseThrow(() -> new NoSuchElementException("nobody campaigns for that"));
	}

	private Map<String, String> giveUp(Request request) {
		campaignOf(request).giveUp();
		return Map.of();
	}

	private Map<String, String> stop(Request request) {
		campaignOf(request).stop();
		return Map.of();
	}

	/** Whether another thread sleeps within a class: only then can one that counts the sleepers wake it. */
	private static boolean sleeps(String thread, String type) {
		return Thread.getAllStackTraces()
				.entrySet()
				.stream()
				.anyMatch(entry -> entry.getKey().getName().equals(thread)
						&& EnumSet.of(Thread.State.WAITING, Thread.State.TIMED_WAITING).contains(entry.getKey().getState())
						&& Arrays.stream(entry.getValue()).anyMatch(frame -> frame.getClassName().equals(type)));
	}

	/** Holds the lock for a while; the reply says from when to when. */
	private Map<String, String> hold(Request request) throws InterruptedException {
		lock(request);
		String locked = Clock.micros();
		String unlocking;
		try {
			Thread.sleep(request.millis("for").orElseThrow().toMillis());
		}
		finally {
			unlocking = Clock.micros();
			unlock(request);
		}
		return Map.of("locked", locked, "unlocking", unlocking);
	}

	/**
	 * Adds one to a number in Redis, n times, in a way that loses updates unless the lock keeps others out. Beside the
	 * number stands who wrote it, so that the reply can tell how often the lock came from somebody else.
	 */
	private Map<String, String> count(Request request) throws Exception {
		String counter = request.text("counter");
		String name = request.text("as");
		AtomicInteger turns = new AtomicInteger();
		long longest = sections(request, redis -> {
			String[] numberAndWriter = redis.get(counter).orElse("0 nobody").split(" ", 2);
			if (!numberAndWriter[1].equals(name)) {
				turns.incrementAndGet();
			}
			redis.set(counter, (Long.parseLong(numberAndWriter[0]) + 1) + " " + name);
		});
		return Map.of("turns", turns.toString(), "longest", Long.toString(longest));
	}

	/** Changes two numbers in Redis that are equal whenever nobody writes. */
	private Map<String, String> write(Request request) throws Exception {
		String first = request.text("counter") + ":first";
		String second = request.text("counter") + ":second";
		Turns turns = new Turns();
		long longest = sections(request, redis -> {
			long before = redis.number(first);
			turns.see(before);
			turns.leave(before + 1);
			redis.set(first, Long.toString(before + 1));
			redis.set(second, Long.toString(before + 1));
		});
		return Map.of("turns", turns.toString(), "longest", Long.toString(longest));
	}

	/** Fails when a writer changed either of the two numbers while this reader looked at them. */
	private Map<String, String> verify(Request request) throws Exception {
		String first = request.text("counter") + ":first";
		String second = request.text("counter") + ":second";
		Turns turns = new Turns();
		long longest = sections(request, redis -> {
			long before = redis.number(first);
			long between = redis.number(second);
			long after = redis.number(first);
			if (before != between || between != after) {
				throw new IllegalStateException("a reader saw " + before + ", " + between + ", " + after);
			}
			turns.see(before);
		});
		return Map.of("turns", turns.toString(), "longest", Long.toString(longest));
	}

	/**
	 * Has sections for a while, one after another, each under the next one of the kinds of lock. The reply says how many, and
	 * how long it waited for a lock at most.
	 */
	private Map<String, String> share(Request request) throws Exception {
		List<Lock> locks = Arrays.stream(request.text("kinds").split(" ")).map(kind -> lockOf(request, kind)).toList();
		long work = request.millis("work").orElseThrow().toMillis();
		long until = System.nanoTime() + request.millis("for").orElseThrow().toNanos();
		int sections = 0;
		long longest = 0;
		for (; System.nanoTime() < until; sections++) {
			Lock lock = locks.get(sections % locks.size());
			long began = System.nanoTime();
			lock.lock();
			longest = Math.max(longest, System.nanoTime() - began);
			try {
				Thread.sleep(work);
			}
			finally {
				lock.unlock();
			}
		}
		return Map.of("sections", Integer.toString(sections), "longest", Long.toString(longest / 1_000_000));
	}

	/** Counts how often somebody else had written since the last section. */
	private static final class Turns {

		private long last;

		private int count;

		void see(long number) {
			if (number != this.last) {
				this.count++;
			}
			this.last = number;
		}

		void leave(long number) {
			this.last = number;
		}

		@Override
		public String toString() {
			return Integer.toString(this.count);
		}
	}

	private interface Section {

		void run(PlainRedis redis) throws Exception;
	}

	/**
	 * Runs a section n times, each under the lock, and stops at the first one that fails. Returns how long it waited for the
	 * lock at most, in milliseconds.
	 */
	private long sections(Request request, Section section) throws Exception {
		Lock lock = lockOf(request);
		long longest = 0;
		try (PlainRedis redis = new PlainRedis(this.ports.get(request.text("registry")))) {
			for (int i = 0; i < request.number("n"); i++) {
				long began = System.nanoTime();
				lock.lock();
				longest = Math.max(longest, System.nanoTime() - began);
				try {
					section.run(redis);
				}
				finally {
					lock.unlock();
				}
			}
		}
		return longest / 1_000_000;
	}
}
