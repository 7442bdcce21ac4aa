//go:build !unix

package kit

import (
	"errors"
	"os"
)

// Stop fails: there are no such signals here. Tests that need them run on real servers, which there are none of either.
func Stop(*os.Process) error { return errors.ErrUnsupported }

// Continue fails likewise.
func Continue(*os.Process) error { return errors.ErrUnsupported }
