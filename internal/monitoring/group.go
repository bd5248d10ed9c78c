// Package monitoring has what people watch kvconn with: the groups of the metrics, two Grafana dashboards, alerts and
// their runbook. The files in deploy/monitoring, docs/runbook.md and the tables of docs/metrics.md are made from it.
package monitoring

//go:generate go run ./generate ../..

import (
	"slices"
	"strings"

	"github.com/kvconn/kvconn/internal/counters"
)

// Group is the metrics that answer one question, and the panels that show them.
type Group struct {
	Title, Question string
	// Names and Prefixes say which metrics belong to it. A name wins over a prefix of another group.
	Names, Prefixes []string
	Panels          []Panel
}

// Panel is one chart of a dashboard.
type Panel struct {
	Title, Description string
	Unit               Unit
	Queries            []Query
	// Stacked adds the series up.
	Stacked bool
	// Needs names what the daemon must have for the panel to have data, such as a bucket; "" is nothing.
	Needs string
}

// Query is one expression, with a range of [Window] where it has one.
type Query struct {
	Expr, Legend string
}

// Window is the range of the expressions here. In dashboards Grafana's own stands in its place.
const Window = "5m"

// Unit is a unit of Grafana's.
type Unit string

// Units of panels.
const (
	Seconds        Unit = "s"
	Bytes          Unit = "bytes"
	BytesPerSecond Unit = "Bps"
	PerSecond      Unit = "ops"
	Ratio          Unit = "percentunit"
	Count          Unit = "short"
	Dollars        Unit = "currencyUSD"
)

// quantiles are the queries of a histogram's median and 99th percentile, by labels.
func quantiles(histogram, by, legend string) []Query {
	labels := "le"
	if by != "" {
		labels = "le, " + by
	}
	q := func(quantile, name string) Query {
		return Query{"histogram_quantile(" + quantile + ", sum by (" + labels + ") (rate(" + histogram + "_bucket[" + Window + "])))", strings.TrimSpace(name + " " + legend)}
	}
	return []Query{q("0.5", "p50"), q("0.99", "p99")}
}

// GroupOf returns the place of a metric's group, or -1.
func GroupOf(groups []Group, name string) int {
	for i := range groups {
		if slices.Contains(groups[i].Names, name) {
			return i
		}
	}
	for i := range groups {
		if slices.ContainsFunc(groups[i].Prefixes, func(p string) bool { return strings.HasPrefix(name, p) }) {
			return i
		}
	}
	return -1
}

// of returns the metrics of each group.
func of(groups []Group, all []counters.Metric) [][]counters.Metric {
	out := make([][]counters.Metric, len(groups))
	for _, m := range all {
		if i := GroupOf(groups, m.Name); i >= 0 {
			out[i] = append(out[i], m)
		}
	}
	return out
}
