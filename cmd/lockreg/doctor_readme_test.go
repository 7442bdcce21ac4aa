package main

import (
	"bytes"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry/internal/redistest"
)

// What doctor/README.md shows is what the command prints.
func TestDoctorReadme(t *testing.T) {
	page, err := os.ReadFile("doctor/README.md")
	require.NoError(t, err)
	const need = "lock,queue,tracking,readwrite"
	_, rest, found := strings.Cut(string(page), "```console\n$ lockreg doctor orders --need "+need+"\n")
	require.True(t, found)
	shown, _, found := strings.Cut(rest, "$ echo $?\n1\n```")
	require.True(t, found)

	s := redistest.Start(t, "--appendonly", "yes")
	s.Command(t, "CONFIG", "SET", "maxmemory-policy", "allkeys-lru")
	s.Command(t, "CONFIG", "SET", "maxmemory", "1gb")
	s.Command(t, "ACL", "SETUSER", "app", "on", ">secret", "~*", "&*", "+@all", "-hmset")
	t.Setenv("REDIS_URL", "redis://app:secret@"+s.Addr()+"?client_cache=0")
	got := ""
	for deadline := time.Now().Add(40 * time.Second); got == "" || strings.Contains(got, ": latency\n"); {
		require.True(t, time.Now().Before(deadline), "the machine is too busy")
		var out, errs bytes.Buffer
		a := &app{in: &bytes.Buffer{}, out: &out, err: &errs}
		require.Equal(t, 1, a.execute([]string{"doctor", "--prefix", "orders", "--need", need}))
		require.Equal(t, "lockreg: no lock has the prefix \"orders\"\n", errs.String())
		got = out.String()
	}
	got = strings.ReplaceAll(got, s.Addr(), "127.0.0.1:6379")
	got = regexp.MustCompile(`(Redis|Valkey) [0-9.]+`).ReplaceAllString(got, "Redis 7.0.15")
	require.Equal(t, shown, got)
}
