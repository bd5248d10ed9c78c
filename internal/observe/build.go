package observe

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/kvconn/kvconn/internal/counters"
	"github.com/kvconn/kvconn/internal/version"
)

const buildHelp = "Always 1. The labels say what this program was built from."

// BuildInfo is the metric that says which build runs, as PREFIXbuild_info.
func BuildInfo(prefix string) prometheus.Collector {
	b := version.Describe(false) // GPU support is no label
	return prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: prefix + "build_info", Help: buildHelp,
		ConstLabels: prometheus.Labels{"version": b.Version, "commit": b.Commit, "goversion": b.Go},
	}, func() float64 { return 1 })
}

// BuildMetric describes [BuildInfo].
func BuildMetric(prefix string) counters.Metric {
	return counters.Metric{Name: prefix + "build_info", Help: buildHelp, Kind: "gauge", Labels: []string{"version", "commit", "goversion"}}
}
