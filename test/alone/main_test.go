// Package alone_test measures the time or the memory of the whole machine. The race detector would multiply what it measures, and
// other themes run the same code with it: all files but this one are built without it.
package alone_test

import (
	"testing"

	"github.com/lockregistry/lockregistry/test/internal/kit"
)

func TestMain(m *testing.M) { kit.Main(m) }
