package observe

import (
	"fmt"
	"strings"

	"github.com/lockregistry/lockregistry/internal/presence"
)

// Label says which process a registry belongs to. The registry keeps it in Redis while it holds a lock or waits for one, see
// [lockregistry.Registry.Inspect].
type Label struct {
	Registry string // what its holds begin with in Redis, before the last colon
	Host     string // the name of the machine, as the operating system has it; empty when that has none
	PID      int    // of the process
	Name     string // given by [lockregistry.WithName]; or empty
}

// Known tells whether there is a label. There is none for Java, for an older version of this package, and for a registry that has
// not held a lock or waited for one for a second yet.
func (l Label) Known() bool { return l.Registry != "" }

// String returns the label for people, such as "billing on web-1, process 4711".
func (l Label) String() string {
	if !l.Known() {
		return "unknown (Java, or an older version)"
	}
	if presence.Identity(l).Unread() {
		return presence.TooLong
	}
	var parts []string
	if l.Name != "" {
		parts = append(parts, l.Name, "on")
	}
	if l.Host != "" {
		parts = append(parts, l.Host+",")
	}
	return strings.Join(append(parts, fmt.Sprint("process ", l.PID)), " ")
}
