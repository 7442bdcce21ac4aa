package protocol

// spring stores a lock as Spring Integration's RedisLockRegistry does: a string whose value names the holder, and whose expiry
// is the lease. Spring compares the value only with its registry's own id, so it may contain more than that.
//
// It uses the channels of PUB_SUB_LOCK: one per key, "<prefix>-channel:<key>", and, before Spring Integration 6.4.8, 6.5.3 and
// 7.0.0, a single one, "<prefix>-channel". The message is the key on both.
var spring = describe(Description{
	Name: "spring", Source: files["spring"],
	Set: true, Marks: true, Unlinks: true,
	Needs:   &Needs{own: []string{"GET", "UNLINK|DEL"}, writes: []string{"SET v"}},
	Channel: func(prefix string) string { return prefix + "-channel:" },
	Within:  func(key string) string { return key },
	Common:  func(prefix string) string { return prefix + "-channel" },
	Counter: fencingCounter,
	Foreign: []string{
		"8426c8df41c64d8177dce3ecbbe9146ef3759cd2", // before 5.5.13
		"6d2bc6d16248df19e144841297222544e3c7800a", // then before 6.1
		"175897a4e379e99e79a54937be09226f76cdcfe5", // to 7.1.2
		"0e22be8da58914e8f9a7b5e508a7008ed4fec475", // of this library, before it queued
	},
})

// NewSpring returns the format of Spring Integration's RedisLockRegistry.
func NewSpring(c Config) *Format { return newFormat(spring, c) }
