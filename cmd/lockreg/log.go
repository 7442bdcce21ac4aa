package main

import (
	"io"
	"log/slog"

	"github.com/lockregistry/lockregistry/cmd/lockreg/internal/printable"
)

// logger writes what happens in the background to standard error, a line each.
func (a *app) logger() *slog.Logger {
	if a.json {
		return slog.New(slog.NewJSONHandler(safeLines{a.err}, nil))
	}
	return slog.New(slog.NewTextHandler(a.err, nil)) // which quotes what cannot be printed
}

// safeLines has lines of JSON made safe to show.
type safeLines struct{ to io.Writer }

func (s safeLines) Write(line []byte) (int, error) {
	if _, err := s.to.Write(printable.JSON(line)); err != nil {
		return 0, err
	}
	return len(line), nil
}
