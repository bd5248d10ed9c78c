package monitoring

import (
	"testing"
	"time"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/promql/parser"

	kvconn "github.com/kvconn/kvconn/internal/monitoring"
)

// history is a series of the last 26 hours: its value by seconds before now.
type history struct {
	series string
	value  func(ageS float64) float64
}

func constant(v float64) func(float64) float64 { return func(float64) float64 { return v } }

// counter grows by that much a second.
func counter(perS float64) func(float64) float64 {
	return func(ageS float64) float64 { return perS * (100_000 - ageS) }
}

// stopped is a counter that has not grown for half a day.
func stopped(perS float64) func(float64) float64 {
	return func(ageS float64) float64 { return perS * (100_000 - max(ageS, 43_200)) }
}

// trouble is what makes each alert fire.
func trouble() map[string][]history {
	counts := func(bad, good string) []history {
		return []history{{bad, counter(1)}, {good, counter(5)}}
	}
	none := func(series ...string) (list []history) {
		for _, s := range series {
			list = append(list, history{s, constant(0)})
		}
		return list
	}
	return map[string][]history{
		"KvconnDown":           none(`up{job="kvconn",instance="a"}`),
		"KvconnUnhealthy":      none(`kvconn_healthy{instance="a"}`),
		"KvconnNotReady":       none(`kvconn_ready{instance="a"}`),
		"KvconnCorruptRecords": {{`kvconn_store_corrupt_records_total{instance="a"}`, counter(0.001)}},
		"KvconnDiskErrors": append(none(`kvconn_store_read_errors_total{instance="a"}`, `kvconn_store_read_timeouts_total{instance="a"}`, `kvconn_store_barrier_errors_total{instance="a"}`),
			history{`kvconn_store_write_errors_total{instance="a"}`, counter(1)}),
		"KvconnFilesystemLow":       {{`kvconn_store_filesystem_free_bytes{instance="a"}`, constant(1)}, {`kvconn_store_min_free_bytes{instance="a"}`, constant(2)}},
		"KvconnSavesDropped":        counts(`kvconn_dropped_blocks_total{instance="a",model="m"}`, `kvconn_saved_blocks_total{instance="a",model="m"}`),
		"KvconnLoadsFailing":        counts(`kvconn_loads_failed_total{instance="a",model="m"}`, `kvconn_loads_total{instance="a",model="m"}`),
		"KvconnHitRateCollapsed":    {{`kvconn_offered_tokens_total{instance="a"}`, stopped(90)}, {`kvconn_queried_tokens_total{instance="a"}`, counter(100)}},
		"KvconnMatchSlow":           {{`kvconn_match_duration_seconds_bucket{instance="a",le="0.1"}`, constant(0)}, {`kvconn_match_duration_seconds_bucket{instance="a",le="+Inf"}`, counter(1)}},
		"KvconnEnginesWithoutCache": append(none(`kvconn_engines{instance="a"}`), history{`up{job="prod-vllm"}`, constant(1)}),
		"KvconnBucketDown":          {{`kvconn_object_breaker_open{instance="a"}`, constant(1)}},
		"KvconnCopierRestarts":      {{`kvconn_gpu_copier_starts_total{instance="a",gpu="g"}`, counter(0.01)}},
		"KvconnRouterNoRankReady":   none(`kvconn_router_ranks_ready{instance="a"}`),
		"KvconnRouterUnhealthy":     none(`kvconn_router_healthy{instance="a"}`),
		"KvconnRouterFeedStale":     append(none(`kvconn_router_residency_feeds{instance="a",state="stale"}`), history{`kvconn_router_event_feeds{instance="a",state="refused"}`, constant(1)}),
		"KvconnRouterRetries":       counts(`kvconn_router_retries_total{instance="a"}`, `kvconn_router_completions_total{instance="a",outcome="ok"}`),
		"KvconnRouterErrors":        counts(`kvconn_router_completions_total{instance="a",outcome="broken"}`, `kvconn_router_completions_total{instance="a",outcome="ok"}`),
	}
}

// Each alert fires in the trouble that it is for, and says which instance has it.
func TestEveryAlertFiresInItsTrouble(t *testing.T) {
	p := parser.NewParser(parser.Options{})
	e := promql.NewEngine(promql.EngineOpts{MaxSamples: 1 << 22, Timeout: time.Minute, LookbackDelta: 5 * time.Minute, Parser: p})
	all := trouble()
	for _, a := range kvconn.Alerts() {
		t.Run(a.Name, func(t *testing.T) {
			if len(all[a.Name]) == 0 {
				t.Fatal("nobody knows what makes it fire")
			}
			s := newScraper(t)
			app := s.db.Appender(t.Context())
			for _, h := range all[a.Name] {
				l, err := p.ParseMetric(h.series)
				if err != nil {
					t.Fatal(err)
				}
				for age := 26 * time.Hour; age >= 0; age -= time.Minute {
					if _, err := app.Append(0, labels.NewBuilder(l).Labels(), s.now.Add(-age).UnixMilli(), h.value(age.Seconds())); err != nil {
						t.Fatal(err)
					}
				}
			}
			if err := app.Commit(); err != nil {
				t.Fatal(err)
			}
			if n, _, text := s.query(e, a.Expr); n != 1 {
				t.Errorf("%d alerts: %s", n, text)
			}
		})
	}
}
