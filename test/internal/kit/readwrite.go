package kit

import (
	"strings"

	"github.com/lockregistry/lockregistry"
)

// Pair is a reader and its writer, as one process has them.
type Pair struct {
	Reg            *lockregistry.Registry
	Reader, Writer *lockregistry.Lock
}

// PairOf returns the reader and the writer of 42.
func PairOf(r *lockregistry.Registry) Pair {
	rw := r.ReadWrite("42")
	return Pair{r, rw.Reader(), rw.Writer()}
}

// Pair returns the pair of a new process.
func (w *World) Pair(opts ...lockregistry.Option) Pair {
	w.Helper()
	return PairOf(w.Registry(opts...))
}

// Loaded loads the scripts of a format into the server, so that each call is one command.
func (w *World) Loaded(format string) {
	w.Helper()
	for name, body := range Sources() {
		if strings.HasPrefix(name, format) {
			w.Do("SCRIPT", "LOAD", body)
		}
	}
}
