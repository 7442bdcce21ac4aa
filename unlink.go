package lockregistry

import (
	"context"
	"log/slog"
	"strconv"
	"strings"
	"sync/atomic"

	"github.com/redis/rueidis"

	"github.com/lockregistry/lockregistry/internal/dispatch"
	"github.com/lockregistry/lockregistry/internal/fault"
	"github.com/lockregistry/lockregistry/internal/transport"
)

// remover knows the command that removes a key on a client's server: UNLINK, which frees the memory in the background, if INFO
// reports version 4 or newer; otherwise DEL, also when INFO is forbidden or says nothing.
type remover struct {
	command atomic.Pointer[string] // nil until the server has answered, also with an error
	asking  atomic.Bool
}

// removal returns the command that removes a key. The first call asks the server. Until the server has answered, other calls get
// DEL, and so does the first call if the answer takes too long. After a failure of the network the next call asks again. If the
// server's answer means DEL, that is logged.
func (r *remover) removal(way *transport.Client, log *dispatch.Queue) string {
	if r.command.Load() == nil && r.asking.CompareAndSwap(false, true) {
		defer r.asking.Store(false)  // also when a hook of the client panics
		if r.command.Load() == nil { // it was not answered meanwhile
			way.Ask(func(ctx context.Context, way rueidis.CoreClient) rueidis.RedisResult {
				reply := way.Do(ctx, way.B().Info().Section("server").Build().ToPipe())
				r.learn(reply, log)
				return reply
			})
		}
	}
	if command := r.command.Load(); command != nil {
		return *command
	}
	return "DEL"
}

// learn stores the command that a reply of INFO calls for, if the server answered.
func (r *remover) learn(reply rueidis.RedisResult, log *dispatch.Queue) {
	info, err := reply.ToString()
	if !fault.Answered(err) && !rueidis.IsParseErr(err) {
		return
	}
	command := "DEL"
	if err == nil && hasUnlink(info) {
		command = "UNLINK"
	}
	if r.command.Swap(&command) == nil && command == "DEL" {
		log.Log(slog.LevelInfo, "keys are removed with DEL: INFO does not report a server that has UNLINK", slog.Any("error", err))
	}
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
