package lockregistry

import (
	"context"
	"log/slog"
	"reflect"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/redis/rueidis"
)

// remover knows the command that removes a key on the server of one client: UNLINK, which frees the memory in the
// background, where INFO reports version 4 or newer, DEL otherwise, and when INFO is forbidden or says nothing.
type remover struct {
	command atomic.Pointer[string] // nil until the server has answered, one way or the other
	asking  atomic.Bool
	users   int // registries; guarded by removersMu
}

// removers has one remover per client, so that many registries on a client ask its server once. An entry lives as long
// as a registry that uses it is open.
var (
	removersMu sync.Mutex
	removers   = map[rueidis.Client]*remover{}
)

func removerOf(client rueidis.Client) *remover {
	if !reflect.ValueOf(client).Comparable() { // a wrapper by value, which no map can have for a key
		return &remover{}
	}
	removersMu.Lock()
	defer removersMu.Unlock()
	r := removers[client]
	if r == nil {
		r = &remover{}
		removers[client] = r
	}
	r.users++
	return r
}

func (r *remover) dismiss(client rueidis.Client) {
	if !reflect.ValueOf(client).Comparable() {
		return
	}
	removersMu.Lock()
	defer removersMu.Unlock()
	if r.users--; r.users == 0 {
		delete(removers, client)
	}
}

// removal returns the command that removes a key. The first call asks the server; calls that come while it does take
// DEL, which is right on every server. When the network fails, the next call asks again.
func (r *remover) removal(ctx context.Context, client rueidis.Client, log *journal) string {
	if command := r.command.Load(); command != nil {
		return *command
	}
	if !r.asking.CompareAndSwap(false, true) {
		return "DEL"
	}
	defer r.asking.Store(false)
	if command := r.command.Load(); command != nil { // answered meanwhile
		return *command
	}

	info, err := client.Do(ctx, client.B().Info().Section("server").Build()).ToString()
	_, answered := rueidis.IsRedisErr(err)
	command := "DEL"
	if err == nil && hasUnlink(info) {
		command = "UNLINK"
	}

	if err == nil || answered || rueidis.IsRedisNil(err) || rueidis.IsParseErr(err) {
		r.command.Store(&command)
		if command == "DEL" {
			log.log(slog.LevelInfo, "keys are removed with DEL: INFO does not report a server that has UNLINK", slog.Any("error", err))
		}
	}
	return command
}

// hasUnlink reads from the reply of INFO whether the server is of version 4 or newer. Valkey and development builds
// (255.255.255) report a redis_version too; a server that only names a valkey_version is new enough as well.
func hasUnlink(info string) bool {
	for line := range strings.Lines(info) {
		name, version, _ := strings.Cut(strings.TrimSpace(line), ":")
		if name != "redis_version" && name != "valkey_version" {
			continue
		}
		major, _, _ := strings.Cut(version, ".")
		if n, err := strconv.ParseUint(strings.TrimSpace(major), 10, 32); err == nil && n >= 4 {
			return true
		}
	}
	return false
}
