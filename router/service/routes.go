package service

import (
	_ "embed" // the description
	"fmt"
	"net/http"
	"slices"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/kvconn/kvconn/internal/counters"
	"github.com/kvconn/kvconn/internal/httpserve"
	"github.com/kvconn/kvconn/internal/observe"
	"github.com/kvconn/kvconn/internal/page"
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

// scrapesAtOnce bounds the work of scrapes.
const scrapesAtOnce = 8

func (s *server) routes() []pattern {
	registry := prometheus.NewRegistry()
	registry.MustRegister(counters.NewCollector(metricPrefix, s.status), s.router.times, s.times, observe.BuildInfo(metricPrefix), collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	f := func(name string, h answerFunc) pattern { return pattern{pattern: name, handler: h.with(http.StatusOK)} }
	return append([]pattern{
		f("POST /v1/route", s.serveRoute),
		{pattern: "POST /v1/requests/{id}/prefill_done", handler: report(s.prefillDone)},
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
		f("GET /v1/models/{id...}", s.serveModel),
		f("GET /v1/status", s.serveStatus),
		f("GET /v1/decisions", s.serveDecisions),
		{pattern: "GET /v1/history", handler: s.history},
		{pattern: page.Path, handler: page.Router(), open: true},
		{pattern: page.AssetsPath, handler: page.Assets(), open: true},
		{pattern: "GET /healthz", handler: http.HandlerFunc(s.serveHealth), open: true},
		{pattern: "GET /readyz", handler: http.HandlerFunc(s.serveReady), open: true},
		{pattern: "GET /metrics", handler: promhttp.HandlerFor(registry, promhttp.HandlerOpts{EnableOpenMetrics: true, MaxRequestsInFlight: scrapesAtOnce})},
		{pattern: "GET /openapi.yaml", handler: http.HandlerFunc(serveOpenAPI), open: true},
	}, forwarded(s.proxy.Others())...)
}

// forwarded are the patterns of engines' other paths. Outside of /v1 only those are forwarded that clients ask for: others
// there manage an engine.
func forwarded(h http.Handler) (list []pattern) {
	for _, p := range [...]string{
		"GET /v1/{path...}", "POST /v1/{path...}", "DELETE /v1/{path...}",
		"POST /tokenize", "POST /detokenize", "POST /pooling", "POST /classify", "POST /score", "POST /rerank", "POST /v2/rerank", "GET /version",
	} {
		list = append(list, pattern{pattern: p, handler: h})
	}
	return list
}

// notAllowed are patterns for the methods that the router's own paths do not have: without them those requests would be
// an engine's, or get an answer that is not in OpenAI's form.
func notAllowed(routes []pattern) (list []pattern) {
	methods := map[string][]string{}
	for _, r := range routes {
		method, path, _ := strings.Cut(r.pattern, " ")
		methods[path] = append(methods[path], method)
	}
	for path, allowed := range methods {
		if strings.Contains(path, "...") {
			continue
		}
		allow := strings.Join(allowed, ", ")
		refuse := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Allow", allow)
			fail(http.StatusMethodNotAllowed, "method_not_allowed", r.Method+" is not allowed here, but "+allow).Write(w)
		})
		for _, m := range [...]string{http.MethodGet, http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete} {
			if !slices.Contains(allowed, m) {
				list = append(list, pattern{pattern: m + " " + path, handler: refuse})
			}
		}
	}
	return list
}

func notFound(w http.ResponseWriter, r *http.Request) {
	fail(http.StatusNotFound, "not_found", fmt.Sprintf("the router has no %s %.64q", r.Method, r.URL.Path)).Write(w)
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
	routes := s.routes()
	mux.HandleFunc("/", notFound)
	for _, p := range append(routes, notAllowed(routes)...) {
		h := p.handler
		if !p.open && s.opts.Token != "" {
			h = authorized(s.opts.Token, h)
		}
		mux.Handle(p.pattern, h)
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if s.draining.Load() { // the client is to ask another router next
			w.Header().Set("Connection", "close")
		}
		mux.ServeHTTP(w, r)
	})
}

// authorized lets requests with the token through.
func authorized(token string, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !httpserve.HasToken(r, token) {
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
