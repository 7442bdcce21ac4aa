package protocol

import (
	"strconv"
	"strings"
	"time"
)

// Name is what the name of a holder in Redis says.
type Name struct {
	Registry string
	Since    time.Time // when its number was drawn; zero: not known
	Kept     bool      // nobody holds the lock any more, and the path is kept
	Writes   bool
	Known    bool // it has the form that this library and Redisson write
}

// ParseName reads "<registry>:<number>", perhaps with ":write" or ":atleast" behind it; anything else is a registry.
func ParseName(text string) (n Name) {
	text, n.Kept = strings.CutSuffix(text, ":atleast")
	text, n.Writes = strings.CutSuffix(text, ":write")
	n.Registry = text
	at := strings.LastIndexByte(text, ':')
	if at < 0 {
		return n
	}
	number, err := strconv.ParseUint(text[at+1:], 10, 63)
	if err != nil {
		return n
	}
	n.Registry, n.Known = text[:at], true
	n.Since = Time(int64(number))
	return n
}

// TooLong is what scripts reply instead of a text that is longer than this library and its peers make it. A value that is wrong,
// or malicious, costs no memory here.
const TooLong = "too long"

// IsCut reports whether a script has left out the end of a name, which was too long.
func IsCut(name string) bool {
	return strings.HasSuffix(name, " bytes)") && strings.Contains(name, " ("+TooLong+": ")
}
