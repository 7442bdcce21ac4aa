package lockregistry

import (
	"context"
	"crypto/sha1"
	"embed"
	"encoding/hex"
	"time"

	"github.com/redis/rueidis"
)

//go:embed lua/*.lua
var sources embed.FS

// script is a Lua script that works on one key, so that it runs on every node of a cluster.
type script struct {
	source string
	sha    string
}

func load(name string) *script {
	source, err := sources.ReadFile("lua/" + name + ".lua")
	if err != nil { // only a broken build can lack it
		panic(err)
	}
	sum := sha1.Sum(source)
	return &script{source: string(source), sha: hex.EncodeToString(sum[:])}
}

// call is a command about one key: a script with its arguments, or, without a script, the SET that takes a free lock.
type call struct {
	script *script
	key    string
	args   arguments
}

// arguments are those of one call: an array, so that a call needs no memory of its own. Empty ones at the end are not
// sent; a script takes a missing one for empty.
type arguments [4]string

func (a *arguments) given() []string {
	n := len(a)
	for n > 0 && a[n-1] == "" {
		n--
	}
	return a[:n]
}

// send runs a call: a script by its digest where the server knows it.
func (c *call) send(ctx context.Context, way rueidis.CoreClient) (result rueidis.RedisResult) {
	result = way.Do(ctx, c.command(way.B()))
	if c.script != nil && noScript(result.Error()) {
		result = way.Do(ctx, c.bySource(way.B()))
	}
	return result
}

func (c *call) command(b rueidis.Builder) rueidis.Completed {
	if c.script == nil {
		return b.Arbitrary("SET").Keys(c.key).Args(c.args[0], "NX", "PX", c.args[1]).Build()
	}
	return c.bySum(b)
}

func (c *call) bySum(b rueidis.Builder) rueidis.Completed {
	return b.Evalsha().Sha1(c.script.sha).Numkeys(1).Key(c.key).Arg(c.args.given()...).Build()
}

func (c *call) bySource(b rueidis.Builder) rueidis.Completed {
	return b.Eval().Script(c.script.source).Numkeys(1).Key(c.key).Arg(c.args.given()...).Build()
}

// noScript tells whether the server does not know the script, after a restart for instance.
func noScript(err error) bool {
	reply, ok := rueidis.IsRedisErr(err)
	return ok && reply.IsNoScript()
}

// sendAll runs scripts in one pipeline. Those that the server does not know run again in a second one, if they are wanted
// still.
func sendAll(ctx context.Context, way rueidis.CoreClient, calls []call, wanted func(i int) bool) []rueidis.RedisResult {
	commands := make(rueidis.Commands, len(calls))
	for i, c := range calls {
		commands[i] = c.bySum(way.B())
	}
	results := way.DoMulti(ctx, commands...)
	var again []int
	var evals rueidis.Commands
	for i, result := range results {
		if noScript(result.Error()) && wanted(i) {
			again = append(again, i)
			evals = append(evals, calls[i].bySource(way.B()))
		}
	}
	if len(evals) > 0 {
		for i, result := range way.DoMulti(ctx, evals...) {
			results[again[i]] = result
		}
	}
	return results
}

// granted decodes the reply of a call that obtains: whether it did, or what remains of the lease of whoever has the lock,
// not positive when that has no end or was not asked.
func (c *call) granted(result rueidis.RedisResult) (granted bool, left time.Duration, err error) {
	if c.script == nil {
		if err = result.Error(); rueidis.IsRedisNil(err) {
			return false, 0, nil
		}
		return err == nil, 0, err
	}
	pttl, err := result.AsInt64()
	switch {
	case rueidis.IsRedisNil(err):
		return true, 0, nil
	case err != nil:
		return false, 0, err
	default:
		return false, remaining(pttl), nil
	}
}

// confirmed decodes the reply of a release or a renewal: 0 means that the key was not the hold's, as does a key of another
// type, which somebody put in its place.
func confirmed(result rueidis.RedisResult) (int64, error) {
	n, err := result.AsInt64()
	if wrongType(err) {
		return 0, nil
	}
	return n, err
}
