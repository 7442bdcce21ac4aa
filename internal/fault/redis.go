package fault

import (
	"context"
	"errors"
	"fmt"
	"net"
	"regexp"
	"slices"
	"strings"
	"unicode"

	"github.com/redis/rueidis"
)

// Unrepeated returns the text of an error without the arguments of the command, which a server repeats if it does not know the
// command. It cuts them at 128 bytes, so a long password would not be recognized.
func Unrepeated(text string) (short string, repeats bool) {
	short, _, repeats = strings.Cut(text, "with args beginning with")
	return strings.TrimRight(short, ", "), repeats
}

// Plain returns an error without what a server repeats of AUTH or HELLO, as a server that has renamed them does. Where RESP3 is
// refused, it says what to do.
func Plain(err error) error {
	reply := (*rueidis.RedisError)(nil)
	if !errors.As(err, &reply) {
		return err
	}
	if IsNoRESP3(err) {
		return AsLasting(fmt.Errorf("%w: %s", err, noRESP3))
	}
	short, repeats := Unrepeated(reply.Error())
	if word := strings.ToUpper(short); repeats && (strings.Contains(word, "AUTH") || strings.Contains(word, "HELLO")) {
		return AsLasting(errors.New(short))
	}
	return err
}

// noRESP3 says what to do where RESP3 is refused. With a server before version 6, which does not know HELLO, rueidis does that
// by itself.
const noRESP3 = "it refuses RESP3: set AlwaysRESP2 and DisableCache in the options of the client"

// IsNoRESP3 reports whether a server, or a proxy such as Envoy, refuses version 3 of the protocol.
func IsNoRESP3(err error) bool {
	reply := (*rueidis.RedisError)(nil)
	return errors.As(err, &reply) && strings.HasPrefix(reply.Error(), "NOPROTO")
}

// Answered reports whether the server itself replied: with a result or an error.
func Answered(err error) bool {
	if err == nil {
		return true
	}
	_, ok := rueidis.IsRedisErr(err)
	return ok || rueidis.IsRedisNil(err)
}

// IsWrongType reports whether the key is not a lock of the layout.
func IsWrongType(err error) bool {
	reply, ok := rueidis.IsRedisErr(err)
	return ok && strings.Contains(reply.Error(), "WRONGTYPE")
}

var denial = regexp.MustCompile("NOPERM|can't (run this command|access)|ACL failure")

// IsDenied reports whether the user lacks a permission, in the texts of all servers, also of a command within a script.
func IsDenied(err error) bool { return err != nil && denial.MatchString(err.Error()) }

// Elsewhere reports whether a node of a cluster replied that another node has the key.
func Elsewhere(err error) bool {
	reply, ok := rueidis.IsRedisErr(err)
	if !ok {
		return false
	}
	_, moved := reply.IsMoved()
	_, asks := reply.IsAsk()
	return moved || asks
}

// Ended returns the error of a context that is done, joined with its cause if that differs.
func Ended(ctx context.Context) error {
	err := ctx.Err()
	if cause := context.Cause(ctx); !errors.Is(err, cause) {
		return Join(err, cause)
	}
	return err
}

// WithEnd adds to an error that the context is done, if it is.
func WithEnd(ctx context.Context, err error) error {
	if ctx.Err() == nil {
		return err
	}
	return Join(err, Ended(ctx))
}

// Classify wraps an error of Redis or the network so that it matches the error it stands for: [Unavailable] if it is transient,
// or WrongType.
func Classify(err error) error {
	switch {
	case err == nil || errors.Is(err, Unavailable):
		return err
	case IsWrongType(err) && strings.HasSuffix(err.Error(), number):
		return Number
	case IsWrongType(err):
		return WrongType // the server's text is about a script
	case errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded): // of the client's context, not the caller's
		return AsUnavailable(errors.New(err.Error()))
	case Transient(err):
		return AsUnavailable(err)
	default:
		return Plain(err)
	}
}

// passing are the first words of replies after which the same command may succeed later: the server starts, fails over,
// or lacks something for now.
var passing = []string{
	"LOADING", "READONLY", "MASTERDOWN", "CLUSTERDOWN", "TRYAGAIN", "MOVED", "ASK", "NOREPLICAS", "BUSY", "NOSCRIPT",
	"OOM", "MISCONF", "UNBLOCKED", "max number of clients", upstream, "no upstream host",
	"WAIT cannot be used with replica", // the master was demoted between a write and the question of who has it
}

// upstream begins what the proxy Envoy replies when the server behind it did not answer, or not in time: "upstream failure",
// "upstream protocol error". The server may have executed the command, or may still do so.
const upstream = "upstream "

// nonLocal are in the errors of scripts that use a key that they have not named, while the key's slot moves: of Redis, which has
// another text in newer versions, and of Valkey.
var nonLocal = []string{
	"ttempted to access a non local key in a cluster",
	"undeclared keys were accessed during rehashing of the slot",
}

// clusterDown is in the errors of scripts in a cluster that is down, but allows reads. A single command fails with CLUSTERDOWN
// then.
const clusterDown = "while the cluster is down"

func isNonLocal(text string) bool {
	return slices.ContainsFunc(nonLocal, func(part string) bool { return strings.Contains(text, part) })
}

// failed begins the text with which servers before version 7 wrap an error within a script: the word comes later then,
// after a hyphen.
const failed = "Error running script"

// Transient reports whether a waiting call should try again after err: a network error, or a reply that does not last.
func Transient(err error) bool {
	reply, ok := rueidis.IsRedisErr(err)
	if !ok {
		return !errors.Is(err, WrongType) && !errors.Is(err, Lasting)
	}
	text := reply.Error()
	return Passes(strings.TrimPrefix(text, "ERR "), strings.HasPrefix(text, failed))
}

// Refusal reports whether the server does not know or permit a command. Other errors come from the network, or from a server
// that cannot serve for now.
func Refusal(err error) bool {
	_, ok := rueidis.IsRedisErr(err)
	return ok && !Transient(err)
}

// RefusesInfo reports whether a server's reply to CLIENT INFO says that the server does not know or permit the question, as the
// replies below do. If the connection could not be made, the reply is about HELLO, AUTH or SELECT, and does not count.
//
//	ERR unknown subcommand 'INFO'. Try CLIENT HELP.
//	ERR unknown command 'CLIENT', with args beginning with: 'INFO'
//	NOPERM User x has no permissions to run the 'client|info' command
//	NOPERM this user has no permissions to run the 'client' command or its subcommand
//	unsupported command 'client'
func RefusesInfo(err error) bool {
	if !Refusal(err) {
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

// Passes reports whether the text of an error says that the same command may succeed later. Within: a script may have met the
// error; servers before version 7 then put text in front of the word.
func Passes(text string, within bool) bool {
	return isNonLocal(text) || strings.Contains(text, clusterDown) || slices.ContainsFunc(passing, func(word string) bool {
		return strings.HasPrefix(text, word) || within && strings.Contains(text, "-"+word+" ")
	})
}

// OfReplica reports whether an error's text says that a replica refuses a write. Within a script servers before version 7 put
// text in front of the word.
func OfReplica(text string) bool {
	return strings.HasPrefix(text, "READONLY ") || strings.Contains(text, "-READONLY ")
}

// BetweenNodes reports whether a command failed because its keys are at two nodes while their slot moves.
func BetweenNodes(err error) bool {
	text := err.Error()
	return isNonLocal(text) || strings.Contains(text, "TRYAGAIN") || strings.Contains(text, "ASK ")
}

// CrossSlot reports whether a command was refused because its keys belong to several slots, or to several servers of a proxy.
func CrossSlot(err error) bool {
	return Refusal(err) && strings.HasPrefix(err.Error(), "CROSSSLOT")
}

// OutcomeUnknown reports whether the server may have executed a command that ended with err, or may still do so: it may unless
// the server itself replied with an error, or the command was never sent. [rueidis.ErrClosing] proves neither: rueidis also
// returns it for commands that were pending on a connection that it replaces. Nor does the reply of a proxy that the server
// failed. Scripts of this library fail before they write, or undo what they wrote.
func OutcomeUnknown(err error) bool {
	if err == nil || errors.Is(err, NotSent) {
		return false
	}
	if reply, ok := rueidis.IsRedisErr(err); ok {
		return strings.HasPrefix(reply.Error(), upstream)
	}
	var dial *net.OpError
	return !errors.As(err, &dial) || dial.Op != "dial"
}

// IsInTransaction reports whether the server has queued a command for EXEC, since somebody has sent MULTI on its connection.
func IsInTransaction(reply rueidis.RedisResult) bool {
	message, err := reply.ToMessage()
	if err != nil || !message.IsString() {
		return false // ToString would allocate an error
	}
	said, _ := message.ToString()
	return said == "QUEUED"
}

// MayUnsubscribe reports whether it is safe to unsubscribe on a connection on which PING has just had this reply. Rueidis sends
// PING after each UNSUBSCRIBE, also when a dedicated connection goes back to its pool. If PING is refused for a reason that
// rueidis does not expect, it panics in its own goroutine, which ends the program: a master that cannot save because its disk is
// full refuses PING (MISCONF). It also panics if both commands are refused for an expected reason, as by a server that is busy
// with a script; and in a transaction.
func MayUnsubscribe(pong rueidis.RedisResult) bool {
	reply, refused := rueidis.IsRedisErr(pong.Error())
	if !refused {
		return pong.NonRedisError() == nil && !IsInTransaction(pong)
	}
	return strings.HasPrefix(reply.Error(), "NOPERM") || strings.HasPrefix(reply.Error(), "LOADING")
}
