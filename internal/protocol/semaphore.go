package protocol

import "strconv"

// permits stores a semaphore: a sorted set of the holds that have permits, by the end of each lease. Several holds of a
// registry may have permits at a time, so no hold takes over what another one has left. Only this library knows the format:
// nobody has permits, or waits for them, without a ticket.
var permits = describe(Description{
	Name: "permits", Source: files["permits"], Many: true,
	Needs: &Needs{
		own: []string{
			"EXISTS", "PTTL", "ZCARD", "ZSCORE m", "ZRANGE 0 0", "ZRANGEBYSCORE 0 0", "ZREM m", "PEXPIRE 1",
		},
		writes: []string{"ZADD 0 m"},
	},
	Channel: func(prefix string) string { return prefix + "-channel:" },
	Within:  func(key string) string { return key },
	Counter: fencingCounter,
})

// NewPermits returns the format of holds of a semaphore. Each is how many permits a hold has, number how many there are,
// unless Redis has another number.
func NewPermits(c Config, each, number int) *Format {
	f := newFormat(permits, c)
	f.permits = strconv.Itoa(each) + " " + strconv.Itoa(number)
	return f
}

// EveryHold is the value of a release that ends all holds of a semaphore.
const EveryHold = "*"

// IsHold reports whether a member of the set may be a hold: the set has other members, too.
func IsHold(member string) bool {
	return member != "" && '0' <= member[len(member)-1] && member[len(member)-1] <= '9'
}

// SetPermits returns the call that sets the number of permits of a semaphore. The reply is the previous number, 0 if there was
// none.
func (f *Format) SetPermits(key string, number int) Call {
	c := Call{Script: f.format.scripts.number, Key: key, Args: Args{strconv.Itoa(number), "", f.Prefix, "", f.Sharded()}}
	c.then(f.channels)
	c.shape = releasing
	if c.queue = f.Queue(key); c.queue == "" {
		c.Args[2] = ""
	}
	return f.named(c)
}
