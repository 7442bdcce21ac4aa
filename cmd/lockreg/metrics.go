package main

import (
	"context"
	"log/slog"
	"net/http"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/lockregistry/lockregistry/cmd/lockreg/exporter"
	"github.com/lockregistry/lockregistry/cmd/lockreg/page"
	"github.com/lockregistry/lockregistry/inspect"
	"github.com/lockregistry/lockregistry/internal/connect"
)

// leastEvery keeps looks from being all that a server does: the first keys of a pass are read without a pause.
const leastEvery = 100 * time.Millisecond

// defaultEvery is the pause between two looks. A dead holder with the default lease of 60 s shows for 34 s: two looks see it. One
// with a lease of 30 s shows for 17 s: mostly one look does.
const defaultEvery = span(15 * time.Second)

func (a *app) metricsCommand() *cobra.Command {
	var s serving
	cmd := &cobra.Command{
		Use:   "metrics PREFIX...",
		Short: "Serve metrics of all locks to Prometheus",
		Long:  metricsHelp,
		Example: `  lockreg metrics shop stock
  lockreg metrics --listen 0.0.0.0:9131 --host locks.example.org --behind-proxy \
    --view-token-file view.token shop`,
		Args: prefixes,
		RunE: func(cmd *cobra.Command, args []string) error {
			ctx, stop := signal.NotifyContext(cmd.Context(), os.Interrupt, syscall.SIGTERM)
			defer stop()
			return a.metrics(ctx, args, &s)
		},
	}
	s.listens(cmd, "127.0.0.1:9131")
	return cmd
}

func (a *app) metrics(ctx context.Context, prefixes []string, s *serving) error {
	options, err := s.options()
	if err != nil {
		return err
	}
	log, flush := a.patientLogger()
	defer flush()
	options = append(options, page.WithLogger(log))
	if _, err := page.Metrics(nil, options...); err != nil { // what is wrong with them is said before Redis is looked for
		return exit{exitUsage, err}
	}
	encryption, err := s.encryption(log)
	if err != nil {
		return err
	}
	inspectors, _, disconnect, err := a.inspectors(ctx, prefixes)
	if err != nil {
		return unlessEnded(ctx, err)
	}
	defer disconnect()
	looked, stop := s.looks(ctx, inspectors, log)
	defer stop()
	handler, err := page.Metrics(looked, options...)
	if err != nil {
		return exit{exitUsage, err}
	}
	s.root = "/metrics"
	return s.serve(ctx, newServer(handler, log), encryption, func() {}, log,
		"prefixes", strings.Join(prefixes, " "), "redis", connect.Show(a.address()))
}

// looks begins to look at locks, until stop is called.
func (s *serving) looks(
	ctx context.Context, all map[string]*inspect.Inspector, log *slog.Logger,
) (metrics http.Handler, stop func()) {
	e := exporter.New(all, time.Duration(s.every), log)
	ctx, cancel := context.WithCancel(ctx)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		e.Run(ctx)
	}()
	return e, func() {
		cancel()
		<-ended
	}
}
