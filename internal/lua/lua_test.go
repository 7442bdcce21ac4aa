package lua

import (
	"io/fs"
	"testing"
	"testing/fstest"

	"github.com/stretchr/testify/require"
)

func TestScript(t *testing.T) {
	files := fstest.MapFS{
		"whole.lua":  {Data: []byte("-- include first\nif x then\n  -- include second\nend\n-- includes nothing\n")},
		"first.lua":  {Data: []byte("one\n")},
		"second.lua": {Data: []byte("two\n-- include first")},
		"broken.lua": {Data: []byte("-- include missing\n")},
	}
	script, err := Script(files, "whole")
	require.NoError(t, err)
	require.Equal(t, "one\nif x then\ntwo\none\nend\n-- includes nothing\n", script)
	_, err = Script(files, "broken")
	require.ErrorIs(t, err, fs.ErrNotExist)
}
