package lockregistry.peer;

import java.time.Duration;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.Optional;

/** What a request can ask of a semaphore. */
final class PermitCommands {

	private final Permits permits;

	private final Request request;

	PermitCommands(Permits permits, Request request) {
		this.permits = permits;
		this.request = request;
	}

	Map<String, String> run(String command, int port) throws Exception {
		return Map.of("value", switch (command) {
			case "enter" -> String.join(" ", enter());
			case "leave" -> Integer.toString(this.permits.release(ids()));
			case "extend" -> Boolean.toString(
					this.permits.extend(this.request.text("ids"), this.request.millis("lease").orElseThrow()));
			case "setpermits" -> {
				this.permits.set(this.request.number("n"));
				yield "";
			}
			case "beginpermits" -> Boolean.toString(this.permits.begin(this.request.number("n")));
			case "permits" -> this.permits.available() + " " + this.permits.number();
			case "crowd" -> Integer.toString(crowd(port));
			default -> throw new IllegalArgumentException("no command is called '" + command + "'");
		});
	}

	private List<String> ids() {
		return Arrays.asList(this.request.text("ids").split(" "));
	}

	private List<String> enter() throws InterruptedException {
		return this.permits.acquire(this.request.optional("n").map(Integer::parseInt).orElse(1), this.request.millis("wait"),
				this.request.millis("lease"));
	}

	/**
	 * Enters for a while, again and again, and counts in Redis how many are inside. Fails when these are too many, and
	 * returns how often it was in.
	 */
	private int crowd(int port) throws Exception {
		long until = System.nanoTime() + this.request.millis("for").orElseThrow().toNanos();
		int most = this.request.number("most");
		int entered = 0;
		try (PlainRedis redis = new PlainRedis(port)) {
			for (; System.nanoTime() < until; entered++) {
				int n = this.request.optional("n").isPresent() ? 1 + entered % this.request.number("n") : 1;
				List<String> ids = this.permits.acquire(n, Optional.empty(), this.request.millis("lease"));
				long inside = redis.add(this.request.text("counter"), n);
				if (inside > most) {
					throw new IllegalStateException(inside + " are inside");
				}
				Thread.sleep(this.request.millis("work").map(Duration::toMillis).orElse(0L));
				redis.add(this.request.text("counter"), -n);
				if (this.permits.release(ids) != n) {
					throw new IllegalStateException("permits were lost");
				}
			}
		}
		return entered;
	}
}
