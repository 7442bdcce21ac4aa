package lockregistry.peer;

import java.net.URLDecoder;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.HashMap;
import java.util.Map;
import java.util.Optional;

/** One line of standard input: fields written as in the query part of a URL, so that any text fits into one. */
final class Request {

	private final Map<String, String> fields = new HashMap<>();

	Request(String line) {
		for (String field : line.split("&")) {
			String[] nameAndValue = field.split("=", 2);
			if (nameAndValue.length == 2) {
				this.fields.put(decode(nameAndValue[0]), decode(nameAndValue[1]));
			}
		}
	}

	private static String decode(String text) {
		return URLDecoder.decode(text, StandardCharsets.UTF_8);
	}

	Optional<String> optional(String name) {
		return Optional.ofNullable(this.fields.get(name));
	}

	String text(String name) {
		return optional(name)
				.orElseThrow(() -> new IllegalArgumentException("the request has no field '" + name + "'"));
	}

	int number(String name) {
		return Integer.parseInt(text(name));
	}

	Optional<Duration> millis(String name) {
		return optional(name).map(Long::valueOf).map(Duration::ofMillis);
	}
}
