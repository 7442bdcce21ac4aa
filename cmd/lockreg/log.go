package main

import (
	"io"
	"log/slog"

	"github.com/lockregistry/lockregistry/cmd/lockreg/internal/printable"
)

// logger writes what happens in the background to standard error, a line each.
func (a *app) logger() *slog.Logger {
	if a.json {
		return slog.New(slog.NewJSONHandler(safeLines{a.err, printable.JSON}, nil))
	}
	return slog.New(slog.NewTextHandler(safeLines{a.err, printable.Line}, nil))
}

// safeLines has lines made safe to show.
type safeLines struct {
	to   io.Writer
	safe func(line []byte) []byte
}

func (s safeLines) Write(line []byte) (int, error) {
	if _, err := s.to.Write(s.safe(line)); err != nil {
		return 0, err
	}
	return len(line), nil
}
