package protocol

import "strconv"

// permits stores a semaphore: a sorted set of the holds that have permits, by the end of each lease. Several holds of a
// registry may have permits at a time, so no hold takes over what another one has left.
var permits = describe(Description{
	Name: "permits", Source: files["permits"], Ours: true,
	Channel: func(prefix string) string { return prefix + "-channel:" },
	Within:  func(key string) string { return key },
	Counter: fencingCounter,
	Member:  holdIn,
})

// NewPermits returns the format of holds of a semaphore. Each is how many permits a hold has, number how many there are,
// unless Redis has another number.
func NewPermits(c Config, each, number int) *Format { return permitsOf(permits, c, each, number) }

func permitsOf(d *Description, c Config, each, number int) *Format {
	f := newFormat(d, c)
	f.permits = strconv.Itoa(each) + " " + strconv.Itoa(number)
	return f
}

// EveryHold is the value of a release that ends all holds of a semaphore.
const EveryHold = "*"

// holdIn returns a member of the set if it may be a hold; else the empty string: the set has other members, too.
func holdIn(member string) string {
	if member == "" || member[len(member)-1] < '0' || '9' < member[len(member)-1] {
		return ""
	}
	return member
}

// SetPermits returns the call that sets the number of permits of a semaphore. The reply is the previous number, 0 if there was
// none.
func (f *Format) SetPermits(key string, number int) Call {
	c := Call{Script: f.format.scripts.number, Key: key, Args: Args{strconv.Itoa(number), "", f.Prefix, "", f.Sharded()}}
	f.keeps(&c)
	c.then(f.channels)
	return c
}
