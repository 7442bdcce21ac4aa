package doctor

import (
	"cmp"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/redis/rueidis"
)

// server is the name and version of the server; empty when it does not tell.
func (n *node) server() string {
	if version := n.info["valkey_version"]; version != "" {
		return "Valkey " + version
	}
	if version := cmp.Or(n.info["redis_version"], n.hello["version"]); version != "" {
		return "Redis " + version
	}
	return ""
}

// version returns the version of Redis that the server is compatible with; false if it does not report one.
func (n *node) version() (major, minor int, ok bool) {
	words := strings.Split(cmp.Or(n.info["redis_version"], n.hello["version"]), ".")
	if len(words) < 2 {
		return 0, 0, false
	}
	major, err := strconv.Atoi(words[0])
	if err != nil {
		return 0, 0, false
	}
	minor, err = strconv.Atoi(words[1])
	return major, minor, err == nil
}

// atLeast reports whether all nodes have at least this major version; nodes that do not report theirs count as new enough.
func (x *examination) atLeast(major int) bool {
	for _, n := range x.nodes {
		if is, _, ok := n.version(); ok && is < major {
			return false
		}
	}
	return true
}

// versions reports what the servers, and the protocol, are too old for.
func (x *examination) versions() {
	clustered := x.client.Mode() == rueidis.ClientModeCluster
	for _, n := range x.nodes {
		server := cmp.Or(n.server(), "a server that does not tell its version")
		x.found(Finding{ID: "version", Severity: OK, Seen: server})
		x.found(Finding{ID: "resp3", Severity: OK, Seen: "the connection speaks RESP3"})
		major, minor, known := n.version()
		severity, why := OK, ""
		switch {
		case !known:
		case major < 2 || major == 2 && minor < 6:
			severity, why = Error, "It has no scripts, so nothing works."
		case major < 4:
			severity, why = Warning, "It has no UNLINK, so keys are removed with DEL. It has no tracking, so waiting calls do not "+
				"learn when a lock expires, and clients connect only with DisableCache. Tests run only on Redis 6.2 and newer."
		case major < 6:
			severity, why = Warning, "It has no tracking, so waiting calls do not learn when a lock expires, and clients connect "+
				"only with DisableCache. Tests run only on Redis 6.2 and newer."
		case major < 7 && clustered:
			severity, why = Warning, "On a cluster of this version there is no queue: waiting calls poll, and are not served in order."
		}
		if severity != OK {
			x.found(Finding{
				ID: "version", Severity: severity, Nodes: []string{n.address}, Seen: server, Why: why,
				Do: "Use Redis 7 or newer, or Valkey.",
			})
		}
		if proto := n.hello["proto"]; proto != "3" && (!known || major >= 6) {
			x.found(Finding{
				ID: "resp3", Severity: Warning, Nodes: []string{n.address},
				Seen: "the connection speaks RESP2, or a proxy does not know HELLO",
				Why: "Without RESP3 there is no tracking, so waiting calls do not learn when a lock expires. And wake-ups need two " +
					"connections instead of one.",
				Do: "Leave out protocol=2 in the address and AlwaysRESP2 in the client. Do not connect through a proxy without RESP3.",
			})
		}
	}
}

// number reads a number that the server told.
func number(all map[string]string, name string) (int64, bool) {
	n, err := strconv.ParseInt(all[name], 10, 64)
	return n, err == nil
}

// memory says whether locks can be evicted, or refused because the server is full.
func (x *examination) memory() {
	for _, n := range x.nodes {
		policy := n.info["maxmemory_policy"]
		if policy == "" {
			continue
		}
		x.found(Finding{ID: "eviction", Severity: OK, Seen: "maxmemory-policy is " + policy})
		limit, _ := number(n.info, "maxmemory")
		used, _ := number(n.info, "used_memory")
		if policy != "noeviction" {
			f := Finding{
				ID: "eviction", Severity: Error, Nodes: []string{n.address},
				Seen: fmt.Sprintf("maxmemory-policy is %s, with maxmemory %s", policy, bytes(limit)),
				Why: "When the server is full, it removes keys. Every lock has an expiry, so any of them may be removed. The lock is " +
					"then free while it is held.",
				Do: "Keep locks on a server that evicts nothing. CONFIG REWRITE makes the change permanent.",
				Commands: []string{
					"CONFIG SET maxmemory-policy noeviction",
				},
			}
			if limit == 0 {
				f.Severity = Info
				f.Why = "Without maxmemory nothing is evicted. If you set it, locks may be evicted. They are then free while they are held."
			}
			x.found(f)
		}
		x.found(Finding{ID: "memory", Severity: OK, Seen: "there is enough memory"})
		if limit == 0 || used < limit/10*9 {
			continue
		}
		f := Finding{
			ID: "memory", Severity: Warning, Nodes: []string{n.address},
			Seen:     "more than 90 % of maxmemory " + bytes(limit) + " is used",
			Why:      "A full server refuses new locks, or evicts keys.",
			Do:       "Give it more memory, or remove keys that nobody needs.",
			Commands: []string{fmt.Sprintf("CONFIG SET maxmemory %d", max(2*max(used, limit), used+leastRoom))},
		}
		if used >= limit {
			f.Severity, f.Seen = Error, "all of maxmemory "+bytes(limit)+" is used"
			f.Why = "The server refuses new locks and new tickets of waiting calls, or it evicts keys."
		}
		x.found(f)
	}
}

const leastRoom = 64 << 20

func bytes(n int64) string {
	switch {
	case n == 0:
		return "0 (no limit)"
	case n < 1<<20:
		return strconv.FormatInt(n, 10) + " bytes"
	default:
		return strconv.FormatInt(n>>20, 10) + " MiB"
	}
}

// persistence says whether locks survive a restart, and whether the server takes writes.
func (x *examination) persistence() {
	for _, n := range x.nodes {
		enabled, known := n.info["aof_enabled"]
		if !known {
			continue
		}
		x.found(Finding{ID: "persistence", Severity: OK, Seen: "appendonly is on"})
		if enabled != "1" {
			x.found(Finding{
				ID: "persistence", Severity: Warning, Nodes: []string{n.address}, Seen: "appendonly is off",
				Why: "When the server restarts, it has lost all locks, and they are free while they are held. If a master comes back " +
					"like this before a replica is promoted, its replicas lose the locks, too.",
				Do: "Switch it on. With appendfsync everysec, the default, a crash may still lose the locks of the last two seconds; with " +
					"always it loses none. CONFIG REWRITE makes the change permanent.",
				Commands: []string{"CONFIG SET appendonly yes"},
			})
		}
		x.found(Finding{ID: "persistence-failing", Severity: OK, Seen: "writes to the disk succeed"})
		for _, status := range []struct {
			name  string
			again []string
		}{
			{"rdb_last_bgsave_status", []string{"BGSAVE"}},
			{"aof_last_bgrewrite_status", []string{"BGREWRITEAOF"}},
			{"aof_last_write_status", nil},
		} {
			if n.info[status.name] == "err" {
				x.found(Finding{
					ID: "persistence-failing", Severity: Error, Nodes: []string{n.address}, Seen: status.name + " is err in INFO",
					Why:      "The server cannot write to its disk. By default it then refuses all writes (MISCONF), including those for locks.",
					Do:       "Look at its log, at the free space, and at the permissions of its directory. Then let it save again.",
					Commands: status.again,
				})
			}
		}
	}
}

const (
	leastBuffer  = 1 << 20
	leastTimeout = time.Minute
)

// settings looks at the limits of connections and of tracking.
func (x *examination) settings() {
	for _, n := range x.nodes {
		if keys, ok := number(n.info, "tracking_total_keys"); ok {
			x.found(Finding{ID: "tracking-table", Severity: OK, Seen: fmt.Sprintf("%d keys are tracked", keys)})
			if limit, ok := number(n.config, "tracking-table-max-keys"); ok && limit > 0 && keys >= limit-limit/10 {
				x.found(Finding{
					ID: "tracking-table", Severity: Warning, Nodes: []string{n.address},
					Seen: fmt.Sprintf("the table of tracked keys is at least 90 %% full: tracking-table-max-keys is %d", limit),
					Why:  "A full table drops keys at random, and wakes their waiting calls for no reason.",
					Do: "Make it larger: a key takes about 100 bytes. Or set DisableCache: true in the clients that have a cache: their " +
						"caches use the same table.",
					Commands: []string{fmt.Sprintf("CONFIG SET tracking-table-max-keys %d", max(10*limit, 1_000_000))},
				})
			}
		}
		if hard, soft, ok := pubsubLimit(n.config["client-output-buffer-limit"]); ok {
			x.found(Finding{ID: "buffer-limit", Severity: OK, Seen: "client-output-buffer-limit leaves room for messages"})
			if hard > 0 && hard < leastBuffer || soft > 0 && soft < leastBuffer {
				x.found(Finding{
					ID: "buffer-limit", Severity: Warning, Nodes: []string{n.address},
					Seen: "client-output-buffer-limit for pubsub is below 1 MiB",
					Why: "When a process is slow for a moment, the server closes its connection for wake-ups. Its waiting calls then poll " +
						"for a while.",
					Do:       "Set Redis's default, or more. CONFIG REWRITE makes the change permanent.",
					Commands: []string{`CONFIG SET client-output-buffer-limit "pubsub 33554432 8388608 60"`},
				})
			}
		}
		if seconds, ok := number(n.config, "timeout"); ok {
			x.found(Finding{ID: "idle-timeout", Severity: OK, Seen: fmt.Sprintf("timeout is %d", seconds)})
			if seconds > 0 && time.Duration(seconds)*time.Second < leastTimeout {
				x.found(Finding{
					ID: "idle-timeout", Severity: Warning, Nodes: []string{n.address},
					Seen: fmt.Sprintf("timeout is %d: the server closes connections that are idle for that many seconds", seconds),
					Why: "Connections for wake-ups and for replicas are idle most of the time. Each time one is closed, the library makes " +
						"a new one, and calls poll meanwhile.",
					Do:       "Switch it off, or allow a minute or more. CONFIG REWRITE makes the change permanent.",
					Commands: []string{"CONFIG SET timeout 0"},
				})
			}
		}
		if seconds, ok := number(n.config, "tcp-keepalive"); ok {
			x.found(Finding{ID: "keepalive", Severity: OK, Seen: fmt.Sprintf("tcp-keepalive is %d", seconds)})
			if seconds == 0 {
				x.found(Finding{
					ID: "keepalive", Severity: Warning, Nodes: []string{n.address}, Seen: "tcp-keepalive is 0",
					Why: "When a host vanishes, the server believes that it still listens. As long as that connection exists, locks are " +
						"granted to the host's waiting calls, and each of them stays taken for a second.",
					Do:       "Set Redis's default, or less. CONFIG REWRITE makes the change permanent. It applies to new connections.",
					Commands: []string{"CONFIG SET tcp-keepalive 300"},
				})
			}
		}
		limit, ok := number(n.config, "maxclients")
		if !ok {
			limit, ok = number(n.info, "maxclients")
		}
		if clients, told := number(n.info, "connected_clients"); ok && told {
			x.found(Finding{ID: "clients", Severity: OK, Seen: fmt.Sprintf("%d of %d connections are in use", clients, limit)})
			if clients >= limit-limit/10 {
				x.found(Finding{
					ID: "clients", Severity: Warning, Nodes: []string{n.address},
					Seen:     fmt.Sprintf("at least 90 %% of maxclients %d are connected", limit),
					Why:      "New connections are refused, including those of new processes and for wake-ups.",
					Do:       "Allow more, or find out which program leaves connections open (CLIENT LIST).",
					Commands: []string{fmt.Sprintf("CONFIG SET maxclients %d", 2*max(clients, limit))},
				})
			}
		}
	}
}

// pubsubLimit reads client-output-buffer-limit: "normal 0 0 0 slave 268435456 67108864 60 pubsub 33554432 8388608 60".
func pubsubLimit(text string) (hard, soft int64, ok bool) {
	words := strings.Fields(text)
	for i := 0; i+3 < len(words); i += 4 {
		if words[i] != "pubsub" {
			continue
		}
		hard, err := strconv.ParseInt(words[i+1], 10, 64)
		if err != nil {
			return 0, 0, false
		}
		soft, err := strconv.ParseInt(words[i+2], 10, 64)
		return hard, soft, err == nil
	}
	return 0, 0, false
}
