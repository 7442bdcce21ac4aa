package peer

import (
	"archive/zip"
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"time"
)

// StartWrong starts the program of a module in which a class of its library has a clock that is ahead, or behind. The class is
// found in the jars of the module. It may use System for nothing but the time: in a copy the name of System is another class's,
// WrongClock.java.
func (p Java) StartWrong(name, module, class, dir string, ahead time.Duration) (*Peer, error) {
	jars, err := filepath.Glob(filepath.Join(p.Dir, module, "target", "lib", "*.jar"))
	if err != nil {
		return nil, fmt.Errorf("no jars: %w", err)
	}
	for _, jar := range jars {
		code, err := entry(jar, class+".class")
		if err != nil {
			return nil, err
		}
		if code == nil {
			continue
		}
		const system, wrong = "java/lang/System", "lockregistry/peer/WrongClock"
		if bytes.Count(code, constant(system)) != 1 {
			return nil, fmt.Errorf("%s does not use System as expected", class)
		}
		path := filepath.Join(dir, filepath.FromSlash(class)+".class")
		if err := os.MkdirAll(filepath.Dir(path), 0o750); err != nil {
			return nil, fmt.Errorf("no room for a class: %w", err)
		}
		if err := os.WriteFile(path, bytes.Replace(code, constant(system), constant(wrong), 1), 0o600); err != nil {
			return nil, fmt.Errorf("no room for a class: %w", err)
		}
		return p.start(name, module, dir, "-Dlockregistry.ahead="+strconv.FormatInt(ahead.Milliseconds(), 10))
	}
	return nil, fmt.Errorf("no jar of %s has %s", module, class)
}

// constant is how a class file has a string of its own.
func constant(text string) []byte {
	return append(binary.BigEndian.AppendUint16([]byte{1}, uint16(len(text))), text...) //nolint:gosec // it is short
}

// entry is a file in a jar; nil when it has none of that name.
func entry(jar, name string) (content []byte, err error) {
	r, err := zip.OpenReader(jar)
	if err != nil {
		return nil, fmt.Errorf("cannot read a jar: %w", err)
	}
	defer func() { _ = r.Close() }()
	f, err := r.Open(name)
	if err != nil {
		return nil, nil // another jar may have it
	}
	defer func() { _ = f.Close() }()
	return io.ReadAll(f)
}
