package daemon

import (
	"fmt"
	"math"
	"net/http/httptest"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/prometheus/client_golang/prometheus/testutil/promlint"

	"github.com/kvconn/kvconn/gpu"
	"github.com/kvconn/kvconn/internal/daemon/contents"
	"github.com/kvconn/kvconn/internal/daemon/health"
	"github.com/kvconn/kvconn/internal/daemon/models"
	"github.com/kvconn/kvconn/internal/tracelog"
	"github.com/kvconn/kvconn/leader"
	"github.com/kvconn/kvconn/leader/sources"
	"github.com/kvconn/kvconn/store/disk"
	"github.com/kvconn/kvconn/store/object"
	"github.com/kvconn/kvconn/store/object/bucket"
	"github.com/kvconn/kvconn/store/object/fetch"
	"github.com/kvconn/kvconn/worker"
)

// scrape exports a reading as Prometheus sees it.
func scrape(t *testing.T, r *reading) string {
	t.Helper()
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(newCollector(func(time.Time) *reading { return r }))
	w := httptest.NewRecorder()
	promhttp.HandlerFor(registry, promhttp.HandlerOpts{}).ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
	if w.Code != 200 {
		t.Fatalf("%d %s", w.Code, w.Body)
	}
	return w.Body.String()
}

// example is a reading in which everything is there.
func example() *reading {
	counts := make(models.Counts)
	m := counts.Of("m")
	m.AddLeader(leader.Stats{
		EngineTokens: 20, QueriedTokens: 100, OfferedTokens: 64, Stats: sources.Stats{DiskTokens: 64, ComputedTokens: 36}, DecisionsTrimmed: 3,
	})
	m.AddWorker(worker.Stats{LoadedBytes: 4096, LoadSeconds: 1.5})
	r := &reading{
		gpus:    []gpu.DeviceStatus{{UUID: "GPU-00010203-0405-0607-0809-0a0b0c0d0e0f", Running: true, Starts: 1}},
		store:   disk.Stats{Records: 7},
		held:    []contents.Model{{Model: "m", Namespaces: 1, Records: 7, Bytes: 7 << 12}},
		tenants: []contents.Tenant{{Tenant: "a", Records: 3, Bytes: 3 << 12}},
		tiers:   []TierStatus{{Tier: "host", Hits: 5}, {Tier: "disk", UsedBytes: 1 << 20, Hits: 9, LoadBytesPerS: 2e9}},
		models:  []models.Totals{*m},
		trace:   new(tracelog.Stats),
		object: &ObjectStatus{Stats: object.Stats{Stats: bucket.Stats{
			Requests: map[string]uint64{string(bucket.Put): 10, string(bucket.Get): 100}, Errors: map[string]uint64{"missing": 1},
		}, Fetch: fetch.Stats{Failed: map[string]uint64{"timeout": 1}, Lost: map[string]uint64{"missing": 1}}, ObjectBytes: 73e9}},
	}
	r.object.estimate(Prices{Write: 5, Read: 0.4, GBMonth: 0.025}, time.Hour)
	r.health.Reasons = []health.Reason{{Code: "no_room"}}
	return r
}

func TestMetricsFollowTheNamingRulesAndHaveHelp(t *testing.T) {
	text := scrape(t, example())
	problems, err := promlint.New(strings.NewReader(text)).Lint()
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range problems {
		t.Errorf("%s: %s", p.Metric, p.Text)
	}
	for line := range strings.Lines(text) {
		if help, ok := strings.CutPrefix(line, "# HELP "); ok {
			name, help, _ := strings.Cut(strings.TrimSpace(help), " ")
			if len(help) < 10 || !strings.HasPrefix(name, "kvconn_") {
				t.Errorf("%s: help %q", name, help)
			}
		}
	}
}

func TestCostOfABucket(t *testing.T) {
	s := example().object
	if got, want := s.StorageDollarsPerDay, 0.06; math.Abs(got-want) > 1e-9 {
		t.Errorf("storage: %v dollars a day, want %v", got, want)
	}
	s.estimate(Prices{Write: 5, Read: 0.4}, 0)
	if got, want := s.RequestDollarsPerDay, 0.00009*24*60; math.Abs(got-want) > 1e-9 {
		t.Errorf("requests just after the start: %v dollars a day, want %v", got, want)
	}
}

func TestMetricsHaveTheValuesOfTheReading(t *testing.T) {
	text := scrape(t, example())
	for _, want := range []string{
		"kvconn_object_request_cost_dollars_per_day 0.00216", `kvconn_object_requests_total{kind="get"} 100`,
		"kvconn_store_records 7", `kvconn_tier_used_bytes{tier="disk"} 1.048576e+06`, `kvconn_tier_load_bytes_per_second{tier="disk"} 2e+09`,
		`kvconn_tier_hit_records_total{tier="disk"} 9`, `kvconn_tier_hit_records_total{tier="host"} 5`, `kvconn_queried_tokens_total{model="m"} 100`,
		`kvconn_offered_tokens_total{model="m"} 64`, `kvconn_loaded_bytes_total{model="m"} 4096`,
		`kvconn_fault{code="no_room"} 1`, `kvconn_fault{code="reads_failing"} 0`, "kvconn_healthy 0", `kvconn_decisions_total{decision="trimmed",model="m"} 3`, `kvconn_load_seconds_total{model="m"} 1.5`,
		`kvconn_prompt_tokens_total{model="m",source="engine"} 20`, `kvconn_prompt_tokens_total{model="m",source="disk"} 64`,
	} {
		if !strings.Contains(text, "\n"+want+"\n") {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
}

// Names of models come from clients: however many come, the series stay few, and a name
// that is no text breaks nothing.
func TestModelLabelIsBounded(t *testing.T) {
	counts := make(models.Counts)
	for i := range 10 * models.MaxModels {
		counts.Of(fmt.Sprintf("model-%d", i)).AddLeader(leader.Stats{QueriedTokens: 1})
	}
	if len(counts) != models.MaxModels+1 || counts[models.Other].Sum.Leader.QueriedTokens != 9*models.MaxModels {
		t.Errorf("%d names, other %+v", len(counts), counts[models.Other])
	}
	counts = make(models.Counts)
	counts.Of("\xff\xfe" + strings.Repeat("x", 1000)).AddLeader(leader.Stats{QueriedTokens: 1})
	var r reading
	for name, c := range counts {
		if len(name) > models.MaxNameBytes {
			t.Errorf("name of %d bytes", len(name))
		}
		r.models = append(r.models, *c)
	}
	if text := scrape(t, &r); !strings.Contains(text, `kvconn_queried_tokens_total{model="xxx`) {
		t.Error("the model is not there")
	}
}

// The operations manual names metrics that there are.
func TestDocumentedMetricsExist(t *testing.T) {
	doc, err := os.ReadFile("../../docs/operations.md")
	if err != nil {
		t.Fatal(err)
	}
	text := scrape(t, example())
	names := regexp.MustCompile(`kvconn_[a-z_]+`).FindAllString(string(doc), -1)
	if len(names) < 20 {
		t.Errorf("only %d names found: %v", len(names), names)
	}
	for _, name := range names {
		if !strings.Contains(text, "# HELP "+name+" ") {
			t.Errorf("docs/operations.md names %s, which is not exported", name)
		}
	}
	for _, code := range health.Codes() {
		if !strings.Contains(string(doc), "| `"+code+"` |") {
			t.Errorf("docs/operations.md does not explain %s", code)
		}
	}
}
