package main

import (
	"io"
	"log/slog"

	"github.com/lockregistry/lockregistry/cmd/lockreg/internal/printable"
)

// logger writes what happens in the background to standard error, a line each, from a level on.
func (a *app) logger(least slog.Level) *slog.Logger {
	options := &slog.HandlerOptions{Level: least}
	if a.json {
		return slog.New(slog.NewJSONHandler(safeLines{a.err, printable.JSON}, options))
	}
	return slog.New(slog.NewTextHandler(safeLines{a.err, printable.Line}, options))
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
