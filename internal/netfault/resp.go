package netfault

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"strconv"
)

// readValue reads one value of the Redis serialization protocol, version 2 or 3, with all that it contains.
func readValue(from *bufio.Reader) ([]byte, error) { return appendValue(nil, from) }

func appendValue(raw []byte, from *bufio.Reader) ([]byte, error) {
	line, err := from.ReadBytes('\n')
	if err != nil {
		return nil, err
	}
	raw = append(raw, line...)
	size, _ := strconv.Atoi(string(bytes.TrimSpace(line[1:])))
	values := 0
	switch line[0] {
	case '$', '=', '!':
		if size < 0 {
			return raw, nil
		}
		text := make([]byte, size+len("\r\n"))
		_, err = io.ReadFull(from, text)
		return append(raw, text...), err
	case '*', '~', '>':
		values = max(size, 0)
	case '%':
		values = 2 * size
	case '|': // attributes, before the value that they belong to
		values = 2*size + 1
	}
	for range values {
		if raw, err = appendValue(raw, from); err != nil {
			return nil, err
		}
	}
	return raw, nil
}

// readCommand reads a client's command: an array of strings.
func readCommand(from *bufio.Reader) (raw []byte, args []string, err error) {
	if raw, err = readValue(from); err != nil {
		return nil, nil, err
	}
	_, rest, _ := bytes.Cut(raw, []byte("\r\n"))
	for len(rest) > 0 {
		size, text, _ := bytes.Cut(rest, []byte("\r\n"))
		n, err := strconv.Atoi(string(bytes.TrimPrefix(size, []byte("$"))))
		if err != nil || n < 0 || n+len("\r\n") > len(text) {
			return nil, nil, fmt.Errorf("not a command: %q", raw)
		}
		args = append(args, string(text[:n]))
		rest = text[n+len("\r\n"):]
	}
	return raw, args, nil
}

// pushes are the beginnings of values that answer no command. In version 3 they have a type of their own, in version 2 they are
// arrays whose first string says so.
var pushes = [][]byte{
	[]byte("$7\r\nmessage\r\n"), []byte("$8\r\npmessage\r\n"),
	[]byte("$9\r\nsubscribe\r\n"), []byte("$11\r\nunsubscribe\r\n"),
	[]byte("$10\r\npsubscribe\r\n"), []byte("$12\r\npunsubscribe\r\n"),
}

func pushed(said []byte) bool {
	if said[0] != '*' {
		return said[0] == '>'
	}
	_, rest, _ := bytes.Cut(said, []byte("\r\n"))
	for _, p := range pushes {
		if bytes.HasPrefix(rest, p) {
			return true
		}
	}
	return false
}

// elements returns the texts of an array and of the arrays in it, in order.
func elements(raw []byte) (all []string) {
	for len(raw) > 0 {
		line, rest, _ := bytes.Cut(raw, []byte("\r\n"))
		raw = rest
		switch size, _ := strconv.Atoi(string(line[1:])); line[0] {
		case '*', '>':
		case '$':
			text := rest[:max(size, 0)]
			all = append(all, string(text))
			if size >= 0 {
				raw = rest[size+len("\r\n"):]
			}
		default:
			all = append(all, string(line[1:]))
		}
	}
	return all
}
