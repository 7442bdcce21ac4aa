package main

import (
	"io"
	"log/slog"
	"slices"

	"github.com/lockregistry/lockregistry/cmd/lockreg/internal/printable"
	"github.com/lockregistry/lockregistry/internal/dispatch"
)

// logger writes what happens in the background to standard error, a line each, from a level on.
func (a *app) logger(least slog.Level) *slog.Logger {
	options := &slog.HandlerOptions{Level: least}
	if a.json {
		return slog.New(slog.NewJSONHandler(safeLines{a.err, printable.JSON}, options))
	}
	return slog.New(slog.NewTextHandler(safeLines{a.err, printable.Line}, options))
}

// patientLines has a goroutine write the lines. So no caller waits for an output that nobody reads, such as a terminal after
// Ctrl-S. While more than a thousand lines wait, further ones are dropped.
type patientLines struct {
	to    io.Writer
	queue dispatch.Queue
}

func (p *patientLines) Write(line []byte) (int, error) {
	mine := slices.Clone(line) // its owner uses it again
	p.queue.Put(func() { _, _ = p.to.Write(mine) })
	return len(line), nil
}

// flush returns when all is written, after about a second at most.
func (p *patientLines) flush() {
	for range 10 {
		p.queue.Flush() // waits for a tenth of a second at most
	}
}

// patientLogger returns a logger that keeps no request waiting for its output, and what waits until all is written.
func (a *app) patientLogger() (log *slog.Logger, flush func()) {
	said := &patientLines{to: a.err}
	return a.errorsTo(said).logger(slog.LevelInfo), said.flush
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
