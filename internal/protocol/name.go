package protocol

import (
	"strconv"
	"strings"
	"time"
)

// Name is the parsed name of a holder in Redis.
type Name struct {
	Registry string
	Since    time.Time // when its number was drawn; zero: not known
	Kept     bool      // the lock was released, and AtLeast keeps the path
	Writes   bool
	Known    bool // it has the form that this library and Redisson write
}

// ParseName reads "<registry>:<number>", perhaps with ":write" or ":atleast" after it; anything else is a registry.
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

// TooLong is what scripts return instead of a text that is longer than this library and its peers write. So a wrong or
// malicious value costs no memory here.
const TooLong = "too long"

// IsCut reports whether a script has cut a name that was too long.
func IsCut(name string) bool {
	return strings.HasSuffix(name, " bytes)") && strings.Contains(name, " ("+TooLong+": ")
}
