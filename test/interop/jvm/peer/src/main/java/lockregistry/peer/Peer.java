package lockregistry.peer;

import java.io.BufferedReader;
import java.io.FileDescriptor;
import java.io.FileOutputStream;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.net.URLEncoder;
import java.nio.charset.StandardCharsets;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.stream.Collectors;

/**
 * Drives a lock library for another process. Each line of standard input is a request, each line of standard output
 * the reply to one, both written as in the query part of a URL:
 *
 * <pre>
 * id=7&amp;thread=a&amp;do=lock&amp;registry=r&amp;path=orders%2F1
 * id=7&amp;begin=1764000000000000&amp;end=1764000000000900
 * id=8&amp;begin=...&amp;end=...&amp;error=java.lang.IllegalStateException&amp;message=You+do+not+own+lock+at+...
 * </pre>
 *
 * Requests for one thread run one after the other on that thread; requests for different threads run side by side, so
 * replies come in any order. {@code begin} and {@code end} are microseconds since 1970. The program ends with its
 * standard input.
 */
public final class Peer {

	private final Commands commands;

	private final PrintStream replies = new PrintStream(new FileOutputStream(FileDescriptor.out), false,
			StandardCharsets.UTF_8);

	private final Map<String, ExecutorService> threads = new HashMap<>();

	private Peer(LockLibrary library) {
		this.commands = new Commands(library);
	}

	public static void serve(LockLibrary library) throws IOException {
		// Whatever a library prints must not be taken for a reply.
		System.setOut(System.err);
		new Peer(library).readRequests();
		// Not a plain return: the libraries leave threads behind that would keep the process alive.
		System.exit(0);
	}

	private void readRequests() throws IOException {
		BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
		for (String line = lines.readLine(); line != null; line = lines.readLine()) {
			Request request = new Request(line);
			String thread = request.optional("thread").orElse("main");
			this.threads.computeIfAbsent(thread, name -> Executors.newSingleThreadExecutor(r -> new Thread(r, name)))
					.execute(() -> answer(request));
		}
	}

	private void answer(Request request) {
		Map<String, String> reply = new LinkedHashMap<>();
		reply.put("id", request.optional("id").orElse(""));
		reply.put("begin", Clock.micros());
		try {
			reply.putAll(this.commands.run(request));
		}
		catch (Throwable failure) {
			failure.printStackTrace();
			reply.put("error", failure.getClass().getName());
			reply.put("message", String.valueOf(failure.getMessage()));
			if (failure.getCause() != null) {
				reply.put("cause", failure.getCause().toString());
			}
		}
		reply.put("end", Clock.micros());
		write(reply);
	}

	private synchronized void write(Map<String, String> reply) {
		this.replies.print(reply.entrySet()
				.stream()
				.map(field -> field.getKey() + '=' + URLEncoder.encode(field.getValue(), StandardCharsets.UTF_8))
				.collect(Collectors.joining("&", "", "\n")));
		this.replies.flush();
	}
}
