package protocol

// spring keeps a lock as Spring Integration's RedisLockRegistry does: a string whose value names the holder, and
// whose expiry is the lease. Spring compares the value only with its registry's own id, so it may carry more than that.
//
// Its channels are those of PUB_SUB_LOCK: one per key, "<prefix>-channel:<key>", and, before Spring Integration 6.4.8,
// 6.5.3 and 7.0.0, a single one, "<prefix>-channel". The message is the key on both.
var spring = describe(Description{
	Name: "spring", Source: files["spring"],
	Set: true, Unlinks: true,
	Channel: func(prefix string) string { return prefix + "-channel:" },
	Within:  func(key string) string { return key },
	Common:  func(prefix string) string { return prefix + "-channel" },
	Counter: fencingCounter,
})

// NewSpring is the format of Spring Integration's RedisLockRegistry.
func NewSpring(c Config) *Format { return newFormat(spring, c) }
