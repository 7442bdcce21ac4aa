package torture

import (
	"crypto/sha1"
	"encoding/hex"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry/internal/peer"
	"github.com/lockregistry/lockregistry/internal/protocol"
	"github.com/lockregistry/lockregistry/internal/redistest"
)

// before is the library before waiting calls queued in Redis: git archive of commit 315ec02, without tests.
const before = "testdata/before-the-queue.tar.gz"

// peerProgram locks and unlocks a path for a while, and replies what it has seen. A reader counts 1 inside, any other owner
// 1000.
const peerProgram = `package main

import (
	"context"
	"errors"
	"os"
	"strconv"
	"time"

	"github.com/redis/rueidis"

	"github.com/lockregistry/lockregistry"
	"github.com/lockregistry/lockregistry/internal/peer"
)

func main() {
	if err := peer.Serve(os.Stdin, os.Stdout, run); err != nil {
		panic(err)
	}
}

func run(request peer.Fields) (peer.Fields, error) {
	lasts, _, _ := request.Millis("for")
	section, _, _ := request.Millis("section")
	client, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{request["addr"]}})
	if err != nil {
		return nil, err
	}
	var layout []lockregistry.Option
	if request["of"] == "redisson" {
		layout = append(layout, lockregistry.REDISSON)
	}
	r, err := lockregistry.New(client, "fleet", layout...)
	if err != nil {
		return nil, err
	}
	ctx, l, weight := context.Background(), r.Obtain("path"), int64(1000)
	switch request["of"] {
	case "writer":
		l = r.ReadWrite("path").Writer()
	case "reader":
		l, weight = r.ReadWrite("path").Reader(), 1
	}
	var sections, together int
	var longest time.Duration
	for end := time.Now().Add(lasts); time.Now().Before(end); {
		asked := time.Now()
		err := l.Lock(ctx)
		for errors.Is(err, lockregistry.ErrUnavailable) && time.Now().Before(end) { // on a busy machine the answer may be late
			err = l.Lock(ctx)
		}
		if errors.Is(err, lockregistry.ErrUnavailable) {
			break
		}
		if err != nil {
			return nil, err
		}
		longest = max(longest, time.Since(asked))
		n, err := client.Do(ctx, client.B().Incrby().Key("inside").Increment(weight).Build()).AsInt64()
		if err != nil {
			return nil, err
		}
		if n > 1000 || weight == 1000 && n != 1000 {
			together++
		}
		time.Sleep(section)
		client.Do(ctx, client.B().Decrby().Key("inside").Decrement(weight).Build())
		sections++
		err = l.Unlock(ctx)
		if err != nil && !errors.Is(err, lockregistry.ErrUnavailable) && !errors.Is(err, lockregistry.ErrLockLost) {
			return nil, err
		}
	}
	return peer.Fields{
		"sections": strconv.Itoa(sections), "together": strconv.Itoa(together), "longest": peer.InMillis(longest),
	}, nil
}
`

// fleetPeer builds the program with the library in a folder, to which it writes nothing. Redisson is the option for its layout.
func fleetPeer(t *testing.T, library, redisson string) string {
	t.Helper()
	temporary := t.TempDir()
	source, overlay := filepath.Join(temporary, "main.go"), filepath.Join(temporary, "overlay.json")
	binary := filepath.Join(temporary, "peer")
	require.NoError(t, os.WriteFile(source, []byte(strings.ReplaceAll(peerProgram, "REDISSON", redisson)), 0o600))
	replace := map[string]string{filepath.Join(library, "fleetpeer", "main.go"): source}
	driver, err := filepath.Glob("../../internal/peer/*.go")
	require.NoError(t, err)
	for _, file := range driver {
		replace[filepath.Join(library, "internal", "peer", filepath.Base(file))], err = filepath.Abs(file)
		require.NoError(t, err)
	}
	files, err := json.Marshal(map[string]map[string]string{"Replace": replace})
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(overlay, files, 0o600))
	build := exec.Command("go", "build", "-overlay", overlay, "-o", binary, "./fleetpeer")
	build.Dir = library
	build.Env = append(os.Environ(), "GOWORK=off")
	output, err := build.CombinedOutput()
	require.NoError(t, err, "%s", output)
	return binary
}

// tree unpacks a library.
func tree(t *testing.T, archive string) string {
	t.Helper()
	folder := t.TempDir()
	output, err := exec.Command("tar", "-xzf", archive, "-C", folder).CombinedOutput()
	require.NoError(t, err, "%s", output)
	return folder
}

// TestScriptsBeforeTheQueueAreKnown expects that the library knows the scripts of calls that wait without a ticket.
func TestScriptsBeforeTheQueueAreKnown(t *testing.T) {
	t.Parallel()
	library := tree(t, before)
	for _, name := range []string{"spring_obtain", "redisson_obtain", "redisson_read_obtain", "redisson_write_obtain"} {
		source, err := os.ReadFile(filepath.Join(library, "lua", name+".lua"))
		require.NoError(t, err)
		sum := sha1.Sum(source)
		require.Contains(t, protocol.Foreign(), hex.EncodeToString(sum[:]), name)
	}
}

// TestAFleetThatIsBeingUpdated has processes of the version before contend with those that queue. They have no tickets, and are
// woken whenever the key changes. Exclusion must hold, and nobody may starve: a call without a ticket gets the lock in one of
// the windows that releases leave.
func TestAFleetThatIsBeingUpdated(t *testing.T) { //nolint:tparallel // beside each other, but not beside all other tests
	now, err := filepath.Abs("../..")
	require.NoError(t, err)
	programs := map[string]string{
		"before": fleetPeer(t, tree(t, before), "WithLayout(lockregistry.LayoutRedisson)"),
		"now":    fleetPeer(t, now, "WithRedissonLayout()"),
	}
	type fleet struct {
		section time.Duration
		of      []string // what the three processes of each version lock
	}
	fleets := map[string]fleet{
		"sections of 2 ms":          {2 * time.Millisecond, []string{"spring", "spring", "spring"}},
		"in Redisson's format":      {2 * time.Millisecond, []string{"redisson", "redisson", "redisson"}},
		"those who read, and write": {5 * time.Millisecond, []string{"reader", "reader", "writer"}},
	}
	if *full { // it uses all processors
		fleets["empty sections"] = fleet{0, []string{"spring", "spring", "spring"}}
	}
	for name, c := range fleets {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := redistest.Start(t)
			var runs []*peer.Call
			for _, of := range c.of {
				for version, program := range programs {
					p, err := peer.Start(version+" "+of, exec.Command(program))
					require.NoError(t, err)
					defer func() { assert.NoError(t, p.Close()) }()
					runs = append(runs, p.Send("main", "contend", peer.Fields{
						"addr": server.Addr(), "for": "12000", "section": peer.InMillis(c.section), "of": of,
					}))
				}
			}
			for _, r := range runs {
				seen, err := r.Wait(t.Context())
				require.NoError(t, err)
				longest, _, err := seen.Millis("longest")
				require.NoError(t, err)
				t.Log(r.What(), seen.Fields["sections"], longest)
				assert.Equal(t, "0", seen.Fields["together"], r.What())
				assert.NotEqual(t, "0", seen.Fields["sections"], r.What())
				assert.Less(t, longest, 9*time.Second, "%s: two seconds at p99, and a machine may be busy", r.What())
			}
		})
	}
}
