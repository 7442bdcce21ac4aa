package lockregistry.peer.library;

import java.time.Duration;
import java.util.Locale;
import java.util.concurrent.locks.Lock;

import lockregistry.peer.LockLibrary;
import lockregistry.peer.LockRegistry;
import lockregistry.peer.Peer;
import org.springframework.data.redis.connection.lettuce.LettuceConnectionFactory;
import org.springframework.integration.leader.DefaultCandidate;
import org.springframework.integration.redis.util.RedisLockRegistry;
import org.springframework.integration.redis.util.RedisLockRegistry.RedisLockType;
import org.springframework.integration.support.leader.LockRegistryLeaderInitiator;
import org.springframework.scheduling.concurrent.ThreadPoolTaskScheduler;

/** Spring Integration 6.5: every lock has its registry's lease, and renewal. */
public final class Main implements LockLibrary {

	private static final Duration DEFAULT_LEASE = Duration.ofSeconds(60);

	public static void main(String[] args) throws Exception {
		Peer.serve(new Main());
	}

	@Override
	public LockRegistry open(Settings settings) {
		LettuceConnectionFactory connections = new LettuceConnectionFactory("127.0.0.1", settings.port());
		connections.afterPropertiesSet();
		connections.start();
		RedisLockRegistry spring = new RedisLockRegistry(connections, settings.prefix(),
				settings.lease().orElse(DEFAULT_LEASE).toMillis());
		settings.mode()
				.map(mode -> RedisLockType.valueOf(mode.toUpperCase(Locale.ROOT)))
				.ifPresent(spring::setRedisLockType);
		settings.idle().ifPresent(spring::setIdleBetweenTries);
		ThreadPoolTaskScheduler renewal = new ThreadPoolTaskScheduler();
		if (settings.renewal()) {
			renewal.initialize();
			spring.setRenewalTaskScheduler(renewal);
		}
		return new SpringLocks(spring, connections, renewal);
	}

	private record SpringLocks(RedisLockRegistry spring, LettuceConnectionFactory connections,
			ThreadPoolTaskScheduler renewal) implements LockRegistry {

		@Override
		public Lock obtain(String path, Kind kind) {
			if (kind != Kind.PLAIN) {
				throw new UnsupportedOperationException("Spring has no read-write locks");
			}
			return this.spring.obtain(path);
		}

		@Override
		public Campaign campaign(String role) {
			LockRegistryLeaderInitiator initiator = new LockRegistryLeaderInitiator(this.spring,
					new DefaultCandidate(null, role));
			initiator.start();
			return new Campaign() {

				@Override
				public boolean leads() {
					return initiator.getContext().isLeader();
				}

				@Override
				public void giveUp() {
					initiator.getContext().yield();
				}

				@Override
				public void stop() {
					initiator.destroy();
				}
			};
		}

		@Override
		public void close() {
			this.renewal.shutdown();
			this.spring.destroy();
			this.connections.destroy();
		}
	}
}
