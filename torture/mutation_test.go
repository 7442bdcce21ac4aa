package torture

import (
	"encoding/json"
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

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
		"r.holds.Add(1), 10)", "1, 10)",
		"TestUnknownOutcomes$",
	},
	{
		"holds carry only the registry's id, in a storm", "registry.go",
		"r.holds.Add(1), 10)", "1, 10)",
		"TestLinearizable$",
	},
	{
		"abandoned grants are left behind", "acquisition.go",
		"if err != nil && a.hold.late {", "if false {",
		"TestUnknownOutcomes$",
	},
	{
		"the local half is free before the removal is known", "stray.go",
		"s.freed, s.late = freed, h.late", "freed()\n\ts.late = h.late",
		"TestUnknownOutcomes$",
	},
	{
		"a late grant wins over a later hold", "lua/spring_obtain.lua",
		"if not other or other > tonumber(number) then", "if not other then",
		"TestUnknownOutcomes$",
	},
	{
		"a late grant wins over a later hold, in Redisson's format", "lua/redisson_obtain.lua",
		"if not n or n > tonumber(number) then", "if not n then",
		"TestUnknownOutcomes$",
	},
	{
		"removals are tried again after a minute", "stray.go",
		"pause := t.reg.poll", "pause := t.watch",
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
		"until := sent.add(length - margin(length))", "until := h.lock.reg.clock.now().add(length - margin(length))",
		"TestLateReply|TestLinearizable$",
	},
	{
		"renewals of unknown outcome are forgotten", "hold.go",
		"if unknown(err) { // it may shorten the lease yet", "if false {",
		"TestOvertakenRenewal",
	},
	{
		"late grants are forgotten", "hold.go",
		"if h.late {\n\t\th.distrust", "if false {\n\t\th.distrust",
		"TestOvertakenGrant",
	},
	{
		"a transient failure ends the wait", "acquisition.go",
		"(!a.patient || !transient(err))", "true",
		"TestDisturbedWhileWaiting|TestUnknownOutcomes$",
	},
	{
		"nobody stands back", "acquisition.go",
		"if a.debt == 0 {", "if true {",
		"TestHandoffIsFair",
	},
	{
		"the lock is handed on without end", "hold.go",
		"due = h.since.until(now) >= limit", "due = false",
		"TestHandoffIsFair",
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
