package daemon

import (
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/kvconn/kvconn/connector/server"
	"github.com/kvconn/kvconn/gpu"
	"github.com/kvconn/kvconn/internal/daemon/contents"
	"github.com/kvconn/kvconn/internal/daemon/health"
	"github.com/kvconn/kvconn/internal/daemon/opening"
	"github.com/kvconn/kvconn/internal/daemon/web"
	"github.com/kvconn/kvconn/internal/history"
	"github.com/kvconn/kvconn/internal/httpserve"
	"github.com/kvconn/kvconn/internal/observe"
	"github.com/kvconn/kvconn/internal/page"
	"github.com/kvconn/kvconn/internal/spans"
	"github.com/kvconn/kvconn/internal/tracelog"
	"github.com/kvconn/kvconn/internal/version"
	"github.com/kvconn/kvconn/store/disk"
	"github.com/kvconn/kvconn/store/host"
	"github.com/kvconn/kvconn/store/residency/publish"
)

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
	// Models are what the store holds, by model: the largest, and the rest as one. It is counted every half a minute or so.
	Models []contents.Model `json:"models"`
	// Opening is nil once the store is open.
	Opening *opening.Status `json:"opening,omitempty"`
	Host    host.Stats      `json:"host"`
	Server  server.Stats    `json:"server"`
	HTTP    HTTPStatus      `json:"http"`
	// GPUs are those that engines have registered memory on.
	GPUs []gpu.DeviceStatus `json:"gpus,omitempty"`
	// Publish is nil if no events are published.
	Publish *publish.Stats `json:"publish,omitempty"`
	// Trace is nil if no trace is recorded.
	Trace *tracelog.Stats `json:"trace,omitempty"`
	// Spans is nil if no traces are sent.
	Spans *spans.Stats `json:"spans,omitempty"`
	// Object is nil without a bucket.
	Object *ObjectStatus `json:"object,omitempty"`
}

// HTTPStatus counts the connections of the HTTP interface.
type HTTPStatus struct {
	// Connections are open; Refused counts those beyond the bound.
	Connections int    `json:"connections" metric:"connections" help:"Connections of the HTTP interface."`
	Refused     uint64 `json:"refused" metric:"connections_refused_total" help:"Connections of the HTTP interface that were too many, of one client or of all."`
}

func (d *daemon) routes() []web.Route {
	registry := prometheus.NewRegistry()
	registry.MustRegister(newCollector(d.read), d.times, observe.BuildInfo("kvconn_"), collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return []web.Route{
		{Pattern: "GET /healthz", Handler: http.HandlerFunc(d.serveHealth), Open: true},
		{Pattern: "GET /readyz", Handler: http.HandlerFunc(d.serveReady), Open: true},
		{Pattern: "GET /v1/status", Handler: http.HandlerFunc(d.serveStatus)},
		{Pattern: "GET /v1/history", Handler: d.history},
		{Pattern: page.Path, Handler: page.Daemon(), Open: true},
		{Pattern: page.AssetsPath, Handler: page.Assets(), Open: true},
		{Pattern: "GET /v1/residency", Handler: d.onceOpen(func(w http.ResponseWriter, r *http.Request) { d.residency.ServeHTTP(w, r) })},
		{Pattern: "GET /v1/namespaces", Handler: d.onceOpen(func(w http.ResponseWriter, r *http.Request) { d.admin.ServeList(w, r) })},
		{Pattern: "POST /v1/explain", Handler: d.onceOpen(func(w http.ResponseWriter, r *http.Request) { d.explain.ServeHTTP(w, r) })},
		{Pattern: "DELETE /v1/namespaces/{digest}", Handler: d.onceOpen(func(w http.ResponseWriter, r *http.Request) { d.admin.ServeRemoval(w, r) }), Changes: true},
		{Pattern: "POST /v1/prompts/remove", Handler: d.onceOpen(func(w http.ResponseWriter, r *http.Request) { d.admin.ServePromptRemoval(w, r) }), Changes: true},
		{Pattern: "GET /v1/pins", Handler: d.onceOpen(func(w http.ResponseWriter, r *http.Request) { d.admin.ServePins(w, r) })},
		{Pattern: "POST /v1/pins", Handler: d.onceOpen(func(w http.ResponseWriter, r *http.Request) { d.admin.ServePin(w, r) }), Changes: true},
		{Pattern: "DELETE /v1/pins/{id}", Handler: d.onceOpen(func(w http.ResponseWriter, r *http.Request) { d.admin.ServeUnpin(w, r) }), Changes: true},
		{Pattern: "POST /v1/warm", Handler: d.onceOpen(func(w http.ResponseWriter, r *http.Request) { d.warm.ServeHTTP(w, r) }), Changes: true},
		{Pattern: "GET /v1/archive", Handler: d.onceOpen(func(w http.ResponseWriter, r *http.Request) { d.admin.ServeExport(w, r) }), Payloads: true},
		{Pattern: "POST /v1/archive", Handler: d.onceOpen(func(w http.ResponseWriter, r *http.Request) { d.admin.ServeImport(w, r) }), Payloads: true},
		{Pattern: "GET /v1/tenants", Handler: d.onceOpen(func(w http.ResponseWriter, r *http.Request) { d.admin.ServeTenants(w, r) })},
		{Pattern: "DELETE /v1/tenants/{digest}", Handler: d.onceOpen(func(w http.ResponseWriter, r *http.Request) { d.admin.ServeTenantRemoval(w, r) }), Changes: true},
		{Pattern: "GET /metrics", Handler: promhttp.HandlerFor(registry, promhttp.HandlerOpts{EnableOpenMetrics: true, MaxRequestsInFlight: scrapesAtOnce})},
		{Pattern: "GET /openapi.yaml", Handler: web.Description(), Open: true},
	}
}

// scrapesAtOnce bounds the work of scrapes.
const scrapesAtOnce = 8

func (d *daemon) handler() http.Handler { return web.Handler(d.routes(), d.opts.HTTPToken) }

// onceOpen serves what needs the store, once that is open.
func (d *daemon) onceOpen(h http.HandlerFunc) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !d.opened.Load() {
			w.Header().Set("Retry-After", "1")
			http.Error(w, "the store is being opened", http.StatusServiceUnavailable)
			return
		}
		h(w, r)
	})
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

func (d *daemon) status(now time.Time) Status {
	r := d.read(now)
	return Status{
		Version: version.Server(), Epoch: d.info.Epoch, PID: d.info.PID, UptimeS: now.Sub(d.started).Seconds(), Socket: d.info.Socket,
		Health: r.health, Engines: r.engines, Ranks: r.ranks, Tiers: r.tiers, GPUs: r.gpus, Queues: r.queues(),
		Totals: Totals{Requests: r.sum.Leader, Transfers: r.sum.Worker}, Store: r.store, Models: r.held, Host: r.host, Server: r.server, Publish: r.publish, Object: r.object, Trace: r.trace, Spans: r.spans,
		Opening: r.opening, HTTP: r.web,
	}
}

// newHistory keeps what the page draws.
func newHistory(d *daemon) *history.Recorder {
	return history.New(func(v []float64) {
		r := d.read(time.Now())
		l, w := &r.sum.Leader, &r.sum.Worker
		v[0], v[1], v[2] = float64(l.QueriedTokens), float64(l.OfferedTokens), float64(l.EngineTokens)
		v[3], v[4], v[5] = float64(w.LoadedBytes), float64(w.SavedBytes), float64(r.store.ReadBytes)
		v[6] = float64(w.LoadsInFlight)
	}, "queried_tokens_total", "offered_tokens_total", "engine_tokens_total", "loaded_bytes_total", "saved_bytes_total", "disk_read_bytes_total",
		"loads_in_flight")
}
