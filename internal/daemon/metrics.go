package daemon

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// metric is one exported figure.
type metric struct {
	desc  *prometheus.Desc
	kind  prometheus.ValueType
	value func(*reading) float64
}

// collector exports the daemon's counters. Labels are tiers, decisions, faults and models
// alone, the latter at most maxModels: the number of series is bounded. /v1/status has the
// parts by engine and rank.
type collector struct {
	read     func(now time.Time) *reading
	metrics  []metric
	labelled []labelledMetric
}

var _ prometheus.Collector = (*collector)(nil)

func newCollector(read func(now time.Time) *reading) *collector {
	c := &collector{read: read}
	gauge := func(name, help string, value func(*reading) float64) {
		c.metrics = append(c.metrics, metric{prometheus.NewDesc("kvconn_"+name, help, nil, nil), prometheus.GaugeValue, value})
	}
	counter := func(name, help string, value func(*reading) uint64) {
		c.metrics = append(c.metrics, metric{
			prometheus.NewDesc("kvconn_"+name, help, nil, nil), prometheus.CounterValue,
			func(s *reading) float64 { return float64(value(s)) },
		})
	}
	storeMetrics(gauge, counter)
	transferMetrics(gauge, counter)
	hostMetrics(gauge, counter)
	publishMetrics(gauge, counter)
	seconds := func(name, help string, value func(*reading) float64) {
		c.metrics = append(c.metrics, metric{prometheus.NewDesc("kvconn_"+name, help, nil, nil), prometheus.CounterValue, value})
	}
	seconds("load_seconds_total", "Time that loads took, added up over ranks.", func(s *reading) float64 { return s.sum.Worker.LoadSeconds })
	seconds("load_copy_seconds_total", "Time of that spent copying into engine memory.", func(s *reading) float64 { return s.sum.Worker.CopySeconds })
	c.labelled = labelledMetrics()
	return c
}

type (
	addGauge   func(name, help string, value func(*reading) float64)
	addCounter func(name, help string, value func(*reading) uint64)
)

func storeMetrics(gauge addGauge, counter addCounter) {
	gauge("store_records", "Records on disk.", func(s *reading) float64 { return float64(s.store.Records) })
	gauge("store_physical_bytes", "Bytes the store occupies on disk, everything included.", func(s *reading) float64 { return float64(s.store.PhysicalBytes) })
	gauge("store_max_bytes", "Hard cap of kvconn_store_physical_bytes.", func(s *reading) float64 { return float64(s.store.MaxBytes) })
	gauge("store_effective_max_bytes", "What the store can reach now: its cap, or less where free space leaves less.", func(s *reading) float64 { return float64(s.store.EffectiveMaxBytes) })
	gauge("store_min_free_bytes", "What the store leaves free of its file system.", func(s *reading) float64 { return float64(s.store.MinFreeBytes) })
	gauge("store_filesystem_free_bytes", "Free bytes of the store's file system.", func(s *reading) float64 { return float64(s.store.FreeBytes) })
	gauge("store_filesystem_bytes", "Size of the store's file system.", func(s *reading) float64 { return float64(s.store.FileSystemBytes) })
	gauge("store_leases", "Leases that pin records for loads.", func(s *reading) float64 { return float64(s.store.Leases) })
	gauge("store_queued_reads", "Records that wait to be read from disk.", func(s *reading) float64 { return float64(s.store.QueuedReads) })
	gauge("store_read_queued_bytes", "Bytes asked of the disk and not delivered.", func(s *reading) float64 { return float64(s.store.ReadSpeed.QueuedBytes) })
	gauge("store_read_latency_seconds", "Time from a record's first request to its last byte, of late.", func(s *reading) float64 { return s.store.ReadSpeed.LatencyS })
	gauge("store_read_budget_bytes", "Bytes that are asked of the disk at one time at most.", func(s *reading) float64 { return float64(s.store.ReadBudgetBytes) })
	gauge("store_free_slots", "Slots of segments that can be written to.", func(s *reading) float64 { return float64(s.store.FreeSlots) })
	gauge("store_read_in_flight_bytes", "Bytes being read from disk.", func(s *reading) float64 { return float64(s.store.ReadInFlightBytes) })
	gauge("store_write_in_flight_bytes", "Bytes accepted and not yet written.", func(s *reading) float64 { return float64(s.store.WriteInFlightBytes) })
	counter("store_lookup_blocks_total", "Blocks asked for.", func(s *reading) uint64 { return s.store.LookupBlocks })
	counter("store_hit_blocks_total", "Blocks asked for that were there.", func(s *reading) uint64 { return s.store.HitBlocks })
	counter("store_read_bytes_total", "Bytes read and verified.", func(s *reading) uint64 { return s.store.ReadBytes })
	counter("store_reads_total", "Records read and verified.", func(s *reading) uint64 { return s.store.Reads })
	counter("store_corrupt_records_total", "Records that failed verification and were dropped.", func(s *reading) uint64 { return s.store.Corrupt })
	counter("store_read_errors_total", "Reads that the system failed.", func(s *reading) uint64 { return s.store.ReadErrors })
	counter("store_read_timeouts_total", "Reads that did not end by their deadline.", func(s *reading) uint64 { return s.store.ReadTimeouts })
	counter("store_reads_gone_total", "Reads of records that were not there any more.", func(s *reading) uint64 { return s.store.ReadsGone })
	counter("store_reads_mismatched_total", "Reads of records made of another prefix.", func(s *reading) uint64 { return s.store.Mismatched })
	counter("store_barriers_total", "Barriers, those that failed included.", func(s *reading) uint64 { return s.store.Barriers })
	counter("store_scrub_bytes_total", "Bytes that the background scrub read and verified.", func(s *reading) uint64 { return s.store.ScrubBytes })
	counter("store_barrier_errors_total", "Barriers that failed: what was written since is not durable.", func(s *reading) uint64 { return s.store.BarrierErrors })
	counter("store_writes_total", "Records written.", func(s *reading) uint64 { return s.store.Writes })
	counter("store_write_bytes_total", "Bytes written.", func(s *reading) uint64 { return s.store.WriteBytes })
	counter("store_writes_refused_total", "Writes refused because a budget was used up.", func(s *reading) uint64 { return s.store.WritesRefused })
	counter("store_write_errors_total", "Writes that the system failed.", func(s *reading) uint64 { return s.store.WriteErrors })
	counter("store_evicted_records_total", "Records evicted to stay below the cap.", func(s *reading) uint64 { return s.store.Evicted })
}

func hostMetrics(gauge addGauge, counter addCounter) {
	gauge("host_pinned_bytes", "Bytes of the host tier that loads and saves under way hold.", func(s *reading) float64 { return float64(s.host.UsedBytes) })
	gauge("host_huge_page_bytes", "Bytes of the host tier in huge pages.", func(s *reading) float64 { return float64(s.host.HugeBytes) })
	gauge("host_waiting_loads", "Loads that wait for memory of the host tier.", func(s *reading) float64 { return float64(s.host.Waiting) })
	counter("host_missed_records_total", "Records asked of the host tier that were not there.", func(s *reading) uint64 { return s.host.Misses })
	counter("host_evicted_records_total", "Records that made room for others in the host tier.", func(s *reading) uint64 { return s.host.Evictions })
	counter("host_refused_saves_total", "Saves that found no memory in the host tier.", func(s *reading) uint64 { return s.host.RefusedSaves })
}

func transferMetrics(gauge addGauge, counter addCounter) {
	gauge("healthy", "1 while /healthz is good, 0 while it is not.", func(s *reading) float64 { return b2f(s.health.OK) })
	gauge("ready", "1 while engines can connect, 0 while they cannot.", func(s *reading) float64 { return b2f(s.ready) })
	gauge("opening_ratio", "How far the store's opening, or the rebuilding of its index, has come; 1 when there is none.", func(s *reading) float64 { return s.opening.ratio() })
	gauge("http_connections", "Connections of the HTTP interface.", func(s *reading) float64 { return float64(s.web.Connections) })
	counter("http_connections_refused_total", "Connections of the HTTP interface that were too many, of one client or of all.", func(s *reading) uint64 { return s.web.Refused })
	gauge("connections", "Connections of engines and their ranks.", func(s *reading) float64 { return float64(s.server.Connections) })
	gauge("engines", "Engine instances connected.", func(s *reading) float64 { return float64(len(s.engines)) })
	gauge("ranks", "Ranks connected.", func(s *reading) float64 { return float64(len(s.ranks)) })
	gauge("requests", "Requests being followed.", func(s *reading) float64 { return float64(s.sum.Leader.Requests) })
	gauge("loads_in_flight", "Loads running.", func(s *reading) float64 { return float64(s.sum.Worker.LoadsInFlight) })
	counter("matches_not_ready_total", "Matches answered with nothing because a rank cannot load.", func(s *reading) uint64 { return s.sum.Leader.NotReady })
	counter("queried_tokens_total", "Tokens of requests at their first match.", func(s *reading) uint64 { return s.sum.Leader.QueriedTokens })
	counter("offered_tokens_total", "Tokens offered at the first match.", func(s *reading) uint64 { return s.sum.Leader.OfferedTokens })
	counter("load_tokens_total", "Tokens whose load was planned.", func(s *reading) uint64 { return s.sum.Leader.LoadTokens })
	counter("loads_total", "Loads ended, by rank.", func(s *reading) uint64 { return s.sum.Worker.Loads })
	counter("loads_failed_total", "Loads with a failed block at least, by rank.", func(s *reading) uint64 { return s.sum.Worker.LoadsFailed })
	counter("save_planned_blocks_total", "Blocks whose save was planned.", func(s *reading) uint64 { return s.sum.Leader.SaveBlocks })
	counter("failed_requests_total", "Requests whose load failed on any rank: the engine recomputed.", func(s *reading) uint64 { return s.sum.Leader.FailedLoads })
	counter("loads_cancelled_total", "Loads that the engine took back, by rank.", func(s *reading) uint64 { return s.sum.Worker.LoadsCancelled })
	counter("loaded_bytes_total", "Bytes that reached engine memory.", func(s *reading) uint64 { return s.sum.Worker.LoadedBytes })
	counter("loaded_blocks_total", "Blocks that reached engine memory.", func(s *reading) uint64 { return s.sum.Worker.LoadedBlocks })
	counter("failed_blocks_total", "Blocks of loads that failed.", func(s *reading) uint64 { return s.sum.Worker.FailedBlocks })
	counter("saved_blocks_total", "Blocks taken over by the store.", func(s *reading) uint64 { return s.sum.Worker.SavedBlocks })
	counter("saved_bytes_total", "Bytes taken over by the store.", func(s *reading) uint64 { return s.sum.Worker.SavedBytes })
	counter("dropped_blocks_total", "Blocks not saved for want of room or because a write failed.", func(s *reading) uint64 { return s.sum.Worker.DroppedBlocks })
	counter("protocol_errors_total", "Connections closed because the client broke the protocol.", func(s *reading) uint64 { return s.server.ProtocolErrors })
	counter("connections_refused_total", "Connections refused for their user or number.", func(s *reading) uint64 { return s.server.Refused })
}

// Describe sends every metric's description.
func (c *collector) Describe(ch chan<- *prometheus.Desc) {
	for i := range c.metrics {
		ch <- c.metrics[i].desc
	}
	for i := range c.labelled {
		ch <- c.labelled[i].desc
	}
}

// Collect takes one reading and sends every metric.
func (c *collector) Collect(ch chan<- prometheus.Metric) {
	r := c.read(time.Now())
	for i := range c.metrics {
		m := &c.metrics[i]
		ch <- prometheus.MustNewConstMetric(m.desc, m.kind, m.value(r))
	}
	for i := range c.labelled {
		m := &c.labelled[i]
		m.values(r, func(label string, v float64) { ch <- prometheus.MustNewConstMetric(m.desc, m.kind, v, label) })
	}
}
