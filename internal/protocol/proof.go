package protocol

import (
	"cmp"
	"errors"
	"slices"
	"strings"

	"github.com/redis/rueidis"

	"github.com/lockregistry/lockregistry/internal/fault"
)

// A user of the server may be permitted to obtain a lock, but not to release it. Its work would run, and the key would stay for
// its lease. So before the first hold of a format is obtained from a server, [Format.Proof] asks whether a release is permitted:
// scripts, by their digest and by their source, and the commands on the keys that they use.

// Needs is what the locks of a format need of the user. Its address names the format.
type Needs struct {
	own    []string                // what is done with the lock's key: a command, or several with | between them, and arguments
	writes []string                // likewise, and must not be tried on a key that is not there
	beside []string                // what is done with the key beside it
	key    func(key string) string // returns the key beside a lock's key, or an example of it
}

var proof = Load("release_proof")

// unknownDigest is the digest of no script, so the server asks for the source.
var unknownDigest = strings.Repeat("0", len(proof.SHA))

// Needs returns what the format needs, for comparison only.
func (f *Format) Needs() *Needs { return f.format.Needs }

// Proof returns the call that asks whether the user may do with a key what the format needs; see [Proven]. BySource: the server
// gets the script's source, although it may know the digest.
func (f *Format) Proof(key string, bySource bool) Call {
	n, c := f.format.Needs, Call{Script: proof, Key: key}
	if bySource {
		c.Script = &Script{Source: proof.Source, SHA: unknownDigest}
	}
	args := make([]string, 0, 2*(len(n.own)+len(n.writes)+len(n.beside)))
	for _, what := range n.own {
		args = append(args, "run "+what, "")
	}
	for _, what := range n.writes {
		args = append(args, "check "+what, "")
	}
	for _, what := range n.beside {
		args = append(args, "check "+what, n.key(key))
	}
	copy(c.Args[:fixedArgs], args)
	c.more = args[min(fixedArgs, len(args)):]
	return c
}

// Proven decodes the reply to [Format.Proof]. Held: a server before version 7.0 could not be asked for all of it, since the
// lock's key is there. Old: it cannot say whether it takes scripts by their source. The error matches [fault.Lasting] if
// something is refused, and says what; other errors are about the call.
func Proven(result rueidis.RedisResult, key string) (held, old bool, err error) {
	replies, err := result.AsStrSlice()
	switch {
	case err == nil && len(replies) > 0:
	case err == nil:
		return false, false, ErrStrange
	case refusesScripts(err):
		return false, false, refused(err, key)
	default:
		return false, false, err
	}
	how, replies := replies[0], replies[1:]
	var lacks []string
	for i := 0; i+1 < len(replies); i += 2 {
		lack := "+" + strings.ReplaceAll(strings.ToLower(replies[i]), "|", " or +")
		if what, beside, _ := strings.Cut(replies[i+1], " "); what == "key" {
			lack = "a key pattern for " + fault.Short(cmp.Or(beside, key))
		}
		if !slices.Contains(lacks, lack) {
			lacks = append(lacks, lack)
		}
	}
	if len(lacks) > 0 {
		return false, false, unpermitted("NOPERM, it lacks " + strings.Join(lacks, ", "))
	}
	return how == "held", how != "checked", nil
}

// refusesScripts reports whether the server, or a proxy, does not permit or know scripts, or not these. Errors with a code other
// than NOPERM or ERR (rueidis leaves out ERR) are about the connection, or the type of a key.
func refusesScripts(err error) bool {
	code, _, _ := strings.Cut(err.Error(), " ")
	return fault.Refusal(err) && (code == "NOPERM" || code != strings.ToUpper(code))
}

// refused returns the error for a script that was refused.
func refused(err error, key string) error {
	text, _ := fault.Unrepeated(err.Error())
	why, denied := strings.CutPrefix(text, "NOPERM ")
	if !denied {
		return unpermitted(text)
	}
	if named := strings.ToLower(why); !strings.Contains(named, "eval") && !strings.Contains(named, "database") {
		why = "it lacks a key pattern for " + fault.Short(key)
	}
	return unpermitted("NOPERM, " + why)
}

// unpermitted returns the error of a user who could not release a lock.
func unpermitted(why string) error {
	return fault.AsLasting(errors.New("the user could not release the lock, so it was not taken: " + why))
}
