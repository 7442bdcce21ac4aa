package protocol

import "strings"

// readers and writers store the two sides of a read-write lock as Redisson does: a hash with a field for each holder, and one
// for the mode. Redisson's read-write locks have no fencing counter.
var (
	readers     = describe(sideOf("read"))
	writers     = describe(sideOf("write"))
	writerWaits = known("readwrite_writer_waits", readers.operation("writer_waits"))
)

func sideOf(side string) Description {
	return Description{
		Name: "readwrite", Source: files["readwrite"], Side: side,
		Needs:   needsOf(side),
		Channel: func(string) string { return "redisson_rwlock:" },
		Within:  tagged,
		Counter: fencingCounter,
		Foreign: []string{
			"3e6597e1d1157c59ac0d6efa2ba7e92ef418c41e", // readers, before 3.11.1
			"95553a6ff11176c18e71344e89d116b06fd6f753", // to 4.7.0
			"6306ba3bf1f563b284bed52d305fce615c6664d9", // writers
			"6ca53b9e68b539b94c2a9c17652bdde59c8e5a75", // readers of this library, before it queued
			"84efcbdf24f2d6bd66e3a735a23e5bdb99410580", // and writers
		},
	}
}

// needsOf returns what a side needs: a reader has a key beside the lock's for its lease.
func needsOf(side string) *Needs {
	n := &Needs{
		own:    []string{"HGET mode", "HEXISTS f", "HKEYS", "HLEN", "HGETALL", "EXISTS", "PTTL", "HDEL f", "DEL", "PEXPIRE 1"},
		writes: []string{"HSET f v", "HMSET f v"},
	}
	if side == "read" {
		n.beside = []string{"PTTL", "SET v", "DEL"}
		n.key = func(key string) string { return tagged(key) + ":example:0:rwlock_timeout:1" }
	}
	return n
}

// NewRead returns the format of the readers of Redisson's RReadWriteLock. They draw no tokens.
func NewRead(c Config) *Format {
	c.Fencing = false
	return newFormat(readers, c)
}

// NewWrite returns the format of its writers.
func NewWrite(c Config) *Format { return newFormat(writers, c) }

// WriterWaits returns the call that asks whether a writer waits elsewhere while the key is held by readers. The reply is 1 if
// so.
func (c *Config) WriterWaits(key string) Call {
	w := Call{Script: writerWaits, Key: key, Args: Args{readers.Channel(c.Prefix), c.Prefix, c.Sharded()}}
	w.queue = c.Queue(key)
	return w
}

// readersLease returns the key that lives as long as the lease of a reader, whose count is always 1.
func readersLease(key, value string) string { return tagged(key) + ":" + value + ":rwlock_timeout:1" }

// tagged returns a name as it appears in names that Redisson derives from it: in braces, so that they are in the same slot of a
// cluster, unless the name contains braces.
func tagged(name string) string {
	if strings.Contains(name, "{") {
		return name
	}
	return "{" + name + "}"
}
