package peer

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Programs that are newer than their sources are not built again.
func TestJava_BuildsWhatChanged(t *testing.T) {
	t.Setenv("PATH", t.TempDir()) // without Maven
	j := Java{Dir: t.TempDir()}
	source := filepath.Join(j.Dir, Spring71, "Main.java")
	require.NoError(t, os.MkdirAll(filepath.Dir(source), 0o750))
	require.NoError(t, os.WriteFile(source, nil, 0o600))
	old := filepath.Join(j.Dir, Spring71, "target", "lib", "old.jar")
	require.NoError(t, os.MkdirAll(filepath.Dir(old), 0o750))
	require.NoError(t, os.WriteFile(old, nil, 0o600))

	require.NoError(t, os.MkdirAll(filepath.Dir(j.stamp()), 0o750))
	require.NoError(t, os.WriteFile(j.stamp(), nil, 0o600))
	later := time.Now().Add(time.Hour)
	require.NoError(t, os.Chtimes(j.stamp(), later, later))
	require.NoError(t, j.Build(t.Context()))
	require.FileExists(t, old)

	require.NoError(t, os.Chtimes(source, later.Add(time.Hour), later.Add(time.Hour)))
	require.ErrorContains(t, j.Build(t.Context()), "the Java peers need Maven")
	require.NoFileExists(t, old, "a jar of the version before would stay on the class path")

	require.ErrorContains(t, Java{Dir: filepath.Join(j.Dir, "none")}.Build(t.Context()), "cannot read the Java sources")
}
