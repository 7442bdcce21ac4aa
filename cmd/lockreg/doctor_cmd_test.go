package main

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry/cmd/lockreg/doctor"
	"github.com/lockregistry/lockregistry/internal/redistest"
)

// doctored runs lockreg doctor with some arguments. On a busy machine it waits until the server is not slow to answer.
func doctored(t *testing.T, args ...string) (code int, out, errs string) {
	t.Helper()
	redistest.Await(time.Minute, func() bool {
		var stdout, stderr bytes.Buffer
		a := &app{in: &bytes.Buffer{}, out: &stdout, err: &stderr}
		code = a.execute(append([]string{"doctor"}, args...))
		out, errs = stdout.String(), stderr.String()
		return !strings.Contains(out, "WARNING: latency\n")
	})
	return code, out, errs
}

func TestDoctor(t *testing.T) {
	s := redistest.Start(t, "--appendonly", "yes")
	address := "redis://" + s.Addr() + "?client_cache=0"

	code, out, errs := doctored(t, "--prefix", "orders", "--url", address)
	require.Equal(t, 0, code, out)
	require.Equal(t, "lockreg: no lock has the prefix \"orders\"\n", errs)
	require.Contains(t, out, s.Addr()+" master Redis ")
	require.Contains(t, out, "\nOK: ")
	require.NotContains(t, out, "WARNING")

	// An info changes nothing about the exit code.
	code, out, _ = doctored(t, "--prefix", "orders", "--url", "redis://"+s.Addr())
	require.Equal(t, 0, code, out)
	require.Contains(t, out, "INFO: client-cache\n")

	s.Command(t, "CONFIG", "SET", "appendonly", "no")
	s.Command(t, "SET", "orders:\x1b[2J", "by hand")
	code, out, _ = doctored(t, "--prefix", "orders", "--url", address)
	require.Equal(t, 1, code, out)
	require.Contains(t, out, "WARNING: persistence\n  at    "+s.Addr()+"\n  seen  appendonly is off\n  why   ")
	require.Contains(t, out, "        > CONFIG SET appendonly yes\n")
	require.Contains(t, out, `orders:\x1b[2J (string)`)
	require.Contains(t, out, `> DEL "orders:\x1b[2J"`)
	require.NotContains(t, out, "\x1b")

	code, out, _ = doctored(t, "--prefix", "orders", "--url", address, "--json")
	require.Equal(t, 1, code, out)
	var report doctor.Report
	require.NoError(t, json.Unmarshal([]byte(out), &report))
	require.Equal(t, doctor.Warning, report.Worst())
	require.NotContains(t, out, "\x1b")

	// What the flags say is looked at.
	s.Command(t, "CONFIG", "SET", "appendonly", "yes")
	s.Command(t, "DEL", "orders:\x1b[2J")
	code, out, _ = doctored(t, "--prefix", "orders", "--url", address, "--replicas", "1")
	require.Equal(t, 1, code, out)
	require.Contains(t, out, "ERROR: with-replicas\n")
	code, out, _ = doctored(t, "--prefix", "orders", "--url", address+"&write_timeout=10s", "--lease", "10s")
	require.Equal(t, 1, code, out)
	require.Contains(t, out, "WARNING: client-write-timeout\n")
	s.Command(t, "ACL", "SETUSER", "app", "on", ">secret", "~*", "&*", "+@all", "-hset")
	app := "redis://app:secret@" + s.Addr() + "?client_cache=0"
	code, out, _ = doctored(t, "--prefix", "orders", "--url", app, "--need", "lock,readwrite")
	require.Equal(t, 1, code, out)
	require.Contains(t, out, "ERROR: permission-readwrite\n")
	require.Contains(t, out, "> ACL SETUSER app +hset\n")
	require.NotContains(t, out, "secret")
	code, out, _ = doctored(t, "--prefix", "orders", "--url", app)
	require.Equal(t, 0, code, out)
	require.Contains(t, out, "INFO: permission-readwrite\n")
	code, _, _ = doctored(t, "--prefix", "orders", "--url", app, "--layout", "redisson")
	require.Equal(t, 1, code)

	for _, args := range [][]string{
		{"--url", address},
		{"--url", address, "--prefix", ""},
		{"--url", address, "--prefix", "orders", "--need", "everything"},
		{"--url", address, "--prefix", "orders", "--need", "lock readwrite"},
		{"--url", address, "--prefix", "orders", "--lease", "-1s"},
		{"--url", address, "--prefix", "orders", "--layout", "other"},
		{"--url", address, "--prefix", "orders", "more"},
	} {
		code, out, errs = doctored(t, args...)
		require.Equal(t, 64, code, errs)
		require.Empty(t, out)
		require.NotEmpty(t, errs)
	}
	_, out, _ = doctored(t, "--url", address, "orders")
	require.NotEmpty(t, out)
	_, _, errs = doctored(t, "--url", address, "orders", "more")
	require.Equal(t, "lockreg: write: lockreg doctor PREFIX\n", errs)

	s.Stop()
	code, out, errs = doctored(t, "--prefix", "orders", "--url", address)
	require.Equal(t, 69, code)
	require.Empty(t, out)
	require.NotEmpty(t, errs)
}

// A user with the permissions that the doctor asks for can release a lock.
func TestDoctorPermitsRelease(t *testing.T) {
	s := redistest.Start(t, "--appendonly", "yes")
	s.Command(t, "ACL", "SETUSER", "operator", "on", ">secret")
	s.Command(t, "SET", "orders:42", "0b6e4bd7-6a8e-4f6e-9f0a-6a2f6d0f4c55", "PX", "600000")
	address := "redis://operator:secret@" + s.Addr() + "?client_cache=0"
	release := func() (int, string) {
		var stdout, stderr bytes.Buffer
		a := &app{in: &bytes.Buffer{}, out: &stdout, err: &stderr}
		return a.execute([]string{"release", "orders", "42", "--yes", "--url", address}), stderr.String()
	}
	code, errs := release()
	require.Equal(t, exitUnavailable, code)
	require.Contains(t, errs, "lockreg doctor says what this user is not permitted")

	code, out, errs := doctored(t, "--prefix", "orders", "--need", "release", "--url", address, "--json")
	require.Equal(t, 1, code, errs)
	var report doctor.Report
	require.NoError(t, json.Unmarshal([]byte(out), &report))
	for _, f := range report.Findings {
		if f.ID == "permission-release" {
			for _, line := range f.Commands {
				s.Command(t, strings.Fields(line)...)
			}
		}
	}
	code, errs = release()
	require.Equal(t, 0, code, errs)
}
