package protocol

import (
	"maps"
	"regexp"
	"strings"
	"testing"

	"github.com/lockregistry/lockregistry/internal/redistest"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	lua "github.com/yuin/gopher-lua"
	"github.com/yuin/gopher-lua/parse"
)

// Sections share locals of the script. A missing local is an error of the server, once the script reaches the place.
func TestScripts_UseNoGlobals(t *testing.T) {
	known := map[string]bool{}
	for _, name := range []string{
		"redis", "string", "math", "KEYS", "ARGV", "type", "tonumber", "ipairs", "unpack", "pcall", "error",
	} {
		known[name] = true
	}
	for name, script := range Scripts() {
		chunk, err := parse.Parse(strings.NewReader(strings.TrimPrefix(script.Source, redistest.WatchKeys)), name)
		require.NoError(t, err)
		proto, err := lua.Compile(chunk, name)
		require.NoError(t, err)
		for _, global := range globals(proto) {
			assert.True(t, known[global], "%s has no local %s", name, global)
		}
	}
}

func globals(proto *lua.FunctionProto) (names []string) {
	for _, instruction := range proto.Code {
		switch int(instruction >> 26) {
		case lua.OP_GETGLOBAL, lua.OP_SETGLOBAL:
			names = append(names, proto.Constants[instruction&(1<<18-1)].String())
		}
	}
	for _, inner := range proto.FunctionPrototypes {
		names = append(names, globals(inner)...)
	}
	return names
}

// A section that no script uses has a wrong name: the script of a format without such a section would silently go without it.
func TestScripts_HaveAllSections(t *testing.T) {
	all := maps.Clone(files)
	all["toy"] = toy.Source
	for file, sections := range all {
		for name, text := range sections {
			text = strings.TrimSpace(text)
			used := name == "" // for readers, or a script by itself
			for _, script := range Scripts() {
				used = used || strings.Contains(script.Source, text)
			}
			require.True(t, used, "%s: %q", file, name)
		}
	}
}

// A server that replicates scripts whole refuses their writes after a command whose result may differ elsewhere. And a lease that
// such a script sets begins again wherever the script is replayed. So a script that asks for the time or for subscribers, or that
// makes a hold the owner, first asks for its effects to be replicated; see lua/effects.lua.
func TestScripts_ReplicateTheirEffects(t *testing.T) {
	differs := regexp.MustCompile(`'(TIME|PUBSUB|PX)'`)
	asking := 0
	for name, script := range Scripts() {
		asks := differs.FindStringIndex(script.Source)
		if asks == nil {
			continue
		}
		asking++
		first := strings.Index(script.Source, "redis.replicate_commands()")
		require.GreaterOrEqual(t, first, 0, name)
		require.Less(t, first, asks[0], name)
	}
	require.Greater(t, asking, 10)
}
