package lockregistry_test

import (
	"archive/tar"
	"compress/gzip"
	"errors"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/fstest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry"
	"github.com/lockregistry/lockregistry/internal/protocol"
)

// A process that is far away has zeros in front of the lease in its ticket: its grants have longer short leases.

// releases are what grants the lock to d:2 when a:1 releases it: calls of this version.
var releases = map[string]protocol.Call{
	"spring":             protocol.NewSpring(config).Release(releaseOf("")),
	"spring, direct":     protocol.NewSpring(config).Release(releaseOf(protocol.Direct)),
	"redisson":           protocol.NewRedisson(config).Release(releaseOf("")),
	"redisson, direct":   protocol.NewRedisson(config).Release(releaseOf(protocol.Direct)),
	"redisson, a writer": protocol.NewWrite(config).Release(releaseOf("")),
}

func releaseOf(known protocol.Known) protocol.Release {
	return protocol.Release{Key: theKey, Value: "a:1", Queued: true, Known: known}
}

// releasesBefore are the scripts of the version before, and what they are given.
var releasesBefore = map[string][]string{
	"spring_release":         {"a:1", "orders-channel:", "orders"},
	"spring_release_heir":    {"a:1", "orders-channel:", "orders", "", "99"},
	"redisson_release":       {"a:1", "PUBLISH", "c", "{" + theKey + "}", "orders"},
	"redisson_release_heir":  {"a:1", "PUBLISH", "c", "orders", "", "99"},
	"redisson_write_release": {"a:1", "PUBLISH", "c", "{" + theKey + "}", "orders"},
}

// grants has a release serve a ticket in a window that is over, with a short lease of so many milliseconds, and tells what was
// told.
func (w *world) grants(heard <-chan string, name string, release func() string, ticket string, lease int) (told string) {
	w.Helper()
	s := &scripted{w, strings.HasPrefix(name, "redisson")}
	kinds := []string{""}
	if strings.Contains(name, "writ") {
		kinds = []string{"w", "r"}
	}
	for _, kind := range kinds {
		s.begins("a:1", ticket+kind)
		if kind != "" {
			s.do("DEL", theKey)
			s.do("HSET", theKey, "mode", "write", "a:1:write", "1")
		}
		start := time.Now()
		require.Equal(w, "2", release(), "%s of %s", name, ticket+kind)
		require.Empty(w, s.queue())
		ms, err := strconv.Atoi(w.do("PTTL", theKey))
		require.NoError(w, err)
		require.LessOrEqual(w, ms, lease, "%s of %s", name, ticket)
		require.GreaterOrEqual(w, ms+2, lease-int(time.Since(start).Milliseconds()), "%s of %s", name, ticket)
		told = <-heard
	}
	return told
}

func TestSlowLink_GrantsToTicketsFromFarAway(t *testing.T) {
	realWorlds(t, func(w *world) {
		heard := w.attends(w.client(), "d")
		for ticket, lease := range map[string]int{
			"d:2|60000": 1000, "d:2|060000": 2000, "d:2|0060000": 4000, "d:2|00060000": 8000, "d:2|0000060000": 8000,
			"d:2|003000": 3000, "d:2|000500": 500, "d:2|500": 500,
		} {
			for name, call := range releases {
				told := w.grants(heard, name, func() string { return w.runs(call) }, ticket, lease)
				require.Contains(w, told, "g 2 "+strconv.Itoa(lease)+" ", "%s of %s", name, ticket)
			}
		}
	})
}

// before are the scripts of the version before tickets had zeros, as it was published.
func before(t *testing.T) map[string]string {
	t.Helper()
	archive, err := os.Open("testdata/lua-before.tar.gz")
	require.NoError(t, err)
	defer func() { require.NoError(t, archive.Close()) }()
	unzipped, err := gzip.NewReader(archive)
	require.NoError(t, err)
	files := fstest.MapFS{}
	for all := tar.NewReader(unzipped); ; {
		header, err := all.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		require.NoError(t, err)
		if name, ok := strings.CutPrefix(header.Name, "lua/"); ok && name != "" {
			source, err := io.ReadAll(all)
			require.NoError(t, err)
			files[name] = &fstest.MapFile{Data: source}
		}
	}
	scripts := map[string]string{}
	for file := range files {
		name := strings.TrimSuffix(file, ".lua")
		scripts[name] = included(t, files, file)
	}
	return scripts
}

// included is a script of that version: a line "-- include NAME" stands for the file NAME.lua.
func included(t *testing.T, files fstest.MapFS, file string) string {
	t.Helper()
	require.Contains(t, files, file)
	var script strings.Builder
	for line := range strings.Lines(string(files[file].Data)) {
		if part, ok := strings.CutPrefix(strings.TrimSpace(line), "-- include "); ok {
			script.WriteString(included(t, files, part+".lua"))
		} else {
			script.WriteString(line)
		}
	}
	return script.String()
}

// While a fleet is rolled over the version before reads these tickets: it grants them what it grants all.
func TestSlowLink_TicketsFromFarAwayAndTheVersionBefore(t *testing.T) {
	old := before(t)
	realWorlds(t, func(w *world) {
		heard := w.attends(w.client(), "d")
		for _, zeros := range []string{"", "0", "00", "000"} {
			for name, args := range releasesBefore {
				release := func() string { return w.do(slices.Concat([]string{"EVAL", old[name], "1", theKey}, args)...) }
				told := w.grants(heard, name, release, "d:2|"+zeros+"60000", 1000)
				require.Contains(w, told, "g 2 1000@", "%s of %s", name, zeros)
			}
			s := &scripted{w, false}
			ticket := "d:2|" + zeros + "60000"
			s.begins("a:1", ticket, "b:3|60000")
			require.Contains(w, s.do("EVAL", old["inspect"], "1", theKey, "orders", "100"), ticket)
			s.do("EVAL", old["spring_release"], "1", theKey, "d:2", "", "orders", "", "*")
			require.Equal(w, "b:3|60000", s.queue(), "it leaves with all of its registry")

			s.begins("", ticket)
			w.do("EVAL", old["spring_obtain"], "1", theKey, "b:1", "60000", "queue", "orders")
			require.Equal(w, "d:2", s.owner(), "who comes serves it")
			require.Contains(w, <-heard, "g 2 1000@")
		}
	})
}

// A hand-over takes what the round trips need, whatever the waiting call does when the lock is released: half of one to the
// server, half of one for the message, one for what the call asks at that moment, and one to make the lease long.
func TestSlowLink_GrantsFromFarAwayAreTaken(t *testing.T) {
	t.Parallel()
	eachTrip(t, func(w *world, trip time.Duration, registry func(...lockregistry.Option) *lockregistry.Registry) {
		w.withQueues()
		a, b := registry(lockregistry.WithRenewal()), registry(lockregistry.WithRenewal())
		w.known(a)
		var all sync.WaitGroup
		for i := range 16 {
			all.Go(func() {
				first, second := lockregistry.NewOwner(w.Context()), lockregistry.NewOwner(w.Context())
				path := "path " + strconv.Itoa(i)
				mine, other := a.Obtain(path), b.Obtain(path)
				if err := mine.Lock(first); err != nil {
					w.Error(err)
					return
				}
				waits := make(chan error, 1)
				var entered time.Time
				go func() {
					err := other.Lock(second)
					entered = time.Now()
					waits <- err
				}()
				<-time.After(8*trip + time.Duration(i)*trip/8)
				released := time.Now()
				if err := mine.Unlock(first); err != nil {
					w.Error(err)
				}
				if err := <-waits; err != nil || entered.Sub(released) > 3*trip+20*time.Millisecond {
					w.Errorf("path %d: %v after %v", i, err, entered.Sub(released))
				}
				<-time.After(9 * time.Second)
				if err := other.Unlock(second); err != nil {
					w.Errorf("path %d: %v", i, err)
				}
			})
		}
		all.Wait()
		w.pass(2 * trip)
		w.leftNothing()
	})
}
