package observe

import (
	"fmt"
	"strings"

	"github.com/lockregistry/lockregistry/internal/presence"
)

// Label says which process a registry belongs to. The registry keeps its label in Redis while it holds a lock or waits for one,
// see package inspect.
type Label struct {
	Registry string // what its holds in Redis begin with, before the last colon
	Host     string // the host name that the operating system reports; empty if it reports none
	PID      int    // of the process
	Name     string // given by [lockregistry.WithName]; or empty
}

// Known reports whether there is a label. Java and older versions of this package have none, nor do registries that have not yet
// held or waited for a lock for a second.
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
