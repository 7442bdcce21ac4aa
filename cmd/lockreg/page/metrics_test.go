package page_test

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry/cmd/lockreg/page"
)

const viewing = "00112233445566778899aabbccddeeff"

var figures = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "figures") })

// scraped returns the answer to a scrape.
func scraped(t *testing.T, h http.Handler, url, token string) (status int, text string) {
	t.Helper()
	r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	if token != "" {
		r.Header.Set("Authorization", "Bearer "+token)
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w.Code, w.Body.String()
}

// Metrics are for those who may look, on the page and without one.
func TestMetrics(t *testing.T) {
	for name, made := range map[string]func(t *testing.T, options ...page.Option) http.Handler{
		"with a page": func(t *testing.T, options ...page.Option) http.Handler {
			t.Helper()
			h, err := page.New(newFake(), append(options, page.WithMetrics(figures))...)
			require.NoError(t, err)
			t.Cleanup(h.Close)
			return h
		},
		"alone": func(t *testing.T, options ...page.Option) http.Handler {
			t.Helper()
			h, err := page.Metrics(figures, options...)
			require.NoError(t, err)
			status, _ := scraped(t, h, "/", "")
			require.NotEqual(t, http.StatusOK, status, "there is no page")
			return h
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { // a wrong token costs a second
				check := func(h http.Handler, path, token string, want int) {
					t.Helper()
					status, text := scraped(t, h, path, token)
					require.Equal(t, want, status)
					require.Equal(t, want == http.StatusOK, text == "figures", text)
				}
				check(made(t), "/metrics", "", http.StatusOK)
				check(made(t), "/metrics", "any, since there is none", http.StatusOK)
				check(made(t, page.WithRoot("/locks/")), "/locks/metrics", "", http.StatusOK)
				guarded := made(t, page.WithTokens(viewing, strings.Repeat("fedcba98", 4), false))
				check(guarded, "/metrics", "", http.StatusUnauthorized)
				check(guarded, "/metrics", "wrong", http.StatusUnauthorized)
				check(guarded, "/metrics", viewing, http.StatusOK)
				check(guarded, "/metrics", strings.Repeat("fedcba98", 4), http.StatusOK)
				check(made(t, page.WithHosts("locks.example")), "http://other.example/metrics", "", http.StatusMisdirectedRequest)
			})
		})
	}
}

// However many wrong tokens come, a right one is accepted at once, by the page and for metrics.
func TestWrongTokensKeepNobodyOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newPage(t, newFake(), page.WithTokens(viewing, releaseToken, false), page.WithMetrics(figures))
		var wrong sync.WaitGroup
		for range 20 {
			wrong.Go(func() { request(h, "POST", "/login", `{"token":"wrong"}`) })
		}
		synctest.Wait()
		signIn(t, h, viewing)
		status, _ := scraped(t, h, "/metrics", viewing)
		require.Equal(t, http.StatusOK, status)
		status, _ = scraped(t, h, "/metrics", "wrong")
		require.Equal(t, http.StatusTooManyRequests, status)
		wrong.Wait()
	})
}

func TestMetrics_AreOffByDefault(t *testing.T) {
	h, err := page.New(newFake())
	require.NoError(t, err)
	defer h.Close()
	status, _ := scraped(t, h, "/metrics", "")
	require.Equal(t, http.StatusNotFound, status)
	_, err = page.Metrics(figures, page.WithTokens("weak", "", false))
	require.ErrorIs(t, err, page.ErrToken)
}
