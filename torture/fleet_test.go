package torture

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry/internal/redistest"
)

// before is the library as it was before waiting calls queued in Redis: what git archive makes of commit 315ec02, less tests.
const before = "testdata/before-the-queue.tar.gz"

// peerProgram locks and unlocks a path for a while, and prints what it has seen. Who writes, as all do but readers, counts for a
// thousand.
const peerProgram = `package main

import (
	"context"
	"encoding/json"
	"os"
	"time"

	"github.com/redis/rueidis"

	"github.com/lockregistry/lockregistry"
)

func main() {
	lasts, _ := time.ParseDuration(os.Args[2])
	section, _ := time.ParseDuration(os.Args[3])
	client, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{os.Args[1]}})
	if err != nil {
		panic(err)
	}
	layout := lockregistry.LayoutSpring
	if os.Args[4] == "redisson" {
		layout = lockregistry.LayoutRedisson
	}
	r, err := lockregistry.New(client, "fleet", lockregistry.WithLayout(layout))
	if err != nil {
		panic(err)
	}
	ctx, l, weight := context.Background(), r.Obtain("path"), int64(1000)
	switch os.Args[4] {
	case "writer":
		l = r.ReadWrite("path").Writer()
	case "reader":
		l, weight = r.ReadWrite("path").Reader(), 1
	}
	var seen struct {
		Sections, Together int
		Longest            time.Duration
	}
	for end := time.Now().Add(lasts); time.Now().Before(end); {
		asked := time.Now()
		if err := l.Lock(ctx); err != nil {
			panic(err)
		}
		seen.Longest = max(seen.Longest, time.Since(asked))
		n, err := client.Do(ctx, client.B().Incrby().Key("inside").Increment(weight).Build()).AsInt64()
		if err != nil {
			panic(err)
		}
		if n > 1000 || weight == 1000 && n != 1000 {
			seen.Together++
		}
		time.Sleep(section)
		client.Do(ctx, client.B().Decrby().Key("inside").Decrement(weight).Build())
		seen.Sections++
		if err := l.Unlock(ctx); err != nil {
			panic(err)
		}
	}
	_ = json.NewEncoder(os.Stdout).Encode(seen)
}
`

// peer builds the program with the library in a folder, in which it is not written.
func peer(t *testing.T, library string) string {
	t.Helper()
	temporary := t.TempDir()
	source, overlay := filepath.Join(temporary, "main.go"), filepath.Join(temporary, "overlay.json")
	binary := filepath.Join(temporary, "peer")
	require.NoError(t, os.WriteFile(source, []byte(peerProgram), 0o600))
	files, err := json.Marshal(map[string]map[string]string{"Replace": {filepath.Join(library, "fleetpeer", "main.go"): source}})
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

// While a fleet is updated, processes of the version before contend with those that queue. They have no tickets, and are woken
// whenever the key changes. Nobody is inside with another who must not be, and nobody starves: who has no ticket gets the lock in
// one of the windows that releases leave.
func TestAFleetThatIsBeingUpdated(t *testing.T) { //nolint:tparallel // beside each other, but not beside all other tests
	now, err := filepath.Abs("..")
	require.NoError(t, err)
	programs := map[string]string{"before": peer(t, tree(t, before)), "now": peer(t, now)}
	type fleet struct {
		section time.Duration
		of      []string // what three processes of each version lock
	}
	fleets := map[string]fleet{
		"sections of 2 ms":          {2 * time.Millisecond, []string{"spring", "spring", "spring"}},
		"in Redisson's format":      {2 * time.Millisecond, []string{"redisson", "redisson", "redisson"}},
		"those who read, and write": {5 * time.Millisecond, []string{"reader", "reader", "writer"}},
	}
	if *full { // it takes all processors
		fleets["empty sections"] = fleet{0, []string{"spring", "spring", "spring"}}
	}
	for name, c := range fleets {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := redistest.Start(t)
			type run struct {
				version, of string
				out         bytes.Buffer
				command     *exec.Cmd
			}
			var runs []*run
			for _, of := range c.of {
				for version, program := range programs {
					r := &run{version: version, of: of, command: exec.Command(program, server.Addr(), "6s", c.section.String(), of)}
					r.command.Stdout, r.command.Stderr = &r.out, os.Stderr
					require.NoError(t, r.command.Start())
					runs = append(runs, r)
				}
			}
			for _, r := range runs {
				require.NoError(t, r.command.Wait())
				var seen struct {
					Sections int           `json:"sections"`
					Together int           `json:"together"`
					Longest  time.Duration `json:"longest"`
				}
				require.NoError(t, json.Unmarshal(r.out.Bytes(), &seen))
				t.Log(r.version, r.of, seen.Sections, seen.Longest)
				assert.Zero(t, seen.Together, r.version)
				assert.Positive(t, seen.Sections, r.version)
				assert.Less(t, seen.Longest, 4*time.Second, "%s: two seconds at p99, and a machine may be busy", r.version)
			}
		})
	}
}
