package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/redis/rueidis"
	"github.com/spf13/cobra"

	"github.com/lockregistry/lockregistry/cmd/lockreg/internal/printable"
	"github.com/lockregistry/lockregistry/cmd/lockreg/page"
	"github.com/lockregistry/lockregistry/inspect"
	"github.com/lockregistry/lockregistry/internal/connect"
)

// Tokens are never on the command line, where other users of the machine see them.
const (
	viewTokenVariable    = "LOCKREG_VIEW_TOKEN"    //nolint:gosec // the name, not the token
	releaseTokenVariable = "LOCKREG_RELEASE_TOKEN" //nolint:gosec // the name, not the token
)

const (
	headerTimeout = 5 * time.Second
	idleTimeout   = time.Minute
)

// serving has the flags of serve.
type serving struct {
	listen           string
	hosts            []string
	root             string
	cert, key        string
	behindProxy      bool
	allowRelease     bool
	viewTokenFile    string
	releaseTokenFile string
	metrics          bool
	record           bool
	every            span
}

func (a *app) serveCommand() *cobra.Command {
	var s serving
	cmd := &cobra.Command{
		Use:   "serve PREFIX...",
		Short: "Show locks and their queues live, on a web page",
		Long:  serveHelp,
		Args:  prefixes,
		RunE: func(cmd *cobra.Command, args []string) error {
			ctx, stop := signal.NotifyContext(cmd.Context(), os.Interrupt, syscall.SIGTERM)
			defer stop()
			return a.serve(ctx, args, s)
		},
	}
	s.listens(cmd, "127.0.0.1:8080")
	flags := cmd.Flags()
	flags.StringVar(&s.root, "root", "/", "path of the page, such as /locks/")
	flags.BoolVar(&s.metrics, "metrics", false, "also serve metrics to Prometheus, see lockreg metrics")
	flags.BoolVar(&s.record, "record", false, "read Redis every 10 s while no browser is open, so that the charts cover six hours")
	flags.BoolVar(&s.allowRelease, "allow-release", false, "let the page release locks, for users with the token for releasing")
	flags.StringVar(&s.releaseTokenFile, "release-token-file", "", "file with the token for releasing")
	return cmd
}

// listens adds the flags that say where a server listens, and to whom.
func (s *serving) listens(cmd *cobra.Command, address string) {
	s.root, s.every = "/", defaultEvery
	flags := cmd.Flags()
	flags.StringVar(&s.listen, "listen", address, "address and port")
	flags.StringSliceVar(&s.hosts, "host", nil, "host name that clients use; may be given several times")
	flags.StringVar(&s.cert, "tls-cert", "", "file with the certificate chain, PEM")
	flags.StringVar(&s.key, "tls-key", "", "file with the certificate's key, PEM")
	flags.BoolVar(&s.behindProxy, "behind-proxy", false, "a proxy in front speaks HTTPS with clients")
	flags.StringVar(&s.viewTokenFile, "view-token-file", "", "file with the token for viewing")
	flags.Var(&s.every, "every", "shortest pause between two looks for metrics")
}

// options checks the flags. What is not safe is a mistake, not a warning.
func (s *serving) options() ([]page.Option, error) {
	host, _, err := net.SplitHostPort(s.listen)
	if err != nil {
		return nil, usage("--listen is %q: it is an address and a port, such as 127.0.0.1:8080", s.listen)
	}
	if time.Duration(s.every) < leastEvery {
		return nil, usage("--every is %v: it must be %v at least", time.Duration(s.every), leastEvery)
	}
	if i := slices.IndexFunc(s.hosts, notAName); i >= 0 {
		return nil, usage("--host is %q: it is a name alone, without a scheme, port or path", s.hosts[i])
	}
	encrypted := s.cert != ""
	if encrypted != (s.key != "") {
		return nil, usage("--tls-cert and --tls-key need each other")
	}
	view, err := token("--view-token-file", s.viewTokenFile, viewTokenVariable)
	if err != nil {
		return nil, err
	}
	var release string
	if s.allowRelease {
		if release, err = token("--release-token-file", s.releaseTokenFile, releaseTokenVariable); err != nil {
			return nil, err
		}
		if release == "" {
			return nil, usage("--allow-release needs a token for releasing: --release-token-file, or %s", releaseTokenVariable)
		}
	} else if s.releaseTokenFile != "" {
		return nil, usage("--release-token-file is for --allow-release")
	}

	address, err := netip.ParseAddr(host)
	local := host == "localhost" || err == nil && address.IsLoopback()
	everywhere := host == "" || err == nil && address.IsUnspecified()
	switch {
	case !local && !encrypted && !s.behindProxy:
		return nil, usage("--listen %s is not loopback: that needs --tls-cert and --tls-key, or --behind-proxy", s.listen)
	case !local && view == "":
		return nil, usage("--listen %s is not loopback: that needs a token: --view-token-file, or %s", s.listen, viewTokenVariable)
	case s.behindProxy && view == "":
		return nil, usage("--behind-proxy needs a token: --view-token-file, or %s", viewTokenVariable)
	case everywhere && len(s.hosts) == 0:
		return nil, usage("--listen %s has no name: say with --host how browsers reach the page", s.listen)
	}

	hosts := s.hosts
	if !everywhere {
		hosts = append([]string{host}, hosts...)
	}
	options := []page.Option{page.WithHosts(hosts...), page.WithRoot(s.root)}
	if view != "" || release != "" {
		options = append(options, page.WithTokens(view, release, encrypted || s.behindProxy))
	}
	return options, nil
}

// notAName reports whether a host is written with more than its name, or address: no request would name such a host.
func notAName(host string) bool {
	_, _, err := net.SplitHostPort(host)
	return err == nil || strings.Contains(host, "/")
}

// prefixes checks the arguments of a command for one prefix or more.
func prefixes(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return usage("write: lockreg %s", cmd.Use)
	}
	for i, prefix := range args {
		switch {
		case prefix == "":
			return usage("a prefix is empty")
		case slices.Contains(args[:i], prefix):
			return usage("the prefix %q is given twice", prefix)
		}
	}
	if cmd.Name() == "serve" && len(args) > page.MostPrefixes {
		return usage("%d prefixes are given: the page shows %d at most", len(args), page.MostPrefixes)
	}
	return nil
}

// serve serves the page until the context ends.
func (a *app) serve(ctx context.Context, prefixes []string, s serving) error {
	options, err := s.options()
	if err != nil {
		return err
	}
	log, flush := a.patientLogger()
	defer flush()
	// Options are looked at before Redis is.
	title := strings.Join(prefixes, ", ") + " on " + printable.Text(connect.Show(a.address()))
	options = append(options, page.WithLogger(log), page.WithTitle(title))
	check, err := page.New(nil, options...)
	if err != nil {
		return exit{exitUsage, err}
	}
	check.Close()
	encryption, err := s.encryption(log)
	if err != nil {
		return err
	}

	inspectors, client, disconnect, err := a.inspectors(ctx, prefixes)
	if err != nil {
		return unlessEnded(ctx, err)
	}
	defer disconnect()
	for _, prefix := range prefixes {
		locks := inspectors[prefix]
		if hint := a.noLocks(ctx, locks, prefix); hint != "" {
			log.Warn(strings.TrimPrefix(hint, "; "))
		}
		options = append(options, page.WithPrefix(prefix, locks))
	}
	options = append(options, page.WithClient(client))
	if s.record {
		options = append(options, page.WithRecord())
	}
	if s.metrics {
		metrics, stop := s.looks(ctx, inspectors, log)
		defer stop()
		options = append(options, page.WithMetrics(metrics))
	}
	handler, err := page.New(nil, options...)
	if err != nil {
		return exit{exitUsage, err}
	}
	defer handler.Close()
	return s.serve(ctx, newServer(handler, log), encryption, handler.Close, log,
		"prefix", strings.Join(prefixes, " "), "redis", connect.Show(a.address()))
}

// inspectors returns the inspectors of prefixes, which share a client, that client, and what closes all.
func (a *app) inspectors(
	ctx context.Context, prefixes []string,
) (all map[string]*inspect.Inspector, client rueidis.Client, end func(), err error) {
	first, client, end, err := a.registry(ctx, prefixes[0])
	if err != nil {
		return nil, nil, nil, err
	}
	all = map[string]*inspect.Inspector{prefixes[0]: inspect.Of(first)}
	for _, prefix := range prefixes[1:] {
		next, err := a.registryOn(client, prefix)
		if err != nil {
			end()
			return nil, nil, nil, err
		}
		all[prefix] = inspect.Of(next)
		before := end
		end = func() { // the client is closed last
			_ = next.Close()
			before()
		}
	}
	return all, client, end, nil
}

// encryption is what the server's TLS is set up with; nil: there is none.
func (s *serving) encryption(log *slog.Logger) (*tls.Config, error) {
	if s.cert == "" {
		return nil, nil //nolint:nilnil // as for http.Server
	}
	certificate, err := newCertificate(s.cert, s.key, log)
	if err != nil {
		return nil, usage("--tls-cert, --tls-key: %w", err)
	}
	return &tls.Config{GetCertificate: certificate.get, MinVersion: tls.VersionTLS12}, nil
}

// serve listens, says so, and serves until the context ends. End ends what the server would wait for.
func (s *serving) serve(
	ctx context.Context, server *http.Server, encryption *tls.Config, end func(), log *slog.Logger, about ...any,
) error {
	server.TLSConfig = encryption
	scheme := "http"
	if encryption != nil {
		scheme = "https"
	}
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", s.listen)
	if err != nil {
		return unlessEnded(ctx, exit{exitUnavailable, fmt.Errorf("cannot listen on %s: %w", s.listen, err)})
	}
	log.Info("serving", append([]any{"url", scheme + "://" + listener.Addr().String() + s.root}, about...)...)
	return serveOn(ctx, listener, server, end)
}

// unlessEnded returns the error of a server that did not start. If a signal had ended the context by then, it is none.
func unlessEnded(ctx context.Context, err error) error {
	if ctx.Err() == nil {
		return err
	}
	return nil
}

// serveOn serves until the context ends.
func serveOn(ctx context.Context, listener net.Listener, server *http.Server, end func()) (err error) {
	failed := make(chan error, 1)
	go func() {
		if server.TLSConfig != nil {
			failed <- server.ServeTLS(listener, "", "")
		} else {
			failed <- server.Serve(listener)
		}
	}()
	select {
	case err = <-failed:
		return exit{exitUnavailable, err}
	case <-ctx.Done():
	}
	end()
	ending, cancel := context.WithTimeout(context.WithoutCancel(ctx), headerTimeout)
	defer cancel()
	if err := server.Shutdown(ending); err != nil {
		_ = server.Close()
	}
	if err := <-failed; !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// newServer makes a server that slow clients cannot block. It has no timeout for responses, since streams go on for hours; the
// page has a timeout for each write, and for reading requests.
func newServer(handler http.Handler, log *slog.Logger) *http.Server {
	return &http.Server{
		Handler: handler, ReadHeaderTimeout: headerTimeout, IdleTimeout: idleTimeout, MaxHeaderBytes: 16 << 10,
		ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelDebug),
	}
}
