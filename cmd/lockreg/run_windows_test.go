package main

import (
	"bytes"
	"io"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
)

// Whatever the command line is, the system is what is wrong with it.
func TestRunElsewhere(t *testing.T) {
	for _, line := range []string{
		"run", "run --no-wait shop a -- ./job", "run shop a ./job --flag", "--json run -w 3 shop a ./job",
	} {
		var said bytes.Buffer
		a := &app{in: strings.NewReader(""), out: io.Discard, err: &said}
		assert.NotZero(t, a.execute(strings.Fields(line)), line)
		assert.Contains(t, said.String(), "which this system does not have", line)
	}
}
