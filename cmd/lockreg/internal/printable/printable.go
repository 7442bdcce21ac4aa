// Package printable makes text that came from somewhere else safe to show in a terminal and in logs.
package printable

import (
	"fmt"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Text escapes, as in Go, everything in s that a terminal would act on or not show: control characters, characters that change
// the direction of text, invisible ones, line ends, and bytes that are not UTF-8. A backslash is doubled, so that different
// texts stay different.
func Text(s string) string {
	if !strings.ContainsFunc(s, func(r rune) bool { return r == '\\' || hidden(r) }) && utf8.ValidString(s) {
		return s
	}
	quoted := strconv.Quote(s)
	return string(Line([]byte(strings.ReplaceAll(quoted[1:len(quoted)-1], `\"`, `"`))))
}

// hidden reports whether a character does not show as itself: it is invisible, looks like a space, or changes others.
func hidden(r rune) bool {
	if r < 0x80 {
		return r < ' ' || r == 0x7f
	}
	return !unicode.IsPrint(r) || unicode.In(r, unicode.Other_Default_Ignorable_Code_Point, unicode.Variation_Selector) ||
		r == 0x2800 || r == 0x16fe4 || r == 0x1d159 // letters that are blank: of Braille, of Khitan, of music
}

// hides reports whether a text has hidden characters other than line ends.
func hides(text []byte) bool {
	for _, r := range string(text) { // no copy is made for a loop
		if r != '\n' && hidden(r) {
			return true
		}
	}
	return false
}

// Valid is s with each byte that is no UTF-8 written as in Go, for formats that have UTF-8 alone.
func Valid(s string) string {
	if utf8.ValidString(s) {
		return s
	}
	var out strings.Builder
	for i, r := range s {
		if _, size := utf8.DecodeRuneInString(s[i:]); r == utf8.RuneError && size == 1 {
			fmt.Fprintf(&out, `\x%02x`, s[i])
		} else {
			out.WriteRune(r)
		}
	}
	return out.String()
}

// Line is a line of a log whose texts are quoted where Go does so, with the rest escaped, too.
func Line(line []byte) []byte {
	if !hides(line) {
		return line
	}
	out := make([]byte, 0, len(line))
	for _, r := range string(line) {
		if r == '\n' || !hidden(r) {
			out = utf8.AppendRune(out, r)
			continue
		}
		quoted := escaped(r)
		out = append(out, quoted...)
	}
	return out
}

// escaped returns the Go escape of a hidden character.
func escaped(r rune) string {
	if r > 0xffff {
		return fmt.Sprintf(`\U%08x`, r)
	}
	if r < 0x80 || !unicode.IsPrint(r) {
		quoted := strconv.QuoteRune(r)
		return quoted[1 : len(quoted)-1]
	}
	return fmt.Sprintf(`\u%04x`, r)
}

// JSON is a JSON text with the same characters escaped as JSON has it. They can only be within strings there, but for line
// ends and spaces between the values, which stay.
func JSON(text []byte) []byte {
	if !hides(text) {
		return text
	}
	out := make([]byte, 0, len(text))
	for _, r := range string(text) {
		switch {
		case r == '\n' || !hidden(r):
			out = utf8.AppendRune(out, r)
		case r > 0xffff:
			high, low := surrogates(r)
			out = appendEscape(appendEscape(out, high), low)
		default:
			out = appendEscape(out, r)
		}
	}
	return out
}

func surrogates(r rune) (high, low rune) {
	r -= 0x10000
	return 0xd800 + r>>10, 0xdc00 + r&0x3ff
}

func appendEscape(out []byte, r rune) []byte {
	const digits = "0123456789abcdef"
	return append(out, '\\', 'u', digits[r>>12&15], digits[r>>8&15], digits[r>>4&15], digits[r&15])
}
