// Package lua puts scripts together from files: a line "-- include NAME" stands for the file NAME.lua, which several scripts
// have in common.
package lua

import (
	"io/fs"
	"regexp"
)

var inclusion = regexp.MustCompile(`(?m)^ *-- include (\w+)$`)

// Script returns the script of a file NAME.lua.
func Script(files fs.FS, name string) (string, error) {
	source, err := fs.ReadFile(files, name+".lua")
	if err != nil {
		return "", err
	}
	script := inclusion.ReplaceAllStringFunc(string(source), func(line string) string {
		part, failure := Script(files, inclusion.FindStringSubmatch(line)[1])
		if failure != nil {
			err = failure
		}
		return part
	})
	return script, err
}
