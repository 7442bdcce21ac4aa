// Package lua puts scripts together from files: a line "-- include NAME" stands for the file NAME.lua, which several scripts
// have in common.
package lua

import (
	"io/fs"
	"strings"
)

// Script returns the script of a file NAME.lua. Every program that imports this library puts all its scripts together when it
// starts, so no regular expression is used here.
func Script(files fs.FS, name string) (string, error) {
	var script strings.Builder
	err := write(&script, files, name)
	return script.String(), err
}

func write(script *strings.Builder, files fs.FS, name string) error {
	source, err := fs.ReadFile(files, name+".lua")
	if err != nil {
		return err
	}
	for line := range strings.Lines(string(source)) {
		if part, ok := strings.CutPrefix(strings.TrimLeft(line, " "), "-- include "); !ok {
			script.WriteString(line)
		} else if err := write(script, files, strings.TrimSuffix(part, "\n")); err != nil {
			return err
		}
	}
	return nil
}
