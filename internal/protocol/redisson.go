package protocol

// redisson keeps a plain lock as Redisson does: a hash with a field for the holder.
//
// A holder's field is "<client uuid>:<thread id>" in Redisson; here it is the hold's value, with the number in the place of
// the thread. Its count is always 1: how often an owner has locked is counted in this process.
var redisson = describe(Description{
	Name: "redisson", Source: files["redisson"],
	Channel: func(string) string { return "redisson_lock__channel:" },
	Within:  Tagged,
	Counter: func(_, key string) string { return "redisson_lock_token:" + Tagged(key) }, // that of its RFencedLock
})

// NewRedisson is the format of Redisson's RLock and RFencedLock.
func NewRedisson(c Config) *Format { return newFormat(redisson, c) }
