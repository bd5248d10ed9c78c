package daemon

import (
	"slices"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/kvconn/kvconn/connector/server"
	"github.com/kvconn/kvconn/gpu"
	"github.com/kvconn/kvconn/internal/counters"
	"github.com/kvconn/kvconn/internal/daemon/contents"
	"github.com/kvconn/kvconn/internal/daemon/health"
	"github.com/kvconn/kvconn/internal/daemon/models"
	"github.com/kvconn/kvconn/internal/daemon/opening"
	"github.com/kvconn/kvconn/internal/observe"
	"github.com/kvconn/kvconn/internal/spans"
	"github.com/kvconn/kvconn/internal/tracelog"
	"github.com/kvconn/kvconn/leader"
	"github.com/kvconn/kvconn/store/disk"
	"github.com/kvconn/kvconn/store/host"
	"github.com/kvconn/kvconn/store/residency/publish"
	"github.com/kvconn/kvconn/worker"
)

// reading has everything that status, metrics and health show, taken at one time.
type reading struct {
	now     time.Time
	engines []EngineStatus
	ranks   []RankStatus
	models  []models.Totals   `metric:""`
	sum     models.Sums       // of the models
	tiers   []TierStatus      `metric:"tier_"`
	held    []contents.Model  `metric:"store_model_"`
	tenants []contents.Tenant `metric:"store_tenant_"` // empty without a tenants file
	store   disk.Stats        `metric:"store_"`
	host    host.Stats        `metric:"host_"`
	server  server.Stats      `metric:""`
	health  health.State
	publish *publish.Stats     `metric:"publish_"` // nil if no events are published
	trace   *tracelog.Stats    `metric:"trace_"`   // nil if no trace is recorded
	spans   *spans.Stats       `metric:"spans_"`   // nil if no traces are sent
	object  *ObjectStatus      `metric:"object_"`  // nil without a bucket
	opening *opening.Status    // nil once the store is open
	gpus    []gpu.DeviceStatus `metric:"gpu_"` // empty without engines on GPUs
	web     HTTPStatus         `metric:"http_"`
	ready   bool               `metric:"ready" help:"1 while engines can connect, 0 while they cannot."`
}

// read takes a reading. Until the store is open there is little to read.
func (d *daemon) read(now time.Time) *reading {
	r := &reading{now: now, ready: d.ready.Load(), opening: d.opening.Status(now), engines: []EngineStatus{}, ranks: []RankStatus{}, tiers: []TierStatus{}}
	if d.web != nil {
		r.web.Connections, r.web.Refused = d.web.Stats()
	}
	if l, ok := d.opts.Driver.(gpu.DeviceLister); ok {
		r.gpus = l.Devices()
	}
	if d.opened.Load() {
		r.store, r.host, r.server = d.store.Stats(), d.arena.Stats(), d.server.Stats()
		if d.publisher != nil {
			s := d.publisher.Stats()
			r.publish = &s
		}
		r.object = d.objectStatus(now)
		r.tenants = contents.Tenants(d.opts.Tenants.File().Names(), d.store.Tenant)
		r.tiers, r.held = statusOf(d.backend.levels), d.contents.Models()
		r.engines, r.ranks, r.models = d.backend.status(now)
		for i := range r.models {
			counters.Add(&r.sum, &r.models[i].Sum)
		}
	}
	r.trace, r.spans = d.recorded(), d.spans.Stats()
	r.health = d.health.State()
	r.health.Opening = r.opening
	return r
}

// Totals are the counters of all engines and ranks since the daemon's start, including those
// that have left: they never decrease.
type Totals struct {
	Requests  leader.Stats `json:"requests"`
	Transfers worker.Stats `json:"transfers"`
}

// Queues count work that waits or is under way.
type Queues struct {
	LoadsInFlight int `json:"loads_in_flight"`
	// QueuedReads wait for the disk, ReadInFlightBytes are being read.
	QueuedReads       int64 `json:"queued_reads"`
	ReadInFlightBytes int64 `json:"read_in_flight_bytes"`
	// ReadQueuedBytes were requested from the disk and are not delivered yet.
	ReadQueuedBytes int64 `json:"read_queued_bytes"`
	// ReadBudgetBytes bounds what is requested from the disk at one time.
	ReadBudgetBytes int64 `json:"read_budget_bytes"`
	// WriteInFlightBytes are accepted and not yet written.
	WriteInFlightBytes int64 `json:"write_in_flight_bytes"`
	// HostWaiting are loads that wait for memory of the host tier.
	HostWaiting int `json:"host_waiting"`
	Leases      int `json:"leases"`
}

func (r *reading) queues() Queues {
	return Queues{
		LoadsInFlight: r.sum.Worker.LoadsInFlight,
		QueuedReads:   r.store.QueuedReads, ReadInFlightBytes: r.store.ReadInFlightBytes, ReadBudgetBytes: r.store.ReadBudgetBytes,
		ReadQueuedBytes:    r.store.ReadSpeed.QueuedBytes,
		WriteInFlightBytes: r.store.WriteInFlightBytes, HostWaiting: r.host.Waiting, Leases: r.store.Leases,
	}
}

// Metrics describes the metrics of a daemon, sorted by name, but for those of Go and of the process.
func Metrics() []counters.Metric {
	list := append(counters.List[figures]("kvconn_"), observe.List()...)
	list = append(list, observe.BuildMetric("kvconn_"))
	slices.SortFunc(list, func(a, b counters.Metric) int { return strings.Compare(a.Name, b.Name) })
	return list
}

// figures are what /metrics shows: a reading and what follows from it. Labels are tiers, decisions,
// limits, faults, models and named tenants alone, and of models and tenants models.MaxModels at most: the number of series is
// bounded. /v1/status has the parts by engine and rank.
type figures struct {
	*reading  `metric:""`
	Healthy   bool            `metric:"healthy" help:"1 while /healthz is good, 0 while it is not."`
	Opening   float64         `metric:"opening_ratio" help:"How far the store's opening, or the rebuilding of its index, has come; 1 when there is none."`
	Engines   int             `metric:"engines" help:"Engine instances connected."`
	Ranks     int             `metric:"ranks" help:"Ranks connected."`
	LimitedBy map[string]bool `metric:"store_limited_by" label:"by" help:"1 for what keeps the store from growing now: its cap, or the free space of its file system."`
	Faults    map[string]bool `metric:"fault" label:"code" help:"1 while this is wrong with the daemon: the reasons of /healthz."`
}

func newCollector(read func(now time.Time) *reading) prometheus.Collector {
	return counters.NewCollector("kvconn_", func() *figures { return read(time.Now()).figures() })
}

func (r *reading) figures() *figures {
	f := &figures{
		reading: r, Healthy: r.health.OK, Opening: r.opening.Ratio(), Engines: len(r.engines), Ranks: len(r.ranks),
		LimitedBy: make(map[string]bool), Faults: make(map[string]bool),
	}
	for _, by := range []disk.LimitBy{disk.LimitedByCap, disk.LimitedByFree} {
		f.LimitedBy[string(by)] = r.store.LimitedBy == by
	}
	for _, code := range health.Codes() {
		f.Faults[code] = false
	}
	for i := range r.health.Reasons {
		f.Faults[r.health.Reasons[i].Code] = true
	}
	return f
}
