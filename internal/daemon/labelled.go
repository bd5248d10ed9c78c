package daemon

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/kvconn/kvconn/store/disk"
)

// labelledMetric is a figure with one label of bounded values. values calls add for each.
type labelledMetric struct {
	desc   *prometheus.Desc
	kind   prometheus.ValueType
	values func(r *reading, add func(label string, v float64))
}

func labelledMetrics() []labelledMetric {
	return append(append(tierMetrics(), modelMetrics()...), faultMetric(), decisionMetric(), limitMetric())
}

func newLabelled(name, help, label string, kind prometheus.ValueType, values func(*reading, func(string, float64))) labelledMetric {
	return labelledMetric{prometheus.NewDesc("kvconn_"+name, help, []string{label}, nil), kind, values}
}

func tierMetrics() []labelledMetric {
	tier := func(name, help string, kind prometheus.ValueType, value func(*TierStatus) float64) labelledMetric {
		return newLabelled("tier_"+name, help, "tier", kind, func(r *reading, add func(string, float64)) {
			for _, t := range r.tiers() {
				add(t.Tier, value(&t))
			}
		})
	}
	return []labelledMetric{
		tier("records", "Records in a tier.", prometheus.GaugeValue, func(t *TierStatus) float64 { return float64(t.Records) }),
		tier("used_bytes", "Bytes that a tier occupies.", prometheus.GaugeValue, func(t *TierStatus) float64 { return float64(t.UsedBytes) }),
		tier("max_bytes", "Hard cap of kvconn_tier_used_bytes.", prometheus.GaugeValue, func(t *TierStatus) float64 { return float64(t.MaxBytes) }),
		tier("hit_records_total", "Records found and verified in a tier.", prometheus.CounterValue, func(t *TierStatus) float64 { return float64(t.Hits) }),
		tier("load_bytes_per_second", "Measured speed of loads from a tier; 0 if it is not known.", prometheus.GaugeValue, func(t *TierStatus) float64 { return t.LoadBytesPerS }),
	}
}

func modelMetrics() []labelledMetric {
	model := func(name, help string, kind prometheus.ValueType, value func(*modelTotals) float64) labelledMetric {
		return newLabelled("model_"+name, help, "model", kind, func(r *reading, add func(string, float64)) {
			for i := range r.models {
				add(r.models[i].model, value(&r.models[i]))
			}
		})
	}
	counter := func(name, help string, value func(*modelTotals) uint64) labelledMetric {
		return model(name, help, prometheus.CounterValue, func(t *modelTotals) float64 { return float64(value(t)) })
	}
	return []labelledMetric{
		model("engines", "Engine instances connected, by model.", prometheus.GaugeValue, func(t *modelTotals) float64 { return float64(t.engines) }),
		model("ranks", "Ranks connected, by model.", prometheus.GaugeValue, func(t *modelTotals) float64 { return float64(t.ranks) }),
		model("prefill_tokens_per_second", "Prefill speed that decisions are made with, of the fastest engine; 0 if it is not known.", prometheus.GaugeValue,
			func(t *modelTotals) float64 { return t.prefillTokensPerS }),
		model("trimming_engines", "Engines whose offers are cut for the speed of the disk.", prometheus.GaugeValue,
			func(t *modelTotals) float64 { return float64(t.trimming) }),
		counter("queried_tokens_total", "Tokens of requests at their first match, by model.", func(t *modelTotals) uint64 { return t.Leader.QueriedTokens }),
		counter("offered_tokens_total", "Tokens offered at the first match, by model.", func(t *modelTotals) uint64 { return t.Leader.OfferedTokens }),
		counter("loaded_bytes_total", "Bytes that reached engine memory, by model.", func(t *modelTotals) uint64 { return t.Worker.LoadedBytes }),
		counter("saved_bytes_total", "Bytes taken over by the store, by model.", func(t *modelTotals) uint64 { return t.Worker.SavedBytes }),
		counter("failed_blocks_total", "Blocks of loads that failed, by model.", func(t *modelTotals) uint64 { return t.Worker.FailedBlocks }),
		counter("dropped_blocks_total", "Blocks not saved, by model.", func(t *modelTotals) uint64 { return t.Worker.DroppedBlocks }),
	}
}

// decisionMetric counts what was decided between loading and prefill.
func decisionMetric() labelledMetric {
	return newLabelled("decisions_total", "Requests with a hit: offered in full, trimmed, or refused because loading would take longer than prefill.",
		"decision", prometheus.CounterValue, func(r *reading, add func(string, float64)) {
			l := &r.sum.Leader
			add("full", float64(l.DecisionsFull))
			add("trimmed", float64(l.DecisionsTrimmed))
			add("refused", float64(l.DecisionsRefused))
		})
}

// limitMetric says what keeps the store from growing beyond what it may reach.
func limitMetric() labelledMetric {
	return newLabelled("store_limited_by", "1 for what keeps the store from growing now: its cap, or the free space of its file system.", "by", prometheus.GaugeValue,
		func(r *reading, add func(string, float64)) {
			for _, by := range []disk.LimitBy{disk.LimitedByCap, disk.LimitedByFree} {
				add(string(by), b2f(r.store.LimitedBy == by))
			}
		})
}

// faultMetric has a series per thing that can be wrong.
func faultMetric() labelledMetric {
	return newLabelled("fault", "1 while this is wrong with the daemon: the reasons of /healthz.", "code", prometheus.GaugeValue,
		func(r *reading, add func(string, float64)) {
			for _, code := range healthCodes() {
				wrong := false
				for i := range r.health.Reasons {
					wrong = wrong || r.health.Reasons[i].Code == code
				}
				add(code, b2f(wrong))
			}
		})
}

func b2f(b bool) float64 {
	if b {
		return 1
	}
	return 0
}
