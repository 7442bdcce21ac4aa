// Package peer lets a test drive other processes that lock: JVMs with one of the
// Java libraries, and Go processes with this one. Both sides of the protocol are
// here; the Java side is in test/interop/jvm/peer.
//
// A line is a request or a reply, its fields written as in the query part of a
// URL, so that prefixes and paths may hold any text. A request names the thread
// that is to carry it out, because locks belong to threads.
package peer

import (
	"bytes"
	"encoding/base64"
	"encoding/gob"
	"fmt"
	"net/url"
	"strconv"
	"time"
)

// longest is how long a line may be: a reply may list all that a process saw.
const longest = 1 << 30

// Fields of a request or of a reply.
type Fields map[string]string

func (f Fields) line() string {
	values := url.Values{}
	for name, value := range f {
		values.Set(name, value)
	}
	return values.Encode() + "\n"
}

func parse(line string) (Fields, error) {
	values, err := url.ParseQuery(line)
	if err != nil {
		return nil, fmt.Errorf("no line of the protocol: %q: %w", line, err)
	}
	fields := Fields{}
	for name := range values {
		fields[name] = values.Get(name)
	}
	return fields, nil
}

// Pack writes a value for a field.
func Pack(value any) string {
	var packed bytes.Buffer
	if err := gob.NewEncoder(&packed).Encode(value); err != nil {
		panic(err) // no value of its type can be packed
	}
	return base64.RawURLEncoding.EncodeToString(packed.Bytes())
}

// Unpack reads what [Pack] wrote.
func Unpack(text string, value any) error {
	packed, err := base64.RawURLEncoding.DecodeString(text)
	if err != nil {
		return fmt.Errorf("a field is no packed value: %w", err)
	}
	return gob.NewDecoder(bytes.NewReader(packed)).Decode(value)
}

// Time reads a field of microseconds since 1970, as processes of one machine can
// compare them.
func (f Fields) Time(name string) (time.Time, error) {
	micros, err := strconv.ParseInt(f[name], 10, 64)
	if err != nil {
		return time.Time{}, fmt.Errorf("field %s of a reply is no time: %w", name, err)
	}
	return time.UnixMicro(micros), nil
}

// Millis reads an optional field of milliseconds.
func (f Fields) Millis(name string) (d time.Duration, given bool, err error) {
	text, given := f[name]
	if !given {
		return 0, false, nil
	}
	millis, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return 0, false, fmt.Errorf("field %s of a request is no number of milliseconds: %w", name, err)
	}
	return time.Duration(millis) * time.Millisecond, true, nil
}

// InMillis writes a duration for a request.
func InMillis(d time.Duration) string { return strconv.FormatInt(d.Milliseconds(), 10) }

// Now writes the time for a reply.
func Now() string { return strconv.FormatInt(time.Now().UnixMicro(), 10) }

// RemoteError is the exception or error of a command on the other side.
type RemoteError struct {
	Class   string // the exception's class, or the name of the Go error
	Message string
	Cause   string // class and message of an exception's cause
}

func (f *RemoteError) Error() string {
	text := f.Class + ": " + f.Message
	if f.Cause != "" {
		text += " (caused by " + f.Cause + ")"
	}
	return text
}
