package transport

import (
	"errors"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
	"unicode"

	"github.com/redis/rueidis"

	"github.com/lockregistry/lockregistry/internal/fault"
)

// exam finds out, in one attempt to get a dedicated connection, which connection is new and uses the database of the shared
// ones. It asks each for CLIENT INFO.
//
// A server or a proxy might not say, because it does not know the question or does not permit it. Then the connection fits. No
// other error means that. If a connection could not be made, each command on it fails with the server's error for HELLO, AUTH or
// SELECT. If it breaks, it may have been broken in the pool already.
//
// A proxy that ends each connection at the question does not say, either. One connection that ends is no proof of that, but two
// in one attempt are, if they had just answered PING. The next one fits if it answers PING, too:
//
//	1  CLIENT INFO ─▶ ends              it may have been broken in the pool
//	2  PING ─▶ PONG, CLIENT INFO ─▶ ends
//	3  PING ─▶ PONG, CLIENT INFO ─▶ ends
//	4  PING ─▶ PONG                     fits
//
// Each attempt starts over. A server that breaks its connections for a while hardly does so twice at just these points, and the
// next attempt asks it again.
type exam struct {
	*dialer
	isKnown  func() bool // waits for the database of the shared connections, see dialer.askDatabase
	oneBroke bool        // a connection has broken
	ended    int         // connections that ended at CLIENT INFO, and had just answered PING
}

// fitness is what an exam finds.
type fitness uint8

const (
	fits      fitness = iota
	unfit             // it is old, or of another database; the next one may fit
	broken            // others in the pool may be broken, too
	ofReplica         // it leads to a replica
	useless           // the next one would be useless, too
)

// enough: when this many connections have ended at the question, the next one is not asked.
const enough = 2 // mutant: end taken for an answer

// of examines a connection.
func (e *exam) of(c *dedicated, ask func(words ...string) rueidis.RedisResult) fitness {
	if e.oneBroke {
		if is := e.ofError(ask("PING").Error()); is != fits {
			return is
		}
		if e.ended == enough {
			e.pool.selected.CompareAndSwap(nil, new(string))
			return e.untold(ask)
		}
	}
	info := ask("CLIENT", "INFO")
	text, _ := info.ToString()
	err := info.Error()
	switch is := e.ofError(err); {
	case refusesInfo(err):
		return e.untold(ask)
	case is == broken:
		if e.oneBroke {
			e.ended++
		}
		e.oneBroke = true
		return is
	case is != fits:
		return is
	case e.pool.tells():
		e.isKnown = e.askDatabase(wanted{})
	}
	if databaseIn(text) != "0" && !e.isKnown() { // mutant: lock in another database
		return useless
	}
	return e.told(c, text)
}

// ofError judges a connection by the error of a command. It fits if there is none.
func (*exam) ofError(err error) fitness {
	switch {
	case err == nil:
		return fits
	case errors.Is(err, fault.NoAnswer): // it is old
		return unfit
	case errors.Is(err, syscall.ECONNREFUSED), fault.Answered(err): // it could not be made, nor could the next one
		return useless
	default:
		return broken
	}
}

// untold judges a connection whose database the server does not report. If others use the pool, too, the connection may have
// another database selected than the shared ones. So it selects theirs, if that is known.
func (e *exam) untold(ask func(words ...string) rueidis.RedisResult) fitness {
	known := e.pool.selected.Load()
	if known == nil || *known == "" || e.pool.sole.Load() {
		return fits
	}
	return e.ofError(ask("SELECT", *known).Error())
}

// told judges a connection by the reply to CLIENT INFO, which has the age in whole seconds.
func (e *exam) told(c *dedicated, info string) fitness {
	age, untold := ageOf(info)
	known := e.pool.selected.Load()
	sure := known != nil && *known != ""
	c.told = untold == nil && sure
	if sure && databaseIn(info) != *known || untold == nil && age-time.Second > c.made.Until(e.judge.clock.Now()) {
		return unfit
	}
	return fits
}

// tells notes that the server reports the database of a connection. It reports whether a shared connection must be asked again,
// because the server did not report its database before.
func (p *pool) tells() (again bool) {
	known := p.selected.Load()
	return known != nil && *known == "" && !p.one && p.selected.CompareAndSwap(known, nil)
}

// refusesInfo reports whether a server's reply to CLIENT INFO says that the server does not know or permit the question, as the
// replies below do. If the connection could not be made, the reply is about HELLO, AUTH or SELECT, and does not count.
//
//	ERR unknown subcommand 'INFO'. Try CLIENT HELP.
//	ERR unknown command 'CLIENT', with args beginning with: 'INFO'
//	NOPERM User x has no permissions to run the 'client|info' command
//	NOPERM this user has no permissions to run the 'client' command or its subcommand
//	unsupported command 'client'
func refusesInfo(err error) bool {
	if !fault.Refusal(err) {
		return false
	}
	text := err.Error()
	if _, command, found := strings.Cut(text, " to run the "); found { // the user's name, which may be any word, stands before it
		text = command
	}
	words := strings.FieldsFunc(strings.ToLower(text), func(r rune) bool { return !unicode.IsLetter(r) })
	names := func(these ...string) bool {
		return slices.ContainsFunc(words, func(word string) bool { return slices.Contains(these, word) })
	}
	subcommand := strings.Contains(text, "client|") && !strings.Contains(text, "client|info")
	return names("client", "info") && !names("hello", "auth", "select") && !subcommand
}

func databaseIn(info string) string { return wordAfter(info, " db=") }

func ageOf(info string) (time.Duration, error) {
	age, err := strconv.Atoi(wordAfter(info, " age="))
	return time.Duration(age) * time.Second, err
}

func wordAfter(info, name string) string {
	_, after, _ := strings.Cut(info, name)
	word, _, _ := strings.Cut(after, " ")
	return word
}
