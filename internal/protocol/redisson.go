package protocol

// redisson stores a plain lock as Redisson does: a hash with a field for the holder.
//
// A holder's field is "<client uuid>:<thread id>" in Redisson; here it is the hold's value, with the number instead of the
// thread id. Its count is always 1: this process counts how often an owner has locked.
var redisson = describe(Description{
	Name: "redisson", Source: files["redisson"],
	Needs:   &Needs{own: []string{"HKEYS", "DEL", "PEXPIRE 1"}, writes: []string{"HSET f v"}},
	Channel: func(string) string { return "redisson_lock__channel:" },
	Within:  tagged,
	Counter: func(_, key string) string { return redissonCounter(key) },
	Foreign: []string{
		"9401052d872adfd0179ef8c8e8c028512707629a", // before 3.12.3
		"dad0f8d619e548e04f21fb48d50be5034df3adae", // then before 3.19.0, and RSpinLock
		"149c5a8bf18676fd99e9e6e24923bd64d9b62f94", // to 4.7.0
		"46b5551ba403d6152a7a6eca122e08728d6c8c66", // RFencedLock
		"49babb5a1e6a0c5f188c2ae62b93b51cdfd63e45", // the same, for a token
		"3daa7be6cf69d9309ad990442e83bf25094f9b22", // getNonReentrantLock, since 4.4
		"b825ed78719d69bc179fb684c093452bad2da404", // of this library, before it queued
	},
})

// redissonCounter returns the key of the counter of Redisson's RFencedLock.
func redissonCounter(key string) string { return "redisson_lock_token:" + tagged(key) }

// NewRedisson returns the format of Redisson's RLock and RFencedLock.
func NewRedisson(c Config) *Format { return newFormat(redisson, c) }
