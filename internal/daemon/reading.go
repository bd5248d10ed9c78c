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
	r := &reading{now: now, ready: d.ready.Load(), opening: d.opening.Status(now), engines: []EngineStatus{}, ranks: []RankStatus{}}
	if d.web != nil {
		r.web.Connections, r.web.Refused = d.web.Stats()
	}
	if d.opened.Load() {
		r.store, r.host, r.server, r.publish = d.store.Stats(), d.arena.Stats(), d.server.Stats(), d.publishStatus()
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

// TierStatus is one tier that blocks are loaded from.
type TierStatus struct {
	// Tier is disk, host or object.
	Tier      string `json:"tier" label:"tier"`
	Records   int64  `json:"records" metric:"records" help:"Records in a tier."`
	UsedBytes int64  `json:"used_bytes" metric:"used_bytes" help:"Bytes that a tier occupies."`
	MaxBytes  int64  `json:"max_bytes" metric:"max_bytes" help:"Hard cap of kvconn_tier_used_bytes."`
	// ReachableBytes is what the tier can reach now: less than MaxBytes where the file system
	// has not that much free.
	ReachableBytes int64 `json:"reachable_bytes"`
	// Hits are records that were found and verified in the tier since the daemon's start.
	Hits uint64 `json:"hits" metric:"hit_records_total" help:"Records found and verified in a tier."`
	// LoadBytesPerS is how fast the tier was measured to be: of late, or where nothing was
	// read yet when the store was opened. 0 if it was not.
	LoadBytesPerS float64 `json:"load_bytes_per_s" metric:"load_bytes_per_second" help:"Measured speed of loads from a tier; 0 if it is not known."`
}

// tiers lists the tiers.
func (r *reading) tiers() []TierStatus {
	disk := TierStatus{
		Tier: "disk", Records: r.store.Records, UsedBytes: r.store.PhysicalBytes, MaxBytes: r.store.MaxBytes,
		ReachableBytes: r.store.MaxBytes, Hits: r.store.Reads,
	}
	if r.store.FileSystemBytes > 0 {
		disk.ReachableBytes = r.store.EffectiveMaxBytes
	}
	if disk.LoadBytesPerS = r.store.ReadSpeed.BytesPerS; disk.LoadBytesPerS == 0 && r.store.Calibration != nil {
		disk.LoadBytesPerS = r.store.Calibration.BytesPerS // nothing was read yet
	}
	host := TierStatus{
		Tier: "host", Records: int64(r.host.Records), UsedBytes: r.host.CleanBytes, MaxBytes: r.host.Bytes, ReachableBytes: r.host.Bytes, Hits: r.host.Hits,
	}
	for i := range r.engines { // copies are measured by ranks
		host.LoadBytesPerS = max(host.LoadBytesPerS, r.engines[i].Requests.LoadBytesPerS.Host)
	}
	return []TierStatus{host, disk}
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
