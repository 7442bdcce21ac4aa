package page

import (
	"net/http"
	"strings"
)

// WithMetrics serves metrics at "metrics" below the root, to everyone who may look: with the page's cookie or, as Prometheus
// does, with the token for viewing in the header "Authorization: Bearer TOKEN". Default: there are none.
func WithMetrics(metrics http.Handler) Option {
	return func(h *Handler) error { h.metrics = metrics; return nil }
}

// Metrics makes a handler for metrics alone, without a page, behind the same tokens and hosts. Only the options [WithRoot],
// [WithTokens], [WithHosts] and [WithLogger] have an effect.
func Metrics(metrics http.Handler, options ...Option) (http.Handler, error) {
	h, err := newHandler(nil, append(options, WithMetrics(metrics)))
	if err != nil {
		return nil, err
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET "+h.root+"metrics", h.scrape)
	h.handler = mux
	return h, nil
}

func (h *Handler) scrape(w http.ResponseWriter, r *http.Request) {
	token, bears := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	switch {
	case bears && h.gate.attempts != nil:
		if h.try(w, r, token) == nothing {
			return
		}
	case !h.require(w, r, look):
		return
	}
	h.metrics.ServeHTTP(w, r)
}
