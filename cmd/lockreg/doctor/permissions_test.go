package doctor_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry/cmd/lockreg/doctor"
	"github.com/lockregistry/lockregistry/internal/redistest"
	"github.com/lockregistry/lockregistry/observe"
)

// servers are the default one, those that are named for tests, and those that make servers has installed.
func servers(t *testing.T) []string {
	t.Helper()
	all := redistest.Binaries(t)
	more, err := filepath.Glob("../../../.servers/*-*")
	require.NoError(t, err)
	return append(all, more...)
}

// as is the option of a client of the user app.
func as(s *redistest.Server) rueidis.ClientOption {
	o := option(s.Addr())
	o.Username, o.Password = "app", "secret"
	return o
}

// looking is what the doctor itself needs to see everything.
const looking = "+info +config|get +acl|whoami +eval +scan +type +pttl +time +ping"

// Each mode that is looked at can be asked for, and is on the page.
func TestModes(t *testing.T) {
	t.Parallel()
	var seen []string
	for _, f := range examine(t, option(healthy(t).Addr())).Findings {
		if mode, ok := strings.CutPrefix(f.ID, "permission-"); ok {
			seen = append(seen, mode)
		}
	}
	require.Equal(t, doctor.Modes(), seen)
	page, err := os.ReadFile("README.md")
	require.NoError(t, err)
	require.Contains(t, string(page), "`"+strings.Join(seen, "`, `")+"`. Default: ")
}

// A user who may do nothing is told, for each mode, what to permit. Once that is permitted as it is written the mode has
// no finding any more, and nothing else was asked for.
func TestAdviceForEachMode(t *testing.T) {
	t.Parallel()
	for _, binary := range servers(t) {
		t.Run(filepath.Base(binary), func(t *testing.T) {
			t.Parallel()
			s := redistest.StartBinary(t, binary, "--appendonly", "yes")
			for _, layout := range []observe.Layout{observe.LayoutSpring, observe.LayoutRedisson} {
				for _, mode := range doctor.Modes() {
					s.Command(t, append([]string{"ACL", "SETUSER", "app", "reset", "on", ">secret"}, strings.Fields("+info +acl|whoami")...)...)
					needs := func(o *doctor.Options) { o.Need, o.Layout = []string{mode}, layout }
					severity := doctor.Error
					if slices.Contains([]string{"queue", "quiet", "tracking", "pubsub", "record", "list"}, mode) {
						severity = doctor.Warning
					}
					before := examine(t, as(s), needs)
					f := has(t, before, "permission-"+mode, severity)
					require.Equal(t, "app", before.User)
					follow(t, s, f)
					hasNot(t, examine(t, as(s), needs), "permission-"+mode)
				}
			}
		})
	}
}

// Each right that is missing is found, alone, and for no other mode than those that need it.
func TestEachRightThatIsMissing(t *testing.T) {
	s := healthy(t)
	everything := func(o *doctor.Options) { o.Need = doctor.Modes() }
	s.Command(t, strings.Fields("ACL SETUSER app reset on >secret "+looking)...)
	for range 2 { // a pattern that nothing is known of comes with the first
		for _, f := range findings(examine(t, as(s), everything), "") {
			follow(t, s, f)
		}
	}
	require.Empty(t, findings(examine(t, as(s), everything), ""))
	for right := range strings.FieldsSeq("get set exists pexpire pttl evalsha eval publish zadd zrem zrange zrevrange " +
		"zrangebyscore zscore zrank time pubsub|numsub script|exists subscribe unsubscribe client|tracking hget hgetall hexists " +
		"hkeys hset hmset hdel hlen hscan del type wait scan strlen zcount") {
		command, _, _ := strings.Cut(right, "|") // before Redis 7 only all of it can be taken
		s.Command(t, "ACL", "SETUSER", "app", "-"+command)
		found := findings(examine(t, as(s), everything), "")
		require.NotEmpty(t, found, right)
		for _, f := range found {
			require.Equal(t, []string{"ACL SETUSER app +" + right}, f.Commands, "%+v", f)
		}
		follow(t, s, found[0])
	}
	require.Empty(t, findings(examine(t, as(s), everything), ""))
}

// Keys and channels are told apart from commands.
func TestPatternsThatAreMissing(t *testing.T) {
	t.Parallel()
	for _, binary := range servers(t) {
		t.Run(filepath.Base(binary), func(t *testing.T) {
			t.Parallel()
			s := redistest.StartBinary(t, binary, "--appendonly", "yes")
			s.Command(t, strings.Fields("ACL SETUSER app reset on >secret +@all ~other:* resetchannels &other")...)
			for _, prefix := range []string{"orders", `o[1]*?\ä"'`} {
				change := func(o *doctor.Options) { o.Prefix, o.Need = prefix, []string{"lock", "queue", "readwrite"} }
				r := examine(t, as(s), change)
				lock, queue := has(t, r, "permission-lock", doctor.Error), has(t, r, "permission-queue", doctor.Warning)
				require.NotContains(t, lock.Commands[0], "+")
				require.NotContains(t, lock.Commands[0], "&")
				require.Contains(t, queue.Commands[0], "&")
				follow(t, s, lock)
				require.Contains(t, has(t, examine(t, as(s), change), "permission-readwrite", doctor.Error).Commands[0], "~{")
				follow(t, s, queue)
				follow(t, s, has(t, r, "permission-readwrite", doctor.Error))
				r = examine(t, as(s), change)
				for _, id := range []string{"permission-lock", "permission-queue", "permission-readwrite"} {
					hasNot(t, r, id)
				}
			}
		})
	}
}

// documentedUsers are the rights of programs in docs/permissions.md that have wake-ups: for Spring's format without
// tracking and with it, for the other kinds with it. A line either names them all, or what comes on top of those of the
// block's first user.
func documentedUsers(t *testing.T) (users [][]string) {
	t.Helper()
	page, err := os.ReadFile("../../../docs/permissions.md")
	require.NoError(t, err)
	var base []string
	blocks, mode := 0, ""
	for line := range strings.Lines(string(page)) {
		line = strings.TrimSpace(line)
		if title, is := strings.CutPrefix(line, "# "); is {
			mode = title
		}
		rights, full := strings.CutPrefix(line, "ACL SETUSER app on >secret ")
		_, more, additive := strings.Cut(line, ": and ")
		switch {
		case full && mode == "WithPolling":
			base = strings.Fields(rights)
			blocks++
		case blocks > 1 && !strings.HasPrefix(mode, "the default"):
		case full:
			users = append(users, strings.Fields(rights))
		case additive:
			users = append(users, slices.Concat(base, strings.Fields(more)))
		}
	}
	return users
}

// A user that is permitted what docs/permissions.md says for a mode is told nothing about it; and each of these rights is missed.
func TestDocumentedUsers(t *testing.T) {
	s := healthy(t)
	users := documentedUsers(t)
	require.Len(t, users, 4, "Spring's format without tracking and with it; then one each")
	for i, rights := range users {
		permit := func(but string) {
			s.Command(t, "ACL", "SETUSER", "app", "reset", "on", ">secret", "resetchannels", "+info")
			for _, right := range rights {
				if right != but {
					s.Command(t, "ACL", "SETUSER", "app", right)
				}
			}
		}
		permit("")
		need := []string{"lock", "queue", "quiet", "pubsub"}
		if i > 0 {
			need = append(need, "tracking")
		}
		if i < 2 {
			need = append(need, "fencing", "atleast", "record")
		}
		if i == 3 {
			need = []string{"readwrite", "queue", "quiet", "pubsub", "tracking", "record"}
		}
		change := func(o *doctor.Options) {
			o.Need = need
			if i == 2 {
				o.Layout = observe.LayoutRedisson
			}
		}
		missed := func() (all []string) {
			for _, f := range findings(examine(t, as(s), change), "") {
				if slices.Contains(need, strings.TrimPrefix(f.ID, "permission-")) {
					all = append(all, f.Commands...)
				}
			}
			return all
		}
		require.Empty(t, missed())
		if i < 1 {
			continue // the others have the same rights, and more
		}
		for _, right := range rights {
			if right == "+info" || right == "resetchannels" || i == 2 && right == "+set" {
				continue
			}
			permit(right)
			require.Contains(t, strings.Join(missed(), " "), right)
		}
	}
}

// What the page adds on a cluster is enough for a client to see that it is one, whatever rueidis asks a server of that version.
// So is what the doctor advises.
func TestDocumentedClusterClient(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../../docs/permissions.md")
	require.NoError(t, err)
	_, row, found := strings.Cut(string(page), "\n| a cluster | `")
	require.True(t, found)
	rights, _, _ := strings.Cut(strings.ReplaceAll(row, `\|`, "|"), "`")
	require.Contains(t, string(page), "\n- **On a cluster**: add `"+rights+"`")
	base := documentedUsers(t)[1]
	for _, binary := range servers(t) {
		t.Run(filepath.Base(binary), func(t *testing.T) {
			t.Parallel()
			nodes, err := redistest.RunCluster(binary, 1)
			require.NoError(t, err)
			s := nodes[0]
			t.Cleanup(s.Stop)
			permit := func(more ...string) {
				user := append([]string{"ACL", "SETUSER", "app", "reset", "on", ">secret"}, base...)
				s.Command(t, append(user, more...)...)
			}
			permit(strings.Fields(rights)...)
			require.Equal(t, rueidis.ClientModeCluster, dial(t, as(s)).Mode())
			permit()
			follow(t, s, has(t, examine(t, as(s)), "cluster-client", doctor.Error))
			hasNot(t, examine(t, as(s)), "cluster-client")
		})
	}
}

// What the doctor itself may not see is said.
func TestUnseen(t *testing.T) {
	s := healthy(t)
	s.Command(t, strings.Fields("ACL SETUSER app reset on >secret ~* &* +@all -info -config -scan")...)
	r := examine(t, as(s), func(o *doctor.Options) { o.Need = []string{"lock"} })
	f := has(t, r, "unseen", doctor.Info)
	require.Empty(t, findings(r, "eviction"))
	follow(t, s, f)
	require.Empty(t, findings(examine(t, as(s)), ""))

	// Without permission for scripts that write it uses those that read.
	s.Command(t, strings.Fields("ACL SETUSER app -eval")...)
	require.Empty(t, findings(examine(t, as(s), func(o *doctor.Options) { o.Need = []string{} }), "unseen"))
	s.Command(t, strings.Fields("ACL SETUSER app -eval_ro")...)
	f = has(t, examine(t, as(s), func(o *doctor.Options) { o.Need = []string{} }), "unseen", doctor.Info)
	require.Equal(t, []string{"ACL SETUSER app +eval"}, f.Commands)
	follow(t, s, f)
	require.Empty(t, findings(examine(t, as(s), func(o *doctor.Options) { o.Need = []string{} }), "unseen"))
}

// Where the first key of the prefix comes after many others, and may not be read, nothing is said of the keys.
func TestUnseenAfterOthers(t *testing.T) {
	s := healthy(t)
	s.Command(t, "EVAL", "for i = 1, 20000 do redis.call('SET', 'other' .. i, '1') end", "0")
	s.Command(t, "SET", "orders:42", "1")
	s.Command(t, strings.Fields("ACL SETUSER app reset on >secret ~* &* +@all -type")...)
	r := examine(t, as(s), func(o *doctor.Options) { o.Need = []string{} })
	has(t, r, "unseen", doctor.Info)
	for _, f := range r.Findings {
		require.NotContains(t, []string{"key-lease", "key-type"}, f.ID)
	}
}

// The other nodes of a cluster, which have no key of the prefix, say nothing about the one that could not be looked at.
func TestUnseenOnOneNode(t *testing.T) {
	nodes := redistest.StartCluster(t, 3)
	set := 0
	for _, s := range nodes {
		s.Command(t, strings.Fields("ACL SETUSER app reset on >secret ~* &* +@all -type")...)
		if _, err := s.Do("SET", "orders:42", "1"); err == nil { // the others say MOVED
			set++
		}
	}
	require.Equal(t, 1, set)
	r := examine(t, as(nodes[0]), func(o *doctor.Options) { o.Need = []string{} })
	has(t, r, "unseen", doctor.Info)
	for _, f := range r.Findings {
		require.NotContains(t, []string{"key-lease", "key-type"}, f.ID)
	}
}

// A server that has no scripts that only read, as Redis 6, does not hide which permission is missing.
func TestUnseenWithoutScriptsThatRead(t *testing.T) {
	s := healthy(t, "--rename-command", "EVAL_RO", "")
	s.Command(t, strings.Fields("ACL SETUSER app reset on >secret ~* &* +@all -eval")...)
	f := has(t, examine(t, as(s), func(o *doctor.Options) { o.Need = []string{} }), "unseen", doctor.Info)
	require.Equal(t, []string{"ACL SETUSER app +eval"}, f.Commands)
}

func TestCommandThatIsNotThere(t *testing.T) {
	s := healthy(t, "--rename-command", "EVALSHA", "")
	r := examine(t, option(s.Addr()), func(o *doctor.Options) { o.Need = []string{"fencing"} })
	f := has(t, r, "permission-fencing", doctor.Error)
	require.Contains(t, f.Seen, "EVALSHA")
	require.Contains(t, f.Do, "rename-command")
}
