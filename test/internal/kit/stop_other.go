//go:build !unix

package kit

import (
	"errors"
	"os"
)

// Stop fails: these systems lack the signals. The tests that need them run on real servers, which these systems lack as well.
func Stop(*os.Process) error { return errors.ErrUnsupported }

// Continue fails likewise.
func Continue(*os.Process) error { return errors.ErrUnsupported }
