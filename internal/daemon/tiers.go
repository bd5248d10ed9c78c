package daemon

import (
	"github.com/kvconn/kvconn/store"
)

// TierStatus is one level that blocks are loaded from.
type TierStatus struct {
	// Tier is the level's name: host, disk or object.
	Tier      string `json:"tier" label:"tier"`
	Records   int64  `json:"records" metric:"records" help:"Records in a tier."`
	UsedBytes int64  `json:"used_bytes" metric:"used_bytes" help:"Bytes that a tier occupies."`
	MaxBytes  int64  `json:"max_bytes" metric:"max_bytes" help:"Hard cap of kvconn_tier_used_bytes."`
	// ReachableBytes is what the tier can reach now: less than MaxBytes where a file system has
	// less free.
	ReachableBytes int64 `json:"reachable_bytes"`
	// Hits are records that were found and verified in the tier since the daemon's start.
	Hits uint64 `json:"hits" metric:"hit_records_total" help:"Records found and verified in a tier."`
	// LoadBytesPerS is how fast the tier was lately measured to be, 0 if it was not.
	LoadBytesPerS float64 `json:"load_bytes_per_s" metric:"load_bytes_per_second" help:"Measured speed of loads from a tier; 0 if it is not known."`
	// LoadLatencyS is how long a record took of late, from its first request to its last byte, in seconds; 0 if it was
	// not measured.
	LoadLatencyS float64 `json:"load_latency_s"`
}

func statusOf(levels []store.Level) []TierStatus {
	list := make([]TierStatus, len(levels))
	for i, level := range levels {
		u, v := level.Usage(), level.Speed()
		list[i] = TierStatus{
			Tier: level.Name(), Records: u.Records, UsedBytes: u.UsedBytes, MaxBytes: u.MaxBytes, ReachableBytes: u.ReachableBytes,
			Hits: u.Hits, LoadBytesPerS: v.BytesPerS, LoadLatencyS: v.LatencyS,
		}
	}
	return list
}

// probe measures all levels. The speed of copies cannot be measured without an engine: the last
// measurement fades, until a load brings a new one. It takes no lock of the backend, under which
// leaders are asked for their counters.
func (b *backend) probe() {
	b.cache.FadeSpeed()
	for _, p := range b.probers {
		p.Begin()
	}
}
