package protocol

import (
	"errors"
	"strings"
)

// The ends of keys that are kept beside the keys of locks.
const (
	waitersEnd  = ":waiters"
	fencingEnd  = ":fencing"
	registryEnd = "}:registry"
)

var (
	errNoPath   = errors.New("the path is empty")
	errReserved = errors.New("the path is reserved: no lock may have a path that ends in }:registry, or in :waiters or " +
		":fencing after a part in braces, since registries keep their own data there")
)

// CheckPath returns why no lock can have a path, with this key; or nil.
func CheckPath(path, key string) error {
	switch {
	case path == "":
		return errNoPath
	case reserved(key):
		return errReserved
	}
	return nil
}

// reserved reports whether a key may be another lock's queue or fencing counter, or a registry's record.
func reserved(key string) bool {
	return (strings.HasSuffix(key, waitersEnd) || strings.HasSuffix(key, fencingEnd) || strings.HasSuffix(key, registryEnd)) &&
		HashTag(key) != key
}

// keyBeside returns the key with this end that is kept beside the key of a lock: in its slot, unless the prefix has a brace, and
// in the reserved form. Scripts compute it in the same way, see names in lua/queue.lua.
func keyBeside(prefix, key, end string) string {
	if HashTag(key) != key {
		return key + end
	}
	return prefix + ":{" + key + "}" + end
}

// queueKey returns the key of a lock's queue; empty if that would be in another slot, so that there is no queue.
func queueKey(prefix, key string) string {
	queue := keyBeside(prefix, key, waitersEnd)
	if HashTag(queue) != HashTag(key) && Slot(queue) != Slot(key) {
		return ""
	}
	return queue
}

// KeysBeside returns the keys that may be beside the key of a lock, of whatever format: its queue, and its fencing counters. On
// a cluster, only those that are in its slot.
func KeysBeside(prefix, key string, cluster bool) (all []string) {
	for _, one := range []string{keyBeside(prefix, key, waitersEnd), fencingCounter(prefix, key), redissonCounter(key)} {
		if !cluster || Slot(one) == Slot(key) {
			all = append(all, one)
		}
	}
	return all
}

// fencingCounter returns the key of a lock's fencing counter.
func fencingCounter(prefix, key string) string { return keyBeside(prefix, key, fencingEnd) }

// LockOf returns the lock with this prefix to which a key of the database belongs: as the lock's key, or its queue.
func LockOf(prefix, key string) (lock string, ok bool) {
	path, ok := strings.CutPrefix(key, prefix+":")
	switch {
	case !ok || path == "":
		return "", false
	case strings.Contains(key, ":rwlock_timeout:") && strings.Contains(key, "{"): // a reader's
		return "", false
	case !reserved(key):
		return key, true
	}
	lock, ok = strings.CutSuffix(key, waitersEnd)
	if !ok {
		return "", false
	}
	// The queue of a key without a hash tag: "<prefix>:{<key>}:waiters". The prefix may be another registry's, which begins with
	// this one.
	if before, inner, braces := strings.Cut(strings.TrimSuffix(lock, "}"), ":{"); braces && strings.HasPrefix(inner, before+":") {
		lock = inner
	}
	return lock, queueKey(prefix, lock) == key
}

// ErrStrange is the error for a reply that no script of this library gives.
var ErrStrange = errors.New("a reply of Redis that cannot be read")

// Slots is how many slots a cluster has.
const Slots = 16384

// Slot returns the slot of a key in a cluster: CRC16 (XMODEM) of its hash tag.
func Slot(key string) uint16 {
	tag, crc := HashTag(key), uint16(0)
	for i := range len(tag) {
		crc = crc<<8 ^ remainders[byte(crc>>8)^tag[i]]
	}
	return crc % Slots
}

// HashTag returns the part of a key that decides its slot: the text between the first brace and the next closing one, or the
// whole key if that is empty or there is none.
func HashTag(key string) string {
	_, rest, opened := strings.Cut(key, "{")
	tag, _, closed := strings.Cut(rest, "}")
	if !opened || !closed || tag == "" {
		return key
	}
	return tag
}

// remainders are the CRC16 of each byte. A call on a cluster computes several slots: computed bit by bit, each took 0.5 µs.
var remainders = func() (all [256]uint16) {
	for i := range all {
		crc := uint16(i) << 8
		for range 8 {
			if crc&0x8000 != 0 {
				crc = crc<<1 ^ 0x1021
			} else {
				crc <<= 1
			}
		}
		all[i] = crc
	}
	return all
}()
