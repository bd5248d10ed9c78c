package daemon

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/kvconn/kvconn/internal/counters"
	"github.com/kvconn/kvconn/internal/daemon/health"
	"github.com/kvconn/kvconn/store/disk"
)

// figures are what /metrics shows: a reading and what follows from it. Labels are tiers, decisions,
// limits, faults and models alone, and of models maxModels at most: the number of series is
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

// newCollector exports the readings that read takes.
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
