package daemon

import (
	"encoding/json"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/kvconn/kvconn/connector/server"
	"github.com/kvconn/kvconn/store"
)

// Status is the answer of /v1/status.
type Status struct {
	Version string         `json:"version"`
	Epoch   string         `json:"epoch"`
	PID     int            `json:"pid"`
	UptimeS float64        `json:"uptime_s"`
	Socket  string         `json:"socket"`
	Engines []EngineStatus `json:"engines"`
	Ranks   []RankStatus   `json:"ranks"`
	Store   store.Stats    `json:"store"`
	Server  server.Stats   `json:"server"`
}

// handler serves /healthz, /metrics and /v1/status.
func (d *daemon) handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		_, _ = w.Write([]byte("ok\n"))
	})
	mux.HandleFunc("GET /v1/status", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		enc := json.NewEncoder(w)
		enc.SetIndent("", "  ")
		_ = enc.Encode(d.status()) // the client has gone
	})
	registry := prometheus.NewRegistry()
	registry.MustRegister(newCollector(d), collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	mux.Handle("GET /metrics", promhttp.HandlerFor(registry, promhttp.HandlerOpts{}))
	return mux
}

func (d *daemon) status() Status {
	now := time.Now()
	engines, ranks, _ := d.backend.status(now)
	return Status{
		Version: Version, Epoch: d.info.Epoch, PID: d.info.PID, UptimeS: now.Sub(d.started).Seconds(), Socket: d.info.Socket,
		Engines: engines, Ranks: ranks, Store: d.store.Stats(), Server: d.server.Stats(),
	}
}
