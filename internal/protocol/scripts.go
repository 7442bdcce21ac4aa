package protocol

import (
	"embed"
	"fmt"
	"io/fs"
	"maps"
	"strings"
)

// A script is assembled from sections of the files in lua/: a section is what follows a line "--# SECTION", up to the next such
// line. Each operation on locks is written once. A format has its own file: its sections "format", "extend" and "end" have the
// functions that operations need (holder, take, free; extend; drop and announce). Optional short ways handle the common cases
// without functions, and otherwise fall through. Making functions and tables is much of a script's cost, so none is made before
// these.
//
// A script is one Lua chunk, so its sections share locals. An operation's head defines those that a format uses: key, value,
// lease, prefix, sharded, counter, under, asks; for a release also channels, removal, old and keep. "names" adds queue and
// slotted. A format defines side, which is what its tickets end with, and its functions; holder's contract is in spring.lua.

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

// sections are the sections of a file by name. The text in front of the first one has an empty name: for an operation it
// describes the script's arguments, for a format it is for readers, and for a file without sections it is the script.
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

// part names a section of a script, from a file or the format.
type part struct {
	file, section string
	optional      bool
}

// of names a section of a file in lua/. A section of the same name in the format replaces it.
func of(file, section string) part { return part{file, section, false} }

// format names a section that each format must have, option one that it may have.
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

// operations has the parts of the script of each operation on locks.
var operations = map[string][]part{
	"obtain": {
		of("obtain", "head"), effects, option("obtain"), names, option("obtain in turn"),
		format("format"), option("reservation"), option("holder"), draw, fencing,
		of("obtain", "operation"),
		option("heads"), option("in passing"), trace, of("obtain", "decision"),
	},
	"obtain_queued": {
		of("obtain_queued", "head"), effects, names, option("obtain queued"), of("queue", "ticket"),
		of("obtain_queued", "arguments"),
		format("format"), option("holder"), draw, fencing, of("obtain_queued", "ticket"),
		option("mark"), trace,
		of("obtain_queued", "wait"), form, queue, heads, of("obtain_queued", "clear"), grant, option("granted"),
		of("obtain_queued", "turn"),
	},
	"obtain_all": {
		of("obtain_all", "head"), effects, option("obtain together"),
		format("format"), option("holder"), draw, fencing, of("obtain_all", "operation"),
	},
	"renew": {
		of("renew", "head"), effects, option("renew"),
		format("format"), option("holder"), format("extend"), draw, fencing,
		of("renew", "operation"),
	},
	"release": {
		of("release", "head"), option("release"), effects, of("release", "queue"), names, option("release queued"),
		of("queue", "direct"), option("give"), of("queue", "given"), option("take back"),
		of("release", "arguments"), format("format"), format("end"), of("release", "drop"),
		form, queue, heads, grant, option("granted"), windows, of("release", "operation"),
	},
	"release_all": {
		of("release_all", "head"), option("release together"), of("release_all", "release alone"), of("release_all", "operation"),
	},
	"force_unlock": {of("force_unlock", "head"), effects, names, form, queue, heads, of("force_unlock", "operation")},
	"set_permits": {
		of("set_permits", "head"), effects, names, format("format"), format("end"),
		form, queue, heads, grant, option("granted"), of("set_permits", "operation"),
	},
	"writer_waits": {
		of("writer_waits", "head"), effects, names, format("format"), format("reservation"), form, queue, heads, grant,
		of("writer_waits", "operation"),
	},
}

// operation assembles the script of an operation on the locks of a format.
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
			source.WriteString("--# " + file + ".lua, " + p.section + "\n" + text) // for readers, see printscripts
		case !p.optional:
			panic(fmt.Sprintf("%s of %s: no section %q", name, d.name(), p.section)) // only a broken build lacks it
		}
	}
	return NewScript(source.String())
}

// section returns a section of the format, followed by the one for its side.
func (d *Description) section(name string) (text string, ok bool) {
	text, ok = d.Source[name]
	if d.Side != "" {
		own, found := d.Source[d.Side+" "+name]
		text, ok = text+own, ok || found
	}
	return text, ok
}

// Add returns a script like Load, of a file that is not in lua/: not all programs have it.
func Add(name, source string) *Script {
	files[name] = split(source)
	return Load(name)
}

// Load returns a script that is the same for all formats: assembled, or a file in lua/ without sections.
func Load(name string) *Script {
	if operations[name] != nil {
		return known(name, (&Description{}).operation(name))
	}
	source, ok := files[name][""]
	if !ok {
		panic("no script " + name) // only a broken build lacks it
	}
	return known(name, NewScript(source))
}

// ForceUnlock returns the call of force_unlock.lua that removes a lock in any format but a semaphore's, or one holder's part
// of it. Common is the channel of all plain locks, values the beginning of the values of the registry's holds.
func (c *Config) ForceUnlock(script *Script, key, holder, common, values string) Call {
	removal := Call{Script: script, Key: key, Args: Args{
		holder, tagged(key), c.publish(), common, values, c.Prefix, c.Sharded(),
	}}
	removal.shape, removal.queue, removal.known = removing, c.Queue(key), c.Beside
	removal.narrow = c.Beside.Refused() != ""
	return removal
}

// Scripts returns all scripts by name.
func Scripts() map[string]*Script { return maps.Clone(byName) }

var byName = map[string]*Script{}

func known(name string, s *Script) *Script {
	byName[name] = s
	return s
}
