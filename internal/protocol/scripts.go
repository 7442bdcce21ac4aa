package protocol

import (
	"embed"
	"fmt"
	"io/fs"
	"maps"
	"strings"
)

// A script is put together from sections of the files in lua/: what follows a line "--# SECTION", up to the next such line. Each
// operation on locks is written once. A format has a file of its own: in its sections "owner", "format", "extend" and "end" the
// functions that operations need (holder, take, free; extend; drop and announce), and, if it likes, fast sections, which decide
// the common cases without a function and fall through where they do not. Since to make functions and tables is much of what a
// script takes the server, none is made before.

//go:embed lua/*.lua
var embedded embed.FS

// files are the sections of the files in lua/.
var files = func() map[string]sections {
	all := map[string]sections{}
	names, err := fs.Glob(embedded, "lua/*.lua")
	if err != nil || len(names) == 0 {
		panic(fmt.Sprint("no scripts: ", err)) // only a broken build lacks them
	}
	for _, name := range names {
		source, err := embedded.ReadFile(name)
		if err != nil {
			panic(err)
		}
		all[strings.TrimSuffix(strings.TrimPrefix(name, "lua/"), ".lua")] = split(string(source))
	}
	return all
}()

// sections are those of a file by their names. What is in front of the first one has no name: of an operation it says what the
// script takes, of a format it is for readers, of a file without sections it is the script.
type sections map[string]string

func split(source string) sections {
	all, name := sections{}, ""
	for line := range strings.Lines(source) {
		if next, ok := strings.CutPrefix(line, "--# "); ok {
			name = strings.TrimSpace(next)
			all[name] = ""
		} else {
			all[name] += line
		}
	}
	return all
}

// part is a section of a script: of a file, or of the format.
type part struct {
	file, section string
	optional      bool
}

// of is a section of a file in lua/. One of the same name in the format takes its place.
func of(file, section string) part { return part{file, section, false} }

// format is a section that each format has, and option one that it may have.
func format(section string) part { return part{"", section, false} }
func option(section string) part { return part{"", section, true} }

var (
	effects       = of("effects", "effects")
	names         = of("queue", "names")
	draw, fencing = of("fencing", "draw"), of("fencing", "library")
	trace         = of("queue", "trace")
	form, queue   = of("queue", "form"), of("queue", "library")
	heads, grant  = of("queue", "heads"), of("queue", "grant")
	windows       = of("windows", "library")
)

// operations are what can be done with a lock, and the parts of its script.
var operations = map[string][]part{
	"obtain": {
		of("obtain", "head"), effects, option("obtain"), names, option("obtain in turn"),
		format("format"), option("reservation"), option("holder"), draw, fencing, of("obtain", "operation"),
		option("heads"), option("in passing"), trace, of("obtain", "decision"),
	},
	"obtain_queued": {
		of("obtain_queued", "head"), effects, names, option("obtain queued"), of("queue", "ticket"), of("obtain_queued", "arguments"),
		format("format"), option("holder"), draw, fencing, of("obtain_queued", "ticket"), option("flag"), trace,
		of("obtain_queued", "wait"), form, queue, heads, grant, of("obtain_queued", "turn"),
	},
	"obtain_all": {
		of("obtain_all", "head"), effects, format("format"), option("holder"), draw, fencing, of("obtain_all", "operation"),
	},
	"renew": {
		of("renew", "head"), effects, option("renew"),
		format("format"), option("holder"), format("extend"), draw, fencing, of("renew", "operation"),
	},
	"release": {
		of("release", "head"), option("release"), effects, of("release", "queue"), names, option("release queued"),
		of("queue", "direct"), option("give"), of("queue", "given"), option("take back"),
		of("release", "arguments"), format("format"), format("end"), of("release", "drop"), form, queue, heads, grant, windows,
		of("release", "operation"),
	},
	"owner": {format("owner")},
	"set_permits": {
		of("set_permits", "head"), effects, names, format("format"), form, queue, heads, grant, of("set_permits", "operation"),
	},
	"writer_waits": {
		of("writer_waits", "head"), effects, names, format("format"), format("reservation"), form, queue, heads, grant,
		of("writer_waits", "operation"),
	},
}

// operation is the script of an operation on the locks of a format.
func (d *Description) operation(name string) *Script {
	var source strings.Builder
	source.WriteString(files[name][""])
	for _, p := range operations[name] {
		file := d.Name
		text, ok := d.section(p.section)
		if !ok && p.file != "" {
			file = p.file
			text, ok = files[file][p.section]
		}
		switch {
		case ok:
			source.WriteString("--# " + file + ".lua, " + p.section + "\n" + text) // for who reads it, see printscripts
		case !p.optional:
			panic(fmt.Sprintf("%s of %s: no section %q", name, d.name(), p.section)) // only a broken build lacks it
		}
	}
	return NewScript(source.String())
}

// section is one of the format, followed by that of its side.
func (d *Description) section(name string) (text string, ok bool) {
	text, ok = d.Source[name]
	if d.Side != "" {
		own, found := d.Source[d.Side+" "+name]
		text, ok = text+own, ok || found
	}
	return text, ok
}

// Load is the script of a file in lua/ that has no sections.
func Load(name string) *Script {
	source, ok := files[name][""]
	if !ok {
		panic("no script " + name) // only a broken build lacks it
	}
	return known(name, NewScript(source))
}

// Scripts are all scripts by their names.
func Scripts() map[string]*Script { return maps.Clone(byName) }

var byName = map[string]*Script{}

func known(name string, s *Script) *Script {
	byName[name] = s
	return s
}
