package protocol

import (
	"fmt"
	"io/fs"
	"slices"
	"strings"
)

// A script is put together from sections of the files in lua/: what follows a line "--# SECTION", up to the next such line. Each
// operation on locks is written once. A format has a file of its own: in its section "format" the functions that operations need,
// and, if it likes, fast sections, which decide the common cases without a function and fall through where they do not. Since to
// make functions and tables is much of what a script takes the server, none is made before.

// section is one of a file.
type section struct{ file, name string }

// ofFormat is the file of sections that each format has, and fast that of those which it may have.
const (
	ofFormat = "FORMAT"
	fast     = "FAST"
)

// operations are what can be done with a lock of any format, and the sections of its script.
var operations = map[string][]section{
	"obtain": {
		{"obtain", "head"}, {"effects", "effects"}, {fast, "obtain"},
		{ofFormat, "format"}, {"fencing", "draw"}, {"fencing", "library"},
		{"obtain", "operation"},
	},
	"obtain_queued": {
		{"obtain_queued", "head"}, {"effects", "effects"},
		{"queue", "names"}, {fast, "obtain queued"}, {"queue", "ticket"}, {"obtain_queued", "arguments"},
		{ofFormat, "format"}, {"fencing", "draw"}, {"fencing", "library"}, {"obtain_queued", "ticket"},
		{"queue", "library"}, {"obtain_queued", "turn"},
	},
	"obtain_all": {
		{"obtain_all", "head"}, {"effects", "effects"},
		{ofFormat, "format"}, {"fencing", "draw"}, {"fencing", "library"}, {"obtain_all", "operation"},
	},
	"renew": {
		{"renew", "head"}, {"effects", "effects"},
		{fast, "renew"}, {ofFormat, "format"}, {ofFormat, "extend"}, {"fencing", "draw"}, {"fencing", "library"},
		{"renew", "operation"},
	},
	"release": {
		{"release", "head"}, {fast, "release"}, {"effects", "effects"},
		{"release", "queue"}, {"queue", "names"}, {fast, "release queued"},
		{"release", "arguments"}, {ofFormat, "format"}, {ofFormat, "end"}, {"queue", "library"}, {"windows", "library"},
		{"release", "operation"},
	},
}

// operation is the script of an operation on the locks of a format.
func operation(files fs.FS, format, name string) *Script { //nolint:unparam // the first format
	var source strings.Builder
	for _, s := range operations[name] {
		file := s.file
		if file == ofFormat || file == fast {
			file = format
		}
		text, ok := s.in(files, file)
		if !ok && s.file != fast {
			panic(fmt.Sprintf("%s.lua has no section %q", file, s.name)) // only a broken build lacks it
		}
		source.WriteString(text)
	}
	return known(format+"_"+name, NewScript(source.String()))
}

// in is the text of the section in a file.
func (s section) in(files fs.FS, file string) (text string, ok bool) {
	source, err := fs.ReadFile(files, file+".lua")
	if err != nil {
		panic(err) // only a broken build lacks it
	}
	lines := strings.SplitAfter(string(source), "\n")
	begin := slices.Index(lines, "--# "+s.name+"\n") + 1
	if begin == 0 {
		return "", false
	}
	end := slices.IndexFunc(lines[begin:], func(line string) bool { return strings.HasPrefix(line, "--# ") })
	if end < 0 {
		end = len(lines) - begin
	}
	return strings.Join(lines[begin:begin+end], ""), true
}
