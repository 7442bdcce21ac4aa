package protocol

import (
	"encoding/hex"
	"strconv"
	"strings"
)

// redissonPermits stores a semaphore as Redisson's RPermitExpirableSemaphore does: the number of free permits, and beside it a
// sorted set of the held ones, by the end of each lease.
//
// A permit's id in Redisson is 16 bytes, in hexadecimal; here it is the hold's value.
var redissonPermits = describe(Description{
	Name: "rpermits", Source: over("permits", "rpermits"),
	Channel: func(string) string { return "redisson_sc:" },
	Within:  Tagged,
	Counter: fencingCounter,
	Beside:  heldPermits,
	Member:  permitOf,
	Foreign: []string{
		"1c2f23a6a6a0b73ec7e65363ebd0f04aa6118a05", // before 3.12
		"9dd7dc38c905805c04c8f14cb8aae2bd5dd529b0", // then before 3.23.3
		"d47a2fd3852467e5e7f2d1618c92a1ca719fcf7a", // 3.23.3
		"992c96b09a3d8ea0b37f5dc12e5347a44d93909d", // to 4.7.0
	},
})

// heldPermits returns the key of the sorted set.
func heldPermits(key string) string { return Tagged(key) + ":timeout" }

// MostAtOnce is how many permits a hold has at most, in a format that has a member for each.
const MostAtOnce = 1000

// NewRedissonPermits is [NewPermits] in Redisson's format.
func NewRedissonPermits(c Config, each, number int) *Format {
	f := permitsOf(redissonPermits, c, each, number)
	f.parts = strconv.Itoa(each)
	if c.Publishes {
		f.permits += " p"
	}
	return f
}

// permitOf returns the name of a holder in the sorted set: a permit's id in Redisson is bytes there. It is empty for what is only
// a part of a hold, and for [EveryHold].
func permitOf(holder string) string {
	if id, err := hex.DecodeString(holder); err == nil {
		return string(id)
	}
	if strings.Contains(holder[strings.LastIndexByte(holder, ':')+1:], "*") {
		return ""
	}
	return holder
}
