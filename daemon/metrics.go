package daemon

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/kvconn/kvconn/connector/server"
	"github.com/kvconn/kvconn/store"
)

// sample is one consistent reading of everything that metrics are made of.
type sample struct {
	store   store.Stats
	server  server.Stats
	sum     totals
	engines int
	ranks   int
}

// metric is one exported figure.
type metric struct {
	desc  *prometheus.Desc
	kind  prometheus.ValueType
	value func(*sample) float64
}

// collector exports the daemon's counters. None has labels, so that their number is
// fixed; /v1/status has the parts by engine and rank.
type collector struct {
	d       *daemon
	metrics []metric
}

var _ prometheus.Collector = (*collector)(nil)

func newCollector(d *daemon) *collector {
	c := &collector{d: d}
	gauge := func(name, help string, value func(*sample) float64) {
		c.metrics = append(c.metrics, metric{prometheus.NewDesc("kvconn_"+name, help, nil, nil), prometheus.GaugeValue, value})
	}
	counter := func(name, help string, value func(*sample) uint64) {
		c.metrics = append(c.metrics, metric{
			prometheus.NewDesc("kvconn_"+name, help, nil, nil), prometheus.CounterValue,
			func(s *sample) float64 { return float64(value(s)) },
		})
	}
	storeMetrics(gauge, counter)
	transferMetrics(gauge, counter)
	return c
}

type (
	addGauge   func(name, help string, value func(*sample) float64)
	addCounter func(name, help string, value func(*sample) uint64)
)

func storeMetrics(gauge addGauge, counter addCounter) {
	gauge("store_records", "Records on disk.", func(s *sample) float64 { return float64(s.store.Records) })
	gauge("store_physical_bytes", "Bytes the store occupies on disk, everything included.", func(s *sample) float64 { return float64(s.store.PhysicalBytes) })
	gauge("store_max_bytes", "Hard cap of kvconn_store_physical_bytes.", func(s *sample) float64 { return float64(s.store.MaxBytes) })
	gauge("store_leases", "Leases that pin records for loads.", func(s *sample) float64 { return float64(s.store.Leases) })
	gauge("store_read_in_flight_bytes", "Bytes being read from disk.", func(s *sample) float64 { return float64(s.store.ReadInFlightBytes) })
	gauge("store_write_in_flight_bytes", "Bytes accepted and not yet written.", func(s *sample) float64 { return float64(s.store.WriteInFlightBytes) })
	counter("store_lookup_blocks_total", "Blocks asked for.", func(s *sample) uint64 { return s.store.LookupBlocks })
	counter("store_hit_blocks_total", "Blocks asked for that were there.", func(s *sample) uint64 { return s.store.HitBlocks })
	counter("store_read_bytes_total", "Bytes read and verified.", func(s *sample) uint64 { return s.store.ReadBytes })
	counter("store_reads_total", "Records read and verified.", func(s *sample) uint64 { return s.store.Reads })
	counter("store_corrupt_records_total", "Records that failed verification and were dropped.", func(s *sample) uint64 { return s.store.Corrupt })
	counter("store_read_errors_total", "Reads that the system failed.", func(s *sample) uint64 { return s.store.ReadErrors })
	counter("store_read_timeouts_total", "Reads that did not end by their deadline.", func(s *sample) uint64 { return s.store.ReadTimeouts })
	counter("store_reads_gone_total", "Reads of records that were not there any more.", func(s *sample) uint64 { return s.store.ReadsGone })
	counter("store_reads_mismatched_total", "Reads of records made of another prefix.", func(s *sample) uint64 { return s.store.Mismatched })
	counter("store_barrier_errors_total", "Barriers that failed: what was written since is not durable.", func(s *sample) uint64 { return s.store.BarrierErrors })
	counter("store_writes_total", "Records written.", func(s *sample) uint64 { return s.store.Writes })
	counter("store_write_bytes_total", "Bytes written.", func(s *sample) uint64 { return s.store.WriteBytes })
	counter("store_writes_refused_total", "Writes refused because a budget was used up.", func(s *sample) uint64 { return s.store.WritesRefused })
	counter("store_write_errors_total", "Writes that the system failed.", func(s *sample) uint64 { return s.store.WriteErrors })
	counter("store_evicted_records_total", "Records evicted to stay below the cap.", func(s *sample) uint64 { return s.store.Evicted })
}

func transferMetrics(gauge addGauge, counter addCounter) {
	gauge("engines", "Engine instances connected.", func(s *sample) float64 { return float64(s.engines) })
	gauge("ranks", "Ranks connected.", func(s *sample) float64 { return float64(s.ranks) })
	gauge("requests", "Requests being followed.", func(s *sample) float64 { return float64(s.sum.Leader.Requests) })
	gauge("loads_in_flight", "Loads running.", func(s *sample) float64 { return float64(s.sum.Worker.LoadsInFlight) })
	counter("queried_tokens_total", "Tokens of requests at their first match.", func(s *sample) uint64 { return s.sum.Leader.QueriedTokens })
	counter("offered_tokens_total", "Tokens offered at the first match.", func(s *sample) uint64 { return s.sum.Leader.OfferedTokens })
	counter("load_tokens_total", "Tokens whose load was planned.", func(s *sample) uint64 { return s.sum.Leader.LoadTokens })
	counter("loads_total", "Loads ended, by rank.", func(s *sample) uint64 { return s.sum.Worker.Loads })
	counter("loads_failed_total", "Loads with a failed block at least, by rank.", func(s *sample) uint64 { return s.sum.Worker.LoadsFailed })
	counter("loaded_bytes_total", "Bytes that reached engine memory.", func(s *sample) uint64 { return s.sum.Worker.LoadedBytes })
	counter("loaded_blocks_total", "Blocks that reached engine memory.", func(s *sample) uint64 { return s.sum.Worker.LoadedBlocks })
	counter("failed_blocks_total", "Blocks of loads that failed.", func(s *sample) uint64 { return s.sum.Worker.FailedBlocks })
	counter("saved_blocks_total", "Blocks taken over by the store.", func(s *sample) uint64 { return s.sum.Worker.SavedBlocks })
	counter("saved_bytes_total", "Bytes taken over by the store.", func(s *sample) uint64 { return s.sum.Worker.SavedBytes })
	counter("dropped_blocks_total", "Blocks not saved for want of room or because a write failed.", func(s *sample) uint64 { return s.sum.Worker.DroppedBlocks })
	counter("protocol_errors_total", "Connections closed because the client broke the protocol.", func(s *sample) uint64 { return s.server.ProtocolErrors })
	counter("connections_refused_total", "Connections refused for their user or number.", func(s *sample) uint64 { return s.server.Refused })
}

// Describe sends every metric's description.
func (c *collector) Describe(ch chan<- *prometheus.Desc) {
	for i := range c.metrics {
		ch <- c.metrics[i].desc
	}
}

// Collect takes one reading and sends every metric.
func (c *collector) Collect(ch chan<- prometheus.Metric) {
	engines, ranks, sum := c.d.backend.status(time.Now())
	s := sample{store: c.d.store.Stats(), server: c.d.server.Stats(), sum: sum, engines: len(engines), ranks: len(ranks)}
	for i := range c.metrics {
		m := &c.metrics[i]
		ch <- prometheus.MustNewConstMetric(m.desc, m.kind, m.value(&s))
	}
}
