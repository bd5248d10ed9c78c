package daemon

import (
	_ "embed" // the description
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/pprof"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/kvconn/kvconn/connector/server"
	"github.com/kvconn/kvconn/gpu"
	"github.com/kvconn/kvconn/internal/daemon/health"
	"github.com/kvconn/kvconn/internal/daemon/httplimit"
	"github.com/kvconn/kvconn/internal/daemon/opening"
	"github.com/kvconn/kvconn/internal/httpserve"
	"github.com/kvconn/kvconn/internal/observe"
	"github.com/kvconn/kvconn/internal/version"
	"github.com/kvconn/kvconn/store/disk"
	"github.com/kvconn/kvconn/store/host"
	"github.com/kvconn/kvconn/store/residency/publish"
)

// openAPI describes the HTTP interface (OpenAPI 3.1). It is constant.
//
//go:embed openapi.yaml
var openAPI string

// Status is the answer of /v1/status.
type Status struct {
	Version string         `json:"version"`
	Epoch   string         `json:"epoch"`
	PID     int            `json:"pid"`
	UptimeS float64        `json:"uptime_s"`
	Socket  string         `json:"socket"`
	Health  health.State   `json:"health"`
	Engines []EngineStatus `json:"engines"`
	Ranks   []RankStatus   `json:"ranks"`
	Tiers   []TierStatus   `json:"tiers"`
	Queues  Queues         `json:"queues"`
	Totals  Totals         `json:"totals"`
	Store   disk.Stats     `json:"store"`
	// Opening is nil once the store is open.
	Opening *opening.Status `json:"opening,omitempty"`
	Host    host.Stats      `json:"host"`
	Server  server.Stats    `json:"server"`
	HTTP    HTTPStatus      `json:"http"`
	// GPUs are those that engines have registered memory on.
	GPUs []gpu.DeviceStatus `json:"gpus,omitempty"`
	// Publish is nil if no events are published.
	Publish *publish.Stats `json:"publish,omitempty"`
	// Object is nil without a bucket.
	Object *ObjectStatus `json:"object,omitempty"`
}

// route is one pattern of the HTTP interface. openapi.yaml describes each.
type route struct {
	pattern string
	handler http.Handler
	// open needs no token.
	open bool
}

// HTTPStatus counts the connections of the HTTP interface.
type HTTPStatus struct {
	// Connections are open; Refused counts those beyond the bound.
	Connections int    `json:"connections" metric:"connections" help:"Connections of the HTTP interface."`
	Refused     uint64 `json:"refused" metric:"connections_refused_total" help:"Connections of the HTTP interface that were too many, of one client or of all."`
}

func (d *daemon) routes() []route {
	registry := prometheus.NewRegistry()
	registry.MustRegister(newCollector(d.read), d.times, observe.BuildInfo("kvconn_"), collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return []route{
		{"GET /healthz", http.HandlerFunc(d.serveHealth), true},
		{"GET /readyz", http.HandlerFunc(d.serveReady), true},
		{"GET /v1/status", http.HandlerFunc(d.serveStatus), false},
		{"GET /v1/residency", http.HandlerFunc(d.serveResidency), false},
		{"GET /metrics", promhttp.HandlerFor(registry, promhttp.HandlerOpts{EnableOpenMetrics: true, MaxRequestsInFlight: scrapesAtOnce}), false},
		{"GET /openapi.yaml", http.HandlerFunc(serveOpenAPI), true},
	}
}

// scrapesAtOnce bounds the work of scrapes.
const scrapesAtOnce = 8

func (d *daemon) handler() http.Handler {
	mux := http.NewServeMux()
	for _, r := range d.routes() {
		if r.open || d.opts.HTTPToken == "" {
			mux.Handle(r.pattern, r.handler)
		} else {
			mux.Handle(r.pattern, authorized(d.opts.HTTPToken, r.handler))
		}
	}
	return httplimit.Timed(mux)
}

// challenge distinguishes a daemon that wants its token from a router.
const challenge = `Bearer realm="kvconnd serve"`

// authorized lets requests with the token through.
func authorized(token string, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !httpserve.HasToken(r, token) {
			w.Header().Set("WWW-Authenticate", challenge)
			http.Error(w, "the bearer token is missing or wrong", http.StatusUnauthorized)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// serveResidency serves the residency stream once the store is open.
func (d *daemon) serveResidency(w http.ResponseWriter, r *http.Request) {
	if !d.opened.Load() {
		w.Header().Set("Retry-After", "1")
		http.Error(w, "the store is being opened", http.StatusServiceUnavailable)
		return
	}
	d.residency.ServeHTTP(w, r)
}

// serveHealth answers 503 while the daemon does not do its work. The opening of a store is not
// a fault: a restart would not help.
func (d *daemon) serveHealth(w http.ResponseWriter, _ *http.Request) {
	h := d.health.State()
	h.Opening = d.opening.Status(time.Now())
	code := http.StatusOK
	if !h.OK {
		code = http.StatusServiceUnavailable
	}
	httpserve.WriteJSON(w, code, h, "  ")
}

// Readiness is the answer of /readyz.
type Readiness struct {
	Ready bool `json:"ready"`
	// Opening is nil once the store is open.
	Opening *opening.Status `json:"opening,omitempty"`
}

// serveReady answers 503 until engines can connect, and again once the daemon stops.
func (d *daemon) serveReady(w http.ResponseWriter, _ *http.Request) {
	r := Readiness{Ready: d.ready.Load(), Opening: d.opening.Status(time.Now())}
	code := http.StatusOK
	if !r.Ready {
		code = http.StatusServiceUnavailable
	}
	httpserve.WriteJSON(w, code, r, "  ")
}

func (d *daemon) serveStatus(w http.ResponseWriter, _ *http.Request) {
	httpserve.WriteJSON(w, http.StatusOK, d.status(time.Now()), "  ")
}

func serveOpenAPI(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "application/yaml")
	_, _ = w.Write([]byte(openAPI)) // the client has gone
}

func (d *daemon) status(now time.Time) Status {
	r := d.read(now)
	return Status{
		Version: version.Server(), Epoch: d.info.Epoch, PID: d.info.PID, UptimeS: now.Sub(d.started).Seconds(), Socket: d.info.Socket,
		Health: r.health, Engines: r.engines, Ranks: r.ranks, Tiers: r.tiers, GPUs: r.gpus, Queues: r.queues(),
		Totals: Totals{Requests: r.sum.Leader, Transfers: r.sum.Worker}, Store: r.store, Host: r.host, Server: r.server, Publish: r.publish, Object: r.object,
		Opening: r.opening, HTTP: r.web,
	}
}

// pprofConns bounds the connections for profiles.
const pprofConns = 8

// listenPprof listens for requests for profiles, on loopback only: a client can slow the daemon
// down and see what it does.
func listenPprof(addr string) (net.Listener, error) {
	l, err := net.Listen("tcp", addr)
	if err != nil {
		return nil, fmt.Errorf("listen for profiles on %s: %w", addr, err)
	}
	if tcp, ok := l.Addr().(*net.TCPAddr); !ok || !tcp.IP.IsLoopback() {
		return nil, errors.Join(fmt.Errorf("pprof %q is not loopback: give an address such as 127.0.0.1:6060", addr), l.Close())
	}
	return l, nil
}

func pprofHandler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /debug/pprof/", pprof.Index)
	mux.HandleFunc("GET /debug/pprof/cmdline", pprof.Cmdline)
	mux.HandleFunc("GET /debug/pprof/profile", pprof.Profile)
	mux.HandleFunc("GET /debug/pprof/symbol", pprof.Symbol)
	mux.HandleFunc("POST /debug/pprof/symbol", pprof.Symbol)
	mux.HandleFunc("GET /debug/pprof/trace", pprof.Trace)
	return mux
}
