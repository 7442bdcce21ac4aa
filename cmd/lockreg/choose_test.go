package main_test

import (
	"net"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestLsChooses(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	const id = "0b6e4bd7-6a8e-4f6e-9f0a-6a2f6d0f4c55"
	for path, lease := range map[string]string{"orders:1": "90000", "orders:2": "60000", "stock": "30000"} {
		s.Command(t, "SET", "shop:"+path, id, "PX", lease)
	}
	paths := func(args ...string) (found []string) {
		code, out, text := lockreg(t, s.url, append([]string{"list"}, args...)...)
		require.Zero(t, code, text)
		for _, line := range strings.Split(strings.TrimSpace(out), "\n")[1:] {
			found = append(found, strings.Fields(line)[0])
		}
		return found
	}
	assert.Equal(t, []string{"orders:1", "orders:2", "stock"}, paths("shop"))
	assert.Equal(t, []string{"stock", "orders:2", "orders:1"}, paths("shop", "--sort", "lease"))
	assert.Equal(t, []string{"orders:1", "and"}, paths("--limit", "1", "shop"))
	assert.Equal(t, []string{"orders:1", "orders:2"}, paths("shop", "der"))
	assert.Equal(t, []string{"orders:2"}, paths("shop", "o*2"))
	s.Command(t, "SET", "shop:a\xff", id, "PX", "600000") // a path may be any bytes
	assert.Equal(t, []string{`a\xff`}, paths("shop", "a\xff"))
	assert.Equal(t, []string{`a\xff`}, paths("shop", "a\xff*"))
	s.Command(t, "DEL", "shop:a\xff")
	code, _, text := lockreg(t, s.url, "ls", "--sort", "size", "shop")
	assert.Equal(t, 64, code)
	assert.Contains(t, text, `--sort is "size": it is waiting, path, held or lease`)

	code, out, text := lockreg(t, s.url, "ls", "--watch", "--json", "shop")
	assert.Equal(t, 64, code)
	assert.Empty(t, out)
	assert.Contains(t, text, "--watch prints tables: it does not go with --json")

	watch := prepare(s.url, "ls", "-w", "--interval", "0.05", "shop").begin(t)
	watch.says(t, ": 3 locks\n")
	s.Command(t, "DEL", "shop:stock")
	watch.says(t, ": 2 locks\n")

	code, out, _ = lockreg(t, s.url, "ls", "shpo")
	assert.Zero(t, code)
	assert.Contains(t, out, `no lock has the prefix "shpo": did you mean shop?`)
	code, out, _ = lockreg(t, s.url, "ls", "shop", "nothing")
	assert.Zero(t, code)
	assert.Equal(t, "nothing is locked, and nobody waits\n", out)
}

// What is probably dead can be chosen, and be chosen from.
func TestLsOfTheDead(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	const dead, alive = "0b6e4bd7-6a8e-4f6e-9f0a-6a2f6d0f4c55", "5f0c6f0e-1f4e-4d6c-9d5a-2f3e6f1a7b11"
	listed := func(args ...string) string {
		code, out, text := lockreg(t, s.url, append([]string{"ls", "--dead", "shop"}, args...)...)
		assert.Zero(t, code)
		assert.Empty(t, text)
		return out
	}
	s.Command(t, "SET", "shop:alive", alive+":1", "PX", "29000")
	assert.Equal(t, "no holder or waiter is probably dead\n", listed())
	assert.Equal(t, "no holder or waiter is probably dead\n", listed("--sort", "path"))
	assert.Equal(t, "[]\n", listed("--json"))
	for id, paths := range map[string][]string{dead: {"dead", "dead too"}, alive: {"alive"}} {
		var locks []string
		for _, path := range paths {
			locks = append(locks, `{"path":"`+path+`","hold":"1","since":5,"lease":600000}`)
			s.Command(t, "SET", "shop:"+path, id+":1", "PX", map[string]string{dead: "200000", alive: "599000"}[id])
		}
		s.Command(t, "SET", "shop:{"+id+"}:registry", `{"host":"h","pid":7,"locks":[`+strings.Join(locks, ",")+`]}`)
	}
	s.Command(t, "ZADD", "shop:{shop:gone}:waiters", strconv.FormatInt(time.Now().UnixMicro(), 10), dead+":1795310000000000|60000")
	out := listed()
	assert.Regexp(t, `(?m)^gone `, out)
	assert.Equal(t, 2, strings.Count(out, "probably dead or frozen"), out)
	assert.NotContains(t, out, "alive")
	out = listed("dead *")
	assert.Regexp(t, `(?m)^dead too `, out)
	assert.NotRegexp(t, `(?m)^dead  |^gone`, out)
	assert.Contains(t, listed("--limit", "1", "--sort", "path"), "and 2 more")
	assert.Equal(t, 3, strings.Count(listed("--json"), `"path":`))
}

func TestPrefixes(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	code, out, _ := lockreg(t, s.url, "prefixes")
	assert.Zero(t, code)
	assert.Equal(t, "nothing is locked under any prefix\n", out)
	const id = "0b6e4bd7-6a8e-4f6e-9f0a-6a2f6d0f4c55"
	s.Command(t, "SET", "shop:orders:42", id)
	s.Command(t, "SET", "shop:a", id+":1795310000000000+")
	s.Command(t, "SET", "my:app:{"+id+"}:registry", "{}")
	s.Command(t, "SET", "user:17", "name")
	s.Command(t, "SET", "user:18", "not-a-uuid-but-as-long-as-one-would-be:5")
	s.Command(t, "RPUSH", "list:1", id)
	code, out, _ = lockreg(t, s.url, "prefixes")
	assert.Zero(t, code)
	assert.Equal(t, "PREFIX  KEYS\nmy:app  1\nshop    2\n", out)
	_, out, _ = lockreg(t, s.url, "prefixes", "--json")
	assert.JSONEq(t, `[{"prefix": "my:app", "keys": 1}, {"prefix": "shop", "keys": 2}]`, out)

	_, out, _ = lockreg(t, s.url, "__complete", "ls", "s")
	assert.Equal(t, "shop\n:4\n", out)
	_, out, _ = lockreg(t, s.url, "__complete", "show", "shop", "")
	assert.Equal(t, "a\norders:42\n:4\n", out)
	s.Command(t, "SET", "shop:b c", id)
	_, out, _ = lockreg(t, s.url, "__complete", "show", "shop", "b")
	assert.Equal(t, "b c\n:4\n", out)
	_, out, _ = lockreg(t, "redis://127.0.0.1:1", "__complete", "show", "shop", "")
	assert.Equal(t, ":4\n", out)
}

func TestHints(t *testing.T) {
	t.Parallel()
	for says, args := range map[string][]string{
		`unknown command "relaese": did you mean release?`: {"relaese", "shop", "a"},
		`unknown flag: --no-wiat: did you mean no-wait?`:   {"run", "--no-wiat", "shop", "a", "true"},
		"unknown command \"xyzzy\"\n":                      {"xyzzy"},
		"write: lockreg doctor PREFIX":                     {"doctor"},
		"write: lockreg serve PREFIX...\n":                 {"serve"},
		"PREFIX PATH: did you mean lockreg show stock 42?": {"show", "stock:42"},
		"PREFIX PATH\n": {"release", "stock:"},
		`unknown command "unlock": did you mean release?`: {"unlock", "shop", "a"},
		`unknown command "status": did you mean ls?`:      {"status", "shop"},
	} {
		code, _, text := lockreg(t, "", args...)
		assert.Equal(t, 64, code)
		assert.Contains(t, text, says)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { _ = listener.Close() })
	go func() {
		for {
			c, err := listener.Accept()
			if err != nil {
				return
			}
			_, _ = c.Write([]byte("HTTP/1.1 400 Bad Request\r\n\r\n"))
			_ = c.Close()
		}
	}()
	code, _, text := lockreg(t, "redis://"+listener.Addr().String(), "ls", "shop")
	assert.Equal(t, 69, code)
	assert.Contains(t, text, "what answers there is not Redis")
}

// What is written nearly right is found: a path at which there is nothing, and a prefix. Nothing is guessed of what is right.
func TestNearMisses(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	const id = "0b6e4bd7-6a8e-4f6e-9f0a-6a2f6d0f4c55"
	s.Command(t, "SET", "orders:invoice:17", id, "PX", "600000")
	s.Command(t, "SET", "orders:stock", id, "PX", "600000")
	s.Command(t, "ZADD", "orders:{orders:waited}:waiters", strconv.FormatInt(time.Now().UnixMicro(), 10), id+":1795310000000000")
	for _, c := range []struct {
		says, never string
		code        int
		args        []string
	}{
		{`no lock has the path "invoice": did you mean invoice:17?`, "prefix", 0, []string{"show", "orders", "invoice"}},
		{`no lock has the path "17": did you mean invoice:17?`, "prefix", 0, []string{"show", "orders", "17"}},
		{`no lock has the path "stokc": did you mean stock?`, "prefix", 0, []string{"show", "orders", "stokc"}},
		{`no lock has the prefix "order": did you mean orders?`, "path \"", 0, []string{"show", "order", "invoice:17"}},
		{"nobody holds it", "did you mean", 0, []string{"show", "orders", "completely"}},
		{`no lock has the prefix "other"`, "did you mean", 0, []string{"show", "other", "invoice:17"}},
		{`nothing was changed; no lock has the prefix "other"`, "did you mean", 1, []string{"release", "other", "a", "--yes"}},
		{`lockreg: no lock has the prefix "other"`, "did you mean", 1, []string{"doctor", "other"}},
		{`lockreg: no lock has the prefix "other"`, "did you mean", 1, []string{"doctor", "--json", "other"}},
		{`lockreg: no lock has the prefix "other"`, "did you mean", 0, []string{"deadlocks", "--json", "other"}},
		{`lockreg: no lock has the prefix "other"`, "did you mean", 0, []string{"show", "--json", "other", "a"}},
		{`no lock has the path "orders:stock": did you mean stock?`, "prefix", 0, []string{"show", "orders", "orders:stock"}},
		{`no lock has the prefix "orders:stock": did you mean the prefix orders and the path stock?`, "path \"", 0,
			[]string{"ls", "orders:stock"}},
		{`lockreg: no lock has the prefix "other"`, "did you mean", 0, []string{"ls", "--limit", "3", "other"}},
		{`lockreg: no lock has the prefix "order": did you mean orders?`, "path \"", 0, []string{"ls", "--json", "order"}},
		{"nothing is locked", "prefix", 0, []string{"ls", "--limit", "3", "orders", "nowhere"}},
		{"nobody holds it", "did you mean", 0, []string{"show", "orders", "waited"}},
		{"stock", "did you mean", 0, []string{"show", "orders", "stock"}},
		{`nothing was changed; no lock has the prefix "order": did you mean orders?`, "path \"", 1,
			[]string{"release", "order", "invoice:17", "--yes"}},
		{`nothing was changed; no lock has the path "invoice": did you mean invoice:17?`, "prefix", 1,
			[]string{"release", "orders", "invoice"}},
		{"nothing was changed\n", "did you mean", 1, []string{"release", "orders", "waited"}},
		{`no deadlocks; no lock has the prefix "order": did you mean orders?`, "path \"", 0, []string{"deadlocks", "order"}},
		{"no deadlocks\n", "did you mean", 0, []string{"deadlocks", "orders"}},
		{`lockreg: no lock has the prefix "order": did you mean orders?`, "path \"", 1, []string{"doctor", "order"}},
		{"OK", "did you mean", 1, []string{"doctor", "orders"}},
	} {
		code, out, text := lockreg(t, s.url, c.args...)
		assert.Equal(t, c.code, code, c.args)
		assert.Contains(t, out+text, c.says, c.args)
		assert.NotContains(t, out+text, c.never, c.args)
	}
	_, out, text := lockreg(t, s.url, "show", "--json", "orders", "invoice")
	assert.NotContains(t, out, "did you mean")
	assert.Contains(t, text, `no lock has the path "invoice": did you mean invoice:17?`)
	assert.Equal(t, id, s.Command(t, "GET", "orders:invoice:17"))

	watch := prepare(s.url, "ls", "--watch", "--interval", "0.05", "other").begin(t)
	watch.says(t, ": 0 locks; no lock has the prefix \"other\"\n")
	serves := prepare(s.url, "serve", "other", "--listen", "127.0.0.1:0").begin(t)
	eventually(t, "it serves", func() bool { return strings.Contains(serves.err.String(), "msg=serving") })
	assert.Contains(t, serves.err.String(), `no lock has the prefix`)
	serves = prepare(s.url, "serve", "order", "--listen", "127.0.0.1:0").begin(t)
	eventually(t, "it serves", func() bool { return strings.Contains(serves.err.String(), "msg=serving") })
	assert.Contains(t, serves.err.String(), "did you mean orders?")
	serves = prepare(s.url, "serve", "orders", "--listen", "127.0.0.1:0").begin(t)
	eventually(t, "it serves", func() bool { return strings.Contains(serves.err.String(), "msg=serving") })
	assert.NotContains(t, serves.err.String(), "did you mean")
}

// The command needs no -- in front of it, and its flags are its own.
func TestRunWithoutDashes(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	for _, args := range [][]string{
		{"run", "shop", "a", "sh", "-c", "exit 42"}, {"lock", "-n", "shop", "a", "sh", "-c", "exit 42"},
		{"run", "shop", "a", "--wait", "1", "--", "sh", "-c", "exit 42"}, {"run", "shop", "-n", "a", "--", "sh", "-c", "exit 42"},
		{"run", "--lease", "5", "shop", "a", "-q", "sh", "-c", "exit 42"},
	} {
		code, _, text := lockreg(t, s.url, args...)
		assert.Equal(t, 42, code, "%v %s", args, text)
	}
	_, out, _ := lockreg(t, s.url, "run", "shop", "a", "echo", "--wait", "--", "-n")
	assert.Equal(t, "--wait -- -n\n", out)
	code, _, text := lockreg(t, s.url, "run", "shop", "a", "--")
	assert.Equal(t, 64, code)
	assert.Contains(t, text, "write: lockreg run PREFIX PATH [--] COMMAND [ARGUMENT...]")
}
