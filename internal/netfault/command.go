package netfault

import (
	"crypto/sha1"
	"encoding/hex"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
)

// Command is a command of a client, or a message that the server pushed.
type Command struct {
	Name   string // what it does to a lock, such as "obtain", "renew" or "release"; otherwise its own name, in capitals
	Key    string // of a lock
	Value  string // of a hold
	Asks   string // for "obtain": what it wants from the queue, "enqueue" or "check"; empty: nothing
	Args   []string
	Sent   time.Time
	Over   *Link
	Pushed bool // the name is "grant", "next" or "gone" for messages of the queue, see [queueMessages]; otherwise the server's word
}

// queueMessages maps the first letter of the queue's messages to their names here.
var queueMessages = map[string]string{"g": "grant", "n": "next", "d": "gone"}

// Match selects commands that fit all of its non-empty fields. Name also matches names that begin with it and an underscore. In
// a rule the empty Match selects all commands of clients.
type Match struct{ Name, Key, Value, Asks string }

func (m Match) matches(c *Command) bool {
	fits := func(wanted, is string) bool { return wanted == "" || wanted == is }
	after, begins := strings.CutPrefix(c.Name, m.Name)
	named := m.Name == "" || begins && (after == "" || after[0] == '_')
	return named && fits(m.Key, c.Key) && fits(m.Value, c.Value) && fits(m.Asks, c.Asks)
}

// Named returns the name function that [New] needs, from the bodies of scripts and what each does to a lock.
func Named(scripts map[string]string) func(args []string) string {
	names := maps.Clone(scripts)
	for body, name := range scripts {
		sum := sha1.Sum([]byte(body))
		names[hex.EncodeToString(sum[:])] = name
	}
	return func(args []string) string {
		if len(args) < 2 || !strings.HasPrefix(strings.ToUpper(args[0]), "EVAL") {
			return ""
		}
		return names[args[1]]
	}
}

// sent reads a command of a client.
func (p *Proxy) sent(args []string) Command {
	c := Command{Name: strings.ToUpper(args[0]), Args: args}
	name := p.name(args)
	switch {
	case c.Name == "SET" && slices.Contains(args, "NX"):
		c.Name, c.Key, c.Value = "obtain", args[1], args[2]
		return c
	case strings.HasPrefix(c.Name, "EVAL") && len(args) > 4:
		if name != "" {
			c.Key, c.Value = args[3], args[4]
		}
		if i := slices.IndexFunc(args, func(arg string) bool { return arg == "enqueue" || arg == "check" }); i > 0 {
			c.Asks = args[i]
		}
	}
	if name != "" {
		c.Name = name
	}
	return c
}

// push reads a message that the server has pushed.
func push(said []byte) Command {
	args := elements(said)
	c := Command{Name: args[0], Args: args, Pushed: true}
	if len(args) < 2 {
		return c
	}
	c.Key = args[1]
	if fields := strings.SplitN(args[len(args)-1], " ", 4); len(fields) == 4 && queueMessages[fields[0]] != "" {
		_, registry, _ := strings.Cut(c.Key, "-channel@")
		c.Name, c.Key, c.Value = queueMessages[fields[0]], fields[3], registry+":"+fields[1]
	}
	return c
}

func (c Command) String() string { return fmt.Sprintf("%s %s %s", c.Name, c.Key, c.Value) }
