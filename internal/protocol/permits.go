package protocol

import "strconv"

// permits keeps a semaphore: a sorted set of the holds that have permits, by when the lease of each is over. Several holds of a
// registry have some at a time, so none takes over what another one has left.
var (
	permits = describe(Description{
		Name: "permits", Source: files["permits"], Many: true,
		Channel: func(prefix string) string { return prefix + "-channel:" },
		Within:  func(key string) string { return key },
		Counter: fencingCounter,
	})
	setPermits = known("set_permits", permits.operation("set_permits"))
)

// NewPermits is the format of holds of a semaphore that has some number of permits, unless another one is known in Redis, and of
// which each hold has so many.
func NewPermits(c Config, each, number int) *Format {
	f := newFormat(permits, c)
	f.permits = strconv.Itoa(each) + " " + strconv.Itoa(number)
	return f
}

// EveryHold is what a release has in the place of a value that ends all holds of a semaphore.
const EveryHold = "*"

// IsHold tells whether a member of the set may be a hold.
func IsHold(member string) bool {
	return member != "" && '0' <= member[len(member)-1] && member[len(member)-1] <= '9'
}

// SetPermits is the call that sets the number of permits of a semaphore. It replies the one before, 0 when none was known.
func (f *Format) SetPermits(key string, number int) Call {
	c := Call{Script: setPermits, Key: key, Args: Args{strconv.Itoa(number), "", f.Prefix, "", f.Sharded()}}
	c.then(f.channels)
	return c
}
