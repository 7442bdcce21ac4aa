package lockregistry.peer.library;

import java.time.Duration;
import java.util.Optional;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.locks.Lock;

import lockregistry.peer.LockLibrary;
import lockregistry.peer.LockRegistry;
import lockregistry.peer.Peer;
import lockregistry.peer.Permits;
import org.redisson.Redisson;
import org.redisson.api.RFencedLock;
import org.redisson.api.RLock;
import org.redisson.api.RPermitExpirableSemaphore;
import org.redisson.api.RSemaphore;
import org.redisson.api.RedissonClient;
import org.redisson.config.Config;

/** Redisson: a lock that is taken without a lease is renewed for as long as it is held. */
public final class Main implements LockLibrary {

	public static void main(String[] args) throws Exception {
		Peer.serve(new Main());
	}

	@Override
	public LockRegistry open(Settings settings) {
		if (settings.idle().isPresent()) {
			throw new UnsupportedOperationException("Redisson always waits on its channel: it has no idle time");
		}
		Config config = new Config();
		// A few threads and connections are plenty for one registry of a test, and start faster.
		config.setThreads(2).setNettyThreads(2);
		settings.lease().ifPresent(lease -> config.setLockWatchdogTimeout(lease.toMillis()));
		String address = "redis://127.0.0.1:" + settings.port();
		switch (settings.mode().orElse("single")) {
			case "single" -> config.useSingleServer()
					.setAddress(address)
					.setConnectionMinimumIdleSize(1)
					.setSubscriptionConnectionMinimumIdleSize(1);
			case "cluster" -> config.useClusterServers()
					.addNodeAddress(address)
					.setMasterConnectionMinimumIdleSize(1)
					.setSubscriptionConnectionMinimumIdleSize(1);
			default -> throw new UnsupportedOperationException("a mode is single or cluster: that of the servers");
		}
		return new RedissonLocks(Redisson.create(config), settings.prefix());
	}

	private record RedissonLocks(RedissonClient redisson, String prefix) implements LockRegistry {

		@Override
		public RLock obtain(String path, Kind kind) {
			String name = this.prefix + ':' + path;
			return switch (kind) {
				case PLAIN -> this.redisson.getLock(name);
				case READ -> this.redisson.getReadWriteLock(name).readLock();
				case WRITE -> this.redisson.getReadWriteLock(name).writeLock();
				case FENCED -> this.redisson.getFencedLock(name);
				case SPIN -> this.redisson.getSpinLock(name);
				case FAIR -> this.redisson.getFairLock(name);
				case NONREENTRANT -> nonReentrant(name);
			};
		}

		/** This program is also built with versions that do not have these locks. */
		private RLock nonReentrant(String name) {
			try {
				return (RLock) RedissonClient.class.getMethod("getNonReentrantLock", String.class)
						.invoke(this.redisson, name);
			}
			catch (ReflectiveOperationException ex) {
				throw new UnsupportedOperationException("Redisson has these locks since 4.4", ex);
			}
		}

		@Override
		public Permits permits(String path, boolean anonymous) {
			String name = this.prefix + ':' + path;
			return anonymous ? new AnonymousPermits(this.redisson.getSemaphore(name))
					: new RedissonPermits(this.redisson.getPermitExpirableSemaphore(name));
		}

		@Override
		public void lock(Lock lock, Duration lease) {
			((RLock) lock).lock(lease.toMillis(), TimeUnit.MILLISECONDS);
		}

		@Override
		public long fence(Lock lock) {
			return ((RFencedLock) lock).lockAndGetToken();
		}

		@Override
		public boolean tryLock(Lock lock, Duration wait, Duration lease) throws InterruptedException {
			return ((RLock) lock).tryLock(wait.toMillis(), lease.toMillis(), TimeUnit.MILLISECONDS);
		}

		@Override
		public boolean isHeld(Lock lock) {
			return ((RLock) lock).isHeldByCurrentThread();
		}

		@Override
		public void close() {
			this.redisson.shutdown();
		}
	}

	private record RedissonPermits(RPermitExpirableSemaphore semaphore) implements Permits {

		@Override
		public String acquire(Optional<Duration> wait, Optional<Duration> lease) throws InterruptedException {
			long millis = lease.map(Duration::toMillis).orElse(-1L);
			String id = wait.isPresent()
					? this.semaphore.tryAcquire(wait.get().toMillis(), millis, TimeUnit.MILLISECONDS)
					: this.semaphore.acquire(millis, TimeUnit.MILLISECONDS);
			return id == null ? "" : id;
		}

		@Override
		public int release(String id) {
			return this.semaphore.tryRelease(id) ? 1 : 0;
		}

		@Override
		public boolean begin(int permits) {
			return this.semaphore.trySetPermits(permits);
		}
	}

	/** Its permits have no ids, and no lease. */
	private record AnonymousPermits(RSemaphore semaphore) implements Permits {

		@Override
		public String acquire(Optional<Duration> wait, Optional<Duration> lease) {
			if (wait.isEmpty() || !wait.get().isZero()) {
				throw new UnsupportedOperationException("these permits are only tried for");
			}
			return this.semaphore.tryAcquire() ? "any" : "";
		}

		@Override
		public int release(String id) {
			this.semaphore.release();
			return 1;
		}

		@Override
		public boolean begin(int permits) {
			return this.semaphore.trySetPermits(permits);
		}
	}
}
