//go:build unix

package main_test

import (
	"os"
	"os/exec"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// The command gets all files that lockreg was started with, and none of lockreg's own.
func TestRunPassesFilesOn(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	var files []*os.File
	for range 3 {
		file, err := os.CreateTemp(t.TempDir(), "")
		require.NoError(t, err)
		t.Cleanup(func() { _ = file.Close() })
		files = append(files, file)
	}
	command := []string{"sh", "-c", "for n in 3 4 5; do echo file $n >&$n; done; ls /dev/fd/"}
	p := prepare(s.url, append([]string{"run", "shop", "a", "--"}, command...)...)
	p.ExtraFiles = files
	require.Zero(t, p.begin(t).code(t), p.err.String())
	for i, file := range files {
		text, err := os.ReadFile(file.Name())
		require.NoError(t, err)
		assert.Equal(t, "file "+string(rune('3'+i))+"\n", string(text))
	}
	alone := exec.Command(command[0], command[1:]...)
	alone.ExtraFiles = files
	out, err := alone.Output()
	require.NoError(t, err)
	assert.Equal(t, string(out), p.out.String())
}
