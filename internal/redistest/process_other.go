//go:build !unix

package redistest

import (
	"errors"
	"fmt"
	"os"
)

// Redis has no server for other systems; this keeps the package compiling.
var errNoServer = fmt.Errorf("real servers can be started on Unix systems only: %w", errors.ErrUnsupported)

func (s *Server) watch() error { return errNoServer }
func exited(int) bool          { return false }
func freeze(*os.Process) error { return errNoServer }
func thaw(*os.Process) error   { return errNoServer }

func lockByte(*os.File, int) bool { return true }
func unlockByte(*os.File, int)    {}
