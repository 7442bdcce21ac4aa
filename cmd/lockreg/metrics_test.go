package main

import (
	"bytes"
	"context"
	"io"
	"net"
	"net/http"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry/internal/redistest"
)

var servedAt = regexp.MustCompile(`url=(\S+)`)

// Metrics of two prefixes, Java's lock among them, alone and beside the page, to those with the token.
func TestMetrics(t *testing.T) {
	server := redistest.Start(t)
	server.Command(t, "SET", "shop:42", "6b1cd0ab-2f5e-4e4a-9c5e-9d1d3f7a0b52", "PX", "60000") // as Spring writes it
	server.Command(t, "SET", "shop:43", "6b1cd0ab-2f5e-4e4a-9c5e-9d1d3f7a0b52")                // without an end
	for name, run := range map[string]func(ctx context.Context, a *app, s serving) error{
		"metrics": func(ctx context.Context, a *app, s serving) error {
			return a.metrics(ctx, []string{"shop", "stock"}, &s)
		},
		"serve": func(ctx context.Context, a *app, s serving) error {
			s.metrics = true
			return a.serve(ctx, []string{"shop"}, s)
		},
	} {
		t.Run(name, func(t *testing.T) {
			log := &lines{}
			a := &app{in: strings.NewReader(""), out: io.Discard, err: log, url: "redis://" + server.Addr(), layout: "spring"}
			ctx, stop := context.WithCancel(t.Context())
			done, s := make(chan error, 1), serving{
				listen: "127.0.0.1:0", root: "/", every: span(leastEvery), viewTokenFile: tokenFile(t, viewToken),
			}
			go func() { done <- run(ctx, a, s) }()
			var at string
			require.Eventually(t, func() bool {
				match := servedAt.FindStringSubmatch(log.String())
				if match != nil {
					at = strings.TrimSuffix(match[1], "metrics") + "metrics"
				}
				return match != nil
			}, time.Minute, time.Millisecond)
			get := func(token string) (status int, text string) {
				request, err := http.NewRequestWithContext(ctx, http.MethodGet, at, http.NoBody)
				require.NoError(t, err)
				if token != "" {
					request.Header.Set("Authorization", "Bearer "+token)
				}
				answer, err := http.DefaultClient.Do(request)
				require.NoError(t, err)
				defer func() { _ = answer.Body.Close() }()
				body, err := io.ReadAll(answer.Body)
				require.NoError(t, err)
				return answer.StatusCode, string(body)
			}
			status, _ := get("")
			require.Equal(t, http.StatusUnauthorized, status)
			require.Eventually(t, func() bool {
				_, text := get(viewToken)
				return strings.Contains(text, `lockregistry_fleet_holds{lockregistry_prefix="shop"} 2`+"\n") &&
					strings.Contains(text, `lockregistry_fleet_holds_without_expiry{lockregistry_prefix="shop"} 1`+"\n") &&
					strings.Contains(text, `lockregistry_fleet_up{lockregistry_prefix="stock"} 1`+"\n") == (name == "metrics")
			}, time.Minute, time.Millisecond)
			http.DefaultClient.CloseIdleConnections()
			stop()
			require.NoError(t, <-done)
		})
	}
}

// A signal that comes while Redis does not answer ends lockreg like any other.
func TestServersEndWhileTheyConnect(t *testing.T) {
	silent, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer func() { _ = silent.Close() }()
	at := "redis://" + silent.Addr().String()
	a := &app{in: strings.NewReader(""), out: io.Discard, err: io.Discard, url: at, layout: "spring"}
	s := serving{listen: "127.0.0.1:0", root: "/", every: defaultEvery}
	for name, run := range map[string]func(ctx context.Context) error{
		"serve":   func(ctx context.Context) error { return a.serve(ctx, []string{"shop"}, s) },
		"metrics": func(ctx context.Context) error { return a.metrics(ctx, []string{"shop"}, &s) },
	} {
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- run(ctx) }()
		conn, err := silent.Accept()
		stop()
		require.NoError(t, err, name)
		require.NoError(t, <-done, name)
		require.NoError(t, conn.Close())
	}
}

func TestMetricsRefuses(t *testing.T) {
	for _, try := range []struct{ flags, want string }{
		{"", "write: lockreg metrics PREFIX..."},
		{"--every 0 shop", "must be 100ms at least"},
		{"--listen 10.1.2.3:9131 shop", "needs --tls-cert"},
		{"--behind-proxy shop", "needs a token"},
		{"--view-token-file " + tokenFile(t, "secret") + " shop", "needs 128"},
	} {
		var said bytes.Buffer
		a := &app{in: strings.NewReader(""), out: io.Discard, err: &said}
		code := a.execute(append([]string{"metrics", "--url", "redis://127.0.0.1:1"}, strings.Fields(try.flags)...))
		require.Equal(t, exitUsage, code, try.flags)
		require.Contains(t, said.String(), try.want, try.flags)
	}
}
