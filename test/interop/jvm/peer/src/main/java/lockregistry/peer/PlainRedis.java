package lockregistry.peer;

import java.io.BufferedInputStream;
import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.io.InputStream;
import java.net.InetAddress;
import java.net.Socket;
import java.nio.charset.StandardCharsets;
import java.util.Optional;

/**
 * A connection of its own to Redis that reads and writes plain values: what the locks protect must not travel through
 * the clients that take the locks.
 */
final class PlainRedis implements AutoCloseable {

	private final Socket socket;

	private final InputStream in;

	PlainRedis(int port) throws IOException {
		this.socket = new Socket(InetAddress.getLoopbackAddress(), port);
		this.socket.setTcpNoDelay(true);
		this.in = new BufferedInputStream(this.socket.getInputStream());
	}

	Optional<String> get(String key) throws IOException {
		return Optional.ofNullable(call("GET", key));
	}

	void set(String key, String value) throws IOException {
		call("SET", key, value);
	}

	/** The number at a key, 0 when there is none yet. */
	long number(String key) throws IOException {
		return get(key).map(Long::valueOf).orElse(0L);
	}

	private String call(String... words) throws IOException {
		ByteArrayOutputStream request = new ByteArrayOutputStream();
		request.writeBytes(("*" + words.length + "\r\n").getBytes(StandardCharsets.UTF_8));
		for (String word : words) {
			byte[] bytes = word.getBytes(StandardCharsets.UTF_8);
			request.writeBytes(("$" + bytes.length + "\r\n").getBytes(StandardCharsets.UTF_8));
			request.writeBytes(bytes);
			request.writeBytes("\r\n".getBytes(StandardCharsets.UTF_8));
		}
		request.writeTo(this.socket.getOutputStream());

		String reply = line();
		return switch (reply.charAt(0)) {
			case '+', ':' -> reply.substring(1);
			case '$' -> reply.equals("$-1") ? null : line();
			default -> throw new IOException("Redis answered " + words[0] + " with " + reply);
		};
	}

	private String line() throws IOException {
		ByteArrayOutputStream line = new ByteArrayOutputStream();
		for (int b = this.in.read(); b != '\n'; b = this.in.read()) {
			if (b < 0) {
				throw new IOException("Redis closed the connection");
			}
			line.write(b);
		}
		return line.toString(StandardCharsets.UTF_8).stripTrailing();
	}

	@Override
	public void close() throws IOException {
		this.socket.close();
	}
}
