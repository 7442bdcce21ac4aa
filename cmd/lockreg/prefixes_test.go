package main_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
)

// Where Redis does not answer, nothing is known of prefixes.
func TestPrefixesWithoutAnAnswer(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	s.Command(t, "SET", "shop:a", "5f0c6f0e-1f4e-4d6c-9d5a-2f3e6f1a7b11", "PX", "600000")
	s.Command(t, "CLIENT", "PAUSE", "600000", "WRITE") // also for the script that calls SCAN
	code, out, text := lockreg(t, s.url, "prefixes")
	assert.Equal(t, 69, code, text)
	assert.Empty(t, out)
}
