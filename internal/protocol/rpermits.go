package protocol

import (
	"encoding/hex"
	"strings"
)

// redissonPermits keeps a semaphore as Redisson's RPermitExpirableSemaphore does: the number of permits that are free, and beside
// it a sorted set of those that are held, by when the lease of each is over.
//
// A permit's id in Redisson is 16 bytes, in hexadecimal; here it is the hold's value.
var redissonPermits = describe(Description{
	Name: "rpermits", Source: over("permits", "rpermits"), Many: true,
	Channel: func(string) string { return "redisson_sc:" },
	Within:  Tagged,
	Counter: fencingCounter,
	Beside:  heldPermits,
	Foreign: []string{
		"1c2f23a6a6a0b73ec7e65363ebd0f04aa6118a05", // before 3.12
		"9dd7dc38c905805c04c8f14cb8aae2bd5dd529b0", // then before 3.23.3
		"d47a2fd3852467e5e7f2d1618c92a1ca719fcf7a", // 3.23.3
		"992c96b09a3d8ea0b37f5dc12e5347a44d93909d", // to 4.7.0
	},
})

// heldPermits is the key of the sorted set.
func heldPermits(key string) string { return Tagged(key) + ":timeout" }

// MostAtOnce is how many permits a hold has at most, in a format that has a member for each.
const MostAtOnce = 1000

// NewRedissonPermits is [NewPermits] in the format of Redisson.
func NewRedissonPermits(c Config, each, number int) *Format {
	f := permitsOf(redissonPermits, c, each, number)
	if c.Publishes {
		f.permits += " p"
	}
	return f
}

// PermitOf is what a holder is called in the sorted set: a permit's id in Redisson is bytes there. It is empty for what is only a
// part of a hold, and for [EveryHold].
func PermitOf(holder string) string {
	if id, err := hex.DecodeString(holder); err == nil && len(id) == 16 {
		return string(id)
	}
	if strings.Contains(holder[strings.LastIndexByte(holder, ':')+1:], "*") {
		return ""
	}
	return holder
}
