package protocol

import (
	"archive/tar"
	"compress/gzip"
	"errors"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"github.com/stretchr/testify/require"
)

// A process that is far away has zeros in front of the lease in its ticket: its grants have longer short leases.

// releases are the calls of this version that grant the lock to d:2 when a:1 releases it.
var releases = map[string]Call{
	"spring":             NewSpring(single).Release(aReleases),
	"spring, leads":      NewSpring(single).Release(aLeads), // not by the short way
	"redisson":           NewRedisson(single).Release(aReleases),
	"redisson, leads":    NewRedisson(single).Release(aLeads),
	"redisson, a writer": NewWrite(single).Release(aReleases),
}

var (
	aReleases = Release{Key: formatKey, Value: "a:1", Queued: true}
	aLeads    = Release{Key: formatKey, Value: "a:1", Queued: true, Leads: true}
)

// releasesBefore are the scripts of the version before, with their arguments.
var releasesBefore = map[string][]string{
	"spring_release":         {"a:1", "orders-channel:", "orders"},
	"spring_release_heir":    {"a:1", "orders-channel:", "orders", "", "99"},
	"redisson_release":       {"a:1", "PUBLISH", "c", "{" + formatKey + "}", "orders"},
	"redisson_release_heir":  {"a:1", "PUBLISH", "c", "orders", "", "99"},
	"redisson_write_release": {"a:1", "PUBLISH", "c", "{" + formatKey + "}", "orders"},
}

// grants makes a release serve a ticket after a window that is over, with a short lease of so many milliseconds, and returns the
// message of the grant.
func (s *scripted) grants(heard <-chan string, name string, release func() string, ticket string, lease int) (told string) {
	s.Helper()
	s.redisson = strings.HasPrefix(name, "redisson")
	kinds := []string{""}
	if strings.Contains(name, "writ") {
		kinds = []string{"w", "r"}
	}
	for _, kind := range kinds {
		s.begins("a:1", ticket+kind)
		if kind != "" {
			s.do("DEL", formatKey)
			s.do("HSET", formatKey, "mode", "write", "a:1:write", "1")
		}
		start := time.Now()
		require.Equal(s, "2", release(), "%s of %s", name, ticket+kind)
		require.Empty(s, s.queue())
		ms, err := strconv.Atoi(s.do("PTTL", formatKey))
		require.NoError(s, err)
		require.LessOrEqual(s, ms, lease, "%s of %s", name, ticket)
		require.GreaterOrEqual(s, ms+2, lease-int(time.Since(start).Milliseconds()), "%s of %s", name, ticket)
		told = <-heard
	}
	return told
}

func TestQueue_GrantsToTicketsFromFarAway(t *testing.T) {
	onServers(t).spring("one", func(s *scripted) {
		heard := s.attends("d")
		for ticket, lease := range map[string]int{
			"d:2|60000": 1000, "d:2|060000": 2000, "d:2|0060000": 4000, "d:2|00060000": 8000, "d:2|0000060000": 8000,
			"d:2|003000": 3000, "d:2|000500": 500, "d:2|500": 500,
		} {
			for name, call := range releases {
				told := s.grants(heard, name, func() string { return s.runs(call) }, ticket, lease)
				require.Contains(s, told, "g 2 "+strconv.Itoa(lease)+" ", "%s of %s", name, ticket)
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

// During a rolling update the version before reads these tickets. It grants them the lease that it grants all tickets.
func TestQueue_TicketsFromFarAwayAndTheVersionBefore(t *testing.T) {
	old := before(t)
	onServers(t).spring("one", func(s *scripted) {
		heard := s.attends("d")
		for _, zeros := range []string{"", "0", "00", "000"} {
			for name, args := range releasesBefore {
				release := func() string { return s.do(slices.Concat([]string{"EVAL", old[name], "1", formatKey}, args)...) }
				told := s.grants(heard, name, release, "d:2|"+zeros+"60000", 1000)
				require.Contains(s, told, "g 2 1000@", "%s of %s", name, zeros)
			}
			s.redisson = false
			ticket := "d:2|" + zeros + "60000"
			s.begins("a:1", ticket, "b:3|60000")
			require.Contains(s, s.do("EVAL", old["inspect"], "1", formatKey, "orders", "100"), ticket)
			s.do("EVAL", old["spring_release"], "1", formatKey, "d:2", "", "orders", "", "*")
			require.Equal(s, "b:3|60000", s.queue(), "it leaves with all of its registry")

			s.begins("", ticket)
			s.do("EVAL", old["spring_obtain"], "1", formatKey, "b:1", "60000", "queue", "orders")
			require.Equal(s, "d:2", s.owner(), "who comes serves it")
			require.Contains(s, <-heard, "g 2 1000@")
		}
	})
}
