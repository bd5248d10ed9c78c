package daemon

import (
	"time"

	"github.com/kvconn/kvconn/connector/server"
	"github.com/kvconn/kvconn/internal/counters"
	"github.com/kvconn/kvconn/internal/daemon/health"
	"github.com/kvconn/kvconn/internal/daemon/opening"
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
	models  []modelTotals `metric:"model_"`
	sum     totals        `metric:""`
	tiers   []TierStatus  `metric:"tier_"`
	store   disk.Stats    `metric:"store_"`
	host    host.Stats    `metric:"host_"`
	server  server.Stats  `metric:""`
	health  health.State
	publish *publish.Stats  `metric:"publish_"` // nil if no events are published
	opening *opening.Status // nil once the store is open
	web     HTTPStatus      `metric:"http_"`
	ready   bool            `metric:"ready" help:"1 while engines can connect, 0 while they cannot."`
}

// read takes a reading. Until the store is open there is little to read.
func (d *daemon) read(now time.Time) *reading {
	r := &reading{now: now, ready: d.ready.Load(), opening: d.opening.Status(now), engines: []EngineStatus{}, ranks: []RankStatus{}, tiers: []TierStatus{}}
	if d.web != nil {
		r.web.Connections, r.web.Refused = d.web.Stats()
	}
	if d.opened.Load() {
		r.store, r.host, r.server = d.store.Stats(), d.arena.Stats(), d.server.Stats()
		if d.publisher != nil {
			s := d.publisher.Stats()
			r.publish = &s
		}
		r.tiers = statusOf(d.backend.levels)
		r.engines, r.ranks, r.models = d.backend.status(now)
		for i := range r.models {
			counters.Add(&r.sum, &r.models[i].sum)
		}
	}
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
