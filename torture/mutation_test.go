package torture

import (
	"encoding/json"
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

var mutate = flag.Bool("mutate", false, "break the library in copies of its files, and see that the tests notice")

// mutation is one way to break the library: a text of one of its files and what to put in its place.
type mutation struct {
	name, file, old, new string
	caught               string // by which tests
}

var mutations = []mutation{
	{
		"holds carry only the registry's id", "registry.go",
		"r.values...), r.number(), 10)", "r.values...), 1, 10)",
		"TestUnknownOutcomes$",
	},
	{
		"holds carry only the registry's id, in a storm", "registry.go",
		"r.values...), r.number(), 10)", "r.values...), 1, 10)",
		"TestLinearizable$",
	},
	{
		"abandoned grants are left behind", "acquisition.go",
		"if first.hold.late {", "if false {",
		"TestUnknownOutcomes$",
	},
	{
		"the local half is free before the removal is known", "stray.go",
		"s.freed, s.late = freed, h.late", "freed()\n\ts.late = h.late",
		"TestUnknownOutcomes$",
	},
	{
		"a late grant wins over a later hold", "lua/spring_claim.lua",
		"taken = not other or other > tonumber(number)", "taken = not other",
		"TestUnknownOutcomes$",
	},
	{
		"a late grant wins over a later hold, in Redisson's format", "lua/redisson_claim.lua",
		"if not n or n > tonumber(number) then", "if not n then",
		"TestUnknownOutcomes$",
	},
	{
		"removals are tried again after a minute", "stray.go",
		"pause = backoff(t.failed, t.lease)", "pause = t.watch",
		"TestUnknownOutcomes$",
	},
	{
		"one removal is enough for a late grant", "stray.go",
		"case !t.late:", "case true:",
		"TestUnknownOutcomes$",
	},
	{
		"leases have no margin", "hold.go",
		"return lease/100 + time.Millisecond }", "return 0 * lease }",
		"TestFrozen|TestOvertaken",
	},
	{
		"leases count from the reply", "hold.go",
		"h.until = max(h.until, sent.add(length-margin(length)))",
		"h.until = max(h.until, h.lock.reg.clock.now().add(length-margin(length)))",
		"TestLateReply|TestLinearizable$",
	},
	{
		"renewals of unknown outcome are forgotten", "hold.go",
		"open := unknown(err) // an error", "open := err == nil // an error",
		"TestOvertakenRenewal",
	},
	{
		"late grants are forgotten", "hold.go",
		"if h.late {\n\t\th.distrust", "if false {\n\t\th.distrust",
		"TestOvertakenGrant",
	},
	{
		"a transient failure ends the wait", "acquisition.go",
		"return !a.cut && transient(err)", "return false",
		"TestDisturbedWhileWaiting|TestUnknownOutcomes$",
	},
	{
		"nobody stands back", "chances.go",
		"return c != nil && c.yields.Swap(false)", "return c != nil && false",
		"TestHandoffIsFair",
	},
	{
		"who is to stand back tries first", "crowd.go",
		"(c.contested.Load() || c.yields.Load() || l.busy())", "(c.contested.Load() || l.busy())",
		"TestHandoffIsFair",
	},
	{
		"the lock is handed on without end", "hold.go",
		"due = h.since.until(now) >= limit", "due = false",
		"TestHandoffIsFair",
	},
	{
		"a writer does not mind readers", "lua/redisson_write_obtain.lua",
		"others = true", "others = mode == 'write'",
		"TestReadWriteLinearizable/library$",
	},
	{
		"a writer takes later holds of its registry for lost ones", "lua/redisson_write_obtain.lua",
		"if n and n < tonumber(number) then", "if n then",
		"TestUnknownOutcomes$/sharing",
	},
	{
		"a reader takes a later writer of its registry for a lost one", "lua/redisson_read_obtain.lua",
		"lost = lost and n and n < tonumber(number)", "lost = lost and n",
		"TestLateReader$",
	},
	{
		"a reader does not mind a writer", "lua/redisson_read_obtain.lua",
		"if (not mode or mode == 'read' or under) and not waits then", "if not waits then",
		"TestReadWriteLinearizable/library$",
	},
	{
		"a reader with a ticket does not mind a writer", "lua/admit.lua",
		"kind == 'r' and mode == 'read'", "kind == 'r'",
		"TestReadWriteLinearizable/library$",
	},
	{
		"the lease of a reader ends others'", "lua/grant.lua",
		"math.max(left, tonumber(lease))", "lease",
		"TestReadingBesideLongerLease",
	},
	{
		"the renewal of a reader ends others'", "lua/redisson_read_renew.lua",
		"redis.call('HLEN', KEYS[1]) == 2 or", "true or",
		"TestReadingOn",
	},
	{
		"the renewal of a writer ends its reader", "lua/redisson_write_renew.lua",
		"redis.call('HLEN', KEYS[1]) == 2 or", "true or",
		"TestRenewalUnderReader",
	},
	{
		"a reader that leaves takes the others' lock", "lua/settle.lua",
		"if longest == 0 then", "if true then",
		"TestReadWriteLinearizable/library$",
	},
	{
		"a reader that leaves takes its own writer's lock", "lua/settle.lua",
		"elseif string.sub(fields[i], -6) == ':write' then", "elseif false then",
		"TestReadWriteLinearizable/library$",
	},
	{
		"a writer that leaves takes its own reader's lock", "lua/settle.lua",
		"if longest == 0 then", "if true then",
		"TestReadingOn",
	},
	{
		"readers do not wait for a writer of the same process", "localreadwrite.go",
		"case l.write.phase != phaseFree && !l.write.heldBy(o):", "case false:",
		"TestReadWriteLinearizable/library$",
	},
	{
		"writers do not wait for readers of the same process", "localreadwrite.go",
		"if l.write.phase != phaseFree || l.read.phase != phaseFree {", "if l.write.phase != phaseFree {",
		"TestReadWriteLinearizable/library$",
	},
	{
		"the first reader that leaves ends the hold of all", "localreadwrite.go",
		"if len(s.owners) > 0 {\n\t\treturn leaves", "if false {\n\t\treturn leaves",
		"TestReadWriteLinearizable/library$",
	},
	{
		"what a reader has under its own writer is not told to Redis", "acquisition.go",
		"first.under = l.pair.under()", "_ = l.pair.under()",
		"TestReadWriteLinearizable/library$",
	},
	{
		"no answer is late", "transport.go",
		"came, took := x.came, x.sent.until(x.came)\n", "came, took := x.came, time.Duration(0)\n\tx.sent = came\n",
		"TestOutage$",
	},
	{
		"a late grant is believed at once", "acquisition.go",
		"case err != nil || !reply.late:", "case true:",
		"TestDeposed$|TestOutage$",
	},
	{
		"commands keep to the connections that were silent", "transport.go",
		"\t\t\tway, e.trusted = fresh, true", "\t\t\te.trusted = true",
		"TestOutage$",
	},
	{
		"a connection that the old master has greeted late is used", "transport.go",
		"if client == nil || since.until(now) >= l.trip().connect() || l.closed", "if client == nil || l.closed",
		"TestOutage$",
	},
	{
		"the old master is believed again before it is demoted", "transport.go",
		"= 30 * time.Second       // after a late", "= 5 * time.Second // after a late",
		"TestOutage$",
	},
	{
		"a late removal is believed at once", "redislock.go",
		"if err == nil && !reply.late {", "if err == nil {",
		"TestDeposed$",
	},
	{
		"a grant counts from its message", "queue.go",
		"a.hold.grantShort(a.base, m.granted)", "a.hold.grantShort(a.lock.reg.clock.now(), m.granted)",
		"TestQueueOutcomes",
	},
	{
		"a call that gives up leaves its ticket", "queue.go",
		"a.box.open(\"\")\n\tif a.older == \"\" {", "if true {",
		"TestQueueOutcomes",
	},
	{
		"a short release does not mind whose key it is", "lua/spring_release_alone.lua",
		"if redis.call('GET', key) == value then", "if true then",
		"TestUnknownOutcomes$|TestLinearizable$",
	},
	{
		"who asks for a ticket takes the key in passing", "lua/spring_obtain_ticket.lua",
		"if held then", "if held and false then",
		"TestLinearizable$",
	},
	{
		"a call that gives up does not pass on a grant", "lua/spring_end.lua",
		"if over then\n      local ok", "if over and (ticket == '' or ticket == '+') then\n      local ok",
		"TestQueueOutcomes",
	},
	{
		"a call that gives up does not pass on a grant, in Redisson's format", "lua/redisson_end.lua",
		"if over then\n      local ok", "if over and (ticket == '' or ticket == '+') then\n      local ok",
		"TestQueueOutcomes",
	},
	{
		"a ticket that is served stays", "lua/serve.lua",
		"    redis.call('ZREM', queue, first)\n    if to then", "    if to then",
		"TestQueueOutcomes",
	},
	{
		"the dead are served", "lua/serve.lua",
		"channel(registry))[2] > 0", "channel(registry))[2] >= 0",
		"TestQueueOutcomes",
	},
	{
		"a grant has the whole lease", "lua/serve.lua",
		"tonumber(lease) < tonumber(PROVISIONAL) and lease or PROVISIONAL", "lease",
		"TestNothingStaysBlocked",
	},
	{
		"a granted hold is not lengthened", "hold.go",
		"h.next = lengthening(now, until)", "h.next = never",
		"TestQueueOutcomes",
	},
	{
		"one number for two attempts", "queue.go",
		"a.renumber()\n\t\t}\n\t\tw.place", "}\n\t\tw.place",
		"TestQueueOutcomes",
	},
	{
		"the ticket of an abandoned attempt stays", "queue.go",
		"a.lock.reg.sweep(s, patience{ctx: context.Background(), limit: unlockGrace})\n\t\ta.hold.late", "a.hold.late",
		"TestQueueOutcomes",
	},
	{
		"a grant to nobody is kept", "queue.go",
		"r.scheduler.claim(l.unclaimed(m.number))", "_ = m",
		"TestQueueOutcomes",
	},
	{
		"a hold that was found is lost with its own message", "queue.go",
		"a.hold.awaitMessage(a.lock.reg.clock.now().add(plus(a.lock.reg.acknowledging(), suspicion)))", "a.hold.awaitMessage(0)",
		"TestQueueOutcomes",
	},
	{
		"who reads does not know that its owner was granted the writer", "acquisition.go",
		"l.pair.wrote = a.hold.value", "_ = a.hold.value",
		"TestReadingUnderGrantedWriter",
	},
	{
		"a path that stays taken has an older hold of its registry", "lua/spring_end.lua",
		"value .. ':atleast', 'PX', keep", "value, 'PX', keep",
		"TestReleasesOfUnknownOutcome",
	},
	{
		"a path that stays taken has an older hold of its registry, in Redisson's format", "lua/redisson_end.lua",
		"redis.call('HSET', key, field .. ':atleast', '1')\n  redis.call('HDEL', key, field)", "redis.call('HSET', key, field, '1')",
		"TestReleasesOfUnknownOutcome",
	},
	{
		"a release that is tried again does not keep the path", "stray.go",
		"kept:  h.extra().kept,", "",
		"TestReleasesOfUnknownOutcome",
	},
	{
		"a hold is released twice", "acquire.go",
		"if before&released != 0 {", "if false {",
		"TestReleasesOfUnknownOutcome",
	},
	{
		"replicas are waited for on another connection", "replicas.go",
		"	results := client.DoMulti(t.ctx, commands...)\n",
		"	last := len(commands) - 1\n	var results []rueidis.RedisResult\n	if last > 0 {\n" +
			"		results = client.DoMulti(t.ctx, commands[:last]...)\n	}\n	results = append(results, t.client.Do(t.ctx, " +
			"t.client.B().Wait().Numreplicas(int64(n)).Timeout(slice.Milliseconds()).Build()))\n",
		"TestReplicas$",
	},
	{
		"what too few replicas have is granted", "acquisition.go",
		"err = a.giveBack(reply.short)", "_ = a.giveBack",
		"TestReplicas$",
	},
	{
		"what too few replicas have is not given back", "acquisition.go",
		"a.lock.reg.sweep(s, patience{ctx: context.Background(), limit: unlockGrace})\n	a.hold, a.at", "_ = s\n	a.hold, a.at",
		"TestReplicas$",
	},
	{
		"a renewal counts that too few replicas have", "hold.go",
		"		err = reply.short\n", "",
		"TestReplicas$",
	},
	{
		"a grant counts although no replica is known to have it", "queue.go",
		"!wary && !a.writes() &&", "!wary &&",
		"TestReplicas$",
	},
	{
		"a hold that is granted once more goes on", "queue.go",
		"\th.regranted()", "\t_ = h",
		"TestQueueOutcomes",
	},
	{
		"a range of tokens is drawn twice", "lua/redisson_draw.lua",
		"counter, 100)\n  return type(last) == 'table' and last or last - 99",
		"counter, 1)\n  return type(last) == 'table' and last or last",
		"TestTokensGrow$/redisson",
	},
	{
		"a process uses up its tokens though another one had the lock", "fencing.go",
		"		e := h.own()\n		e.token, e.spare = first, tokensDrawn-1\n	}\n}",
		"		all := <-ranges\n		if last := all[h.lock]; first > 0 && last > 0 {\n			first = last + 1\n		}\n" +
			"		if first > 0 {\n			all[h.lock] = first\n		}\n" +
			"		ranges <- all\n		e := h.own()\n		e.token, e.spare = first, tokensDrawn-1\n	}\n}\n\n" +
			"var ranges = make(chan map[*Lock]uint64, 1)\n\nfunc init() { ranges <- map[*Lock]uint64{} }",
		"TestTokensGrow$/library",
	},
	{
		"the next owner in the process has the same token", "fencing.go",
		"	e.token++\n", "",
		"TestTokensGrow$/library",
	},
	{
		"a call that was granted the lock by another process has no token", "queue.go",
		"return a.lock.kind.fencing || a.lock.reg.replicas != nil", "return a.lock.reg.replicas != nil",
		"TestTokensGrow$/redisson",
	},
	{
		"a call that gives up keeps the first of its paths", "acquireall.go",
		"			giveBack(holds)\n			return nil, err\n		}\n		holds = append",
		"			return nil, err\n		}\n		holds = append",
		"TestAllOrNone$",
	},
	{
		"paths whose grant may have been lost are forgotten", "acquireall.go",
		"case granted || taken == 0 && unknown(err):", "case false:",
		"TestAllOrNone$",
	},
	{
		"paths are obtained up to the one that is taken", "lua/spring_obtain_all.lua",
		"      return i\n",
		"      for k = 1, i - 1 do redis.call('SET', KEYS[k], ARGV[5 + k], 'PX', ARGV[2]) end\n      return i\n",
		"TestAllOrNone$",
	},
	{
		"a late grant of several paths wins over a later hold", "lua/spring_obtain_all.lua",
		"if not other or other > tonumber(number) then", "if not other then",
		"TestAllOrNone$",
	},
	{
		"a late grant of several paths wins over a later hold, in Redisson's format", "lua/redisson_obtain_all.lua",
		"if not other or other > tonumber(number) then", "if not other then",
		"TestAllOrNone$",
	},
	{
		"paths are waited for in the order in which they are given", "acquireall.go",
		"	slices.Sort(sorted)\n", "",
		"TestNobodyWaitsForEachOther$",
	},
}

// TestMutations is for when these tests change: it takes long, and proves nothing about the library.
func TestMutations(t *testing.T) {
	if !*mutate {
		return
	}
	root, err := filepath.Abs("..")
	require.NoError(t, err)
	for _, m := range mutations {
		t.Run(strings.ReplaceAll(m.name, " ", "_"), func(t *testing.T) {
			file := filepath.Join(root, m.file)
			source, err := os.ReadFile(file)
			require.NoError(t, err)
			require.Equal(t, 1, strings.Count(string(source), m.old), "%s has changed: %q", m.file, m.old)
			folder := t.TempDir()
			require.NoError(t, os.CopyFS(folder, os.DirFS(filepath.Join(root, "lua"))))
			broken := filepath.Join(folder, filepath.Base(m.file))
			require.NoError(t, os.WriteFile(broken, []byte(strings.Replace(string(source), m.old, m.new, 1)), 0o600))
			overlay, err := json.Marshal(map[string]any{"Replace": map[string]string{file: broken}})
			require.NoError(t, err)
			list := filepath.Join(t.TempDir(), "overlay.json")
			require.NoError(t, os.WriteFile(list, overlay, 0o600))
			test := exec.Command("go", "test", "-race", "-count=1", "-overlay", list, "-run", m.caught, ".")
			test.Env = append(os.Environ(), luaVariable+"="+folder)
			output, err := test.CombinedOutput()
			var failed *exec.ExitError
			require.ErrorAs(t, err, &failed, "nothing noticed:\n%s", output)
			require.NotContains(t, string(output), "[build failed]")
			found := strings.Count(string(output), "--- FAIL: ")
			t.Logf("%d tests failed; the end of what they say:\n%s", found, output[max(0, len(output)-600):])
			require.Positive(t, found, "%s", output)
		})
	}
}

// The mutations keep up with the library.
func TestMutationsApply(t *testing.T) {
	for _, m := range mutations {
		source, err := os.ReadFile(filepath.Join("..", m.file))
		require.NoError(t, err)
		assert.Equal(t, 1, strings.Count(string(source), m.old), "%s: %s has changed: %q", m.name, m.file, m.old)
	}
}
