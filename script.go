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
	lua    *rueidis.Lua
	source string
	sha    string
}

func load(name string) *script {
	source, err := sources.ReadFile("lua/" + name + ".lua")
	if err != nil { // only a broken build can lack it
		panic(err)
	}
	sum := sha1.Sum(source)
	return &script{lua: rueidis.NewLuaScript(string(source)), source: string(source), sha: hex.EncodeToString(sum[:])}
}

// cancellable returns a context for commands. For one with a deadline, rueidis may wait for the reply until the deadline
// without looking whether the context is cancelled, and closes the connection, which other commands use too, when it
// comes. When it does not see the deadline it waits for the end of the context instead, which comes then as well.
func cancellable(ctx context.Context) context.Context {
	if _, ok := ctx.Deadline(); ok {
		return withoutDeadline{ctx}
	}
	return ctx
}

type withoutDeadline struct{ context.Context }

func (withoutDeadline) Deadline() (deadline time.Time, ok bool) { return time.Time{}, false }

// call is a script with its arguments.
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

// do runs a script, by its digest where the server knows it.
func (c call) do(ctx context.Context, client rueidis.Client) rueidis.RedisResult {
	return c.script.lua.Exec(ctx, client, []string{c.key}, c.args.given())
}

// doAll runs calls in one pipeline. Those whose script the server does not know, after a restart for instance, run again in
// a second one, if they are wanted still.
func doAll(ctx context.Context, client rueidis.Client, calls []call, wanted func(i int) bool) []rueidis.RedisResult {
	b := client.B()
	commands := make(rueidis.Commands, len(calls))
	for i, c := range calls {
		commands[i] = b.Evalsha().Sha1(c.script.sha).Numkeys(1).Key(c.key).Arg(c.args.given()...).Build()
	}
	results := client.DoMulti(ctx, commands...)
	var again []int
	var evals rueidis.Commands
	for i, result := range results {
		if reply, ok := rueidis.IsRedisErr(result.Error()); ok && reply.IsNoScript() && wanted(i) {
			c := calls[i]
			again = append(again, i)
			evals = append(evals, b.Eval().Script(c.script.source).Numkeys(1).Key(c.key).Arg(c.args.given()...).Build())
		}
	}
	if len(evals) > 0 {
		for i, result := range client.DoMulti(ctx, evals...) {
			results[again[i]] = result
		}
	}
	return results
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
