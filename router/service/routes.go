package service

import (
	"crypto/sha256"
	"crypto/subtle"
	_ "embed" // the description
	"net/http"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/kvconn/kvconn/internal/counters"
	"github.com/kvconn/kvconn/internal/httpserve"
	"github.com/kvconn/kvconn/router/front"
)

// openAPI describes the HTTP interface (OpenAPI 3.1). It is constant.
//
//go:embed openapi.yaml
var openAPI string

// pattern is one pattern of the HTTP interface. openapi.yaml describes each.
type pattern struct {
	pattern string
	handler http.Handler
	// open needs no token.
	open bool
}

func (s *server) routes() []pattern {
	registry := prometheus.NewRegistry()
	registry.MustRegister(counters.NewCollector("kvconn_router_", s.status), s.router.times, collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	f := func(name string, h answerFunc) pattern { return pattern{pattern: name, handler: h.with(http.StatusOK)} }
	return []pattern{
		f("POST /v1/route", s.serveRoute),
		{pattern: "POST /v1/requests/{id}/prefill_done", handler: report(s.router.PrefillDone)},
		{pattern: "POST /v1/requests/{id}/finished", handler: report(s.router.Finish)},
		f("GET /v1/ranks", s.serveRanks),
		{pattern: "POST /v1/ranks", handler: answerFunc(s.serveAddRank).with(http.StatusCreated)},
		f("GET /v1/ranks/{id}", s.serveRank),
		f("PATCH /v1/ranks/{id}", s.servePatchRank),
		f("DELETE /v1/ranks/{id}", s.serveDeleteRank),
		f("GET /v1/prefix", s.serveGetPrefix),
		f("POST /v1/prefix", s.servePostPrefix),
		{pattern: "POST /v1/completions", handler: s.proxy},
		{pattern: "POST /v1/chat/completions", handler: s.proxy},
		f("GET /v1/models", s.serveModels),
		f("GET /v1/status", s.serveStatus),
		{pattern: "GET /healthz", handler: http.HandlerFunc(s.serveHealth), open: true},
		{pattern: "GET /readyz", handler: http.HandlerFunc(s.serveReady), open: true},
		{pattern: "GET /metrics", handler: promhttp.HandlerFor(registry, promhttp.HandlerOpts{})},
		{pattern: "GET /openapi.yaml", handler: http.HandlerFunc(serveOpenAPI), open: true},
	}
}

// answerFunc returns what a request is answered with, as JSON, or an error: see [front.ErrorOf].
type answerFunc func(w http.ResponseWriter, r *http.Request) (any, error)

// with returns the handler that answers with a status if there is no error.
func (f answerFunc) with(status int) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		answer, err := f(w, r)
		if err != nil {
			front.ErrorOf(err).Write(w)
			return
		}
		httpserve.WriteJSON(w, status, answer, "")
	}
}

func (s *server) handler() http.Handler {
	mux := http.NewServeMux()
	for _, p := range s.routes() {
		h := p.handler
		if !p.open && s.opts.Token != "" {
			h = authorized(s.opts.Token, h)
		}
		mux.Handle(p.pattern, h)
	}
	return mux
}

// authorized lets requests with the token through. The comparison takes the same time for any input.
func authorized(token string, next http.Handler) http.Handler {
	want := sha256.Sum256([]byte(token))
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		given, _ := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
		got := sha256.Sum256([]byte(given))
		if subtle.ConstantTimeCompare(got[:], want[:]) != 1 {
			w.Header().Set("WWW-Authenticate", "Bearer")
			fail(http.StatusUnauthorized, "unauthorized", "the bearer token is missing or wrong").Write(w)
			return
		}
		next.ServeHTTP(w, r)
	})
}

func serveOpenAPI(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "application/yaml")
	_, _ = w.Write([]byte(openAPI)) // the client has gone
}
