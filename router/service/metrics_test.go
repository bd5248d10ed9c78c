package service

import (
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
	dto "github.com/prometheus/client_model/go"

	"github.com/kvconn/kvconn/internal/counters"
	"github.com/kvconn/kvconn/internal/observe"
	"github.com/kvconn/kvconn/internal/testkit/enginetest"
	"github.com/kvconn/kvconn/internal/testkit/wait"
	"github.com/kvconn/kvconn/router/policy"
)

// scrape asks for /metrics in a form, and returns its type and text.
func (r *running) scrape(accept string) (form, text string) {
	r.t.Helper()
	req, err := http.NewRequestWithContext(r.t.Context(), http.MethodGet, r.url+"/metrics", nil)
	if err != nil {
		r.t.Fatal(err)
	}
	req.Header.Set("Accept", accept)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		r.t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	b, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK {
		r.t.Fatal(resp.Status, err)
	}
	return resp.Header.Get("Content-Type"), string(b)
}

func TestMetricsHaveTheFormThatIsAskedFor(t *testing.T) {
	r := start(t, unchecked(ranksOf("http://127.0.0.1:1", 1)...))
	for accept, want := range map[string]string{
		"": "text/plain; version=0.0.4",
		"application/openmetrics-text;version=1.0.0":                                                 "application/openmetrics-text; version=1.0.0",
		"application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;encoding=delimited": "application/vnd.google.protobuf; proto=io.prometheus.client.MetricFamily; encoding=delimited",
	} {
		form, text := r.scrape(accept)
		if !strings.HasPrefix(form, want) || strings.HasSuffix(text, "# EOF\n") != strings.HasPrefix(want, "application/openmetrics") {
			t.Errorf("Accept %q: %q, want %q:\n%.200s", accept, form, want, text)
		}
	}
}

func TestRanksAreMetricsIfWanted(t *testing.T) {
	for _, wanted := range []bool{false, true} {
		r := start(t, func(o *Options) {
			unchecked(ranksOf("http://127.0.0.1:1", 2)...)(o)
			o.RankMetrics = wanted
		})
		if _, text := r.scrape(""); strings.Contains(text, "\nkvconn_router_rank_ready{rank=\"1\"} 1\n") != wanted || !strings.Contains(text, "\nkvconn_router_build_info{") {
			t.Errorf("wanted: %t\n%s", wanted, text)
		}
	}
}

func TestAnswersAreTimedByModel(t *testing.T) {
	e := enginetest.New(t, "m")
	r := start(t, unchecked(ranksOf(e.URL, 1)...))
	for _, stream := range []bool{true, false} {
		if status, text := r.do(http.MethodPost, "/v1/completions", map[string]any{"model": "m", "prompt": []int{1, 2}, "stream": stream}, nil); status != http.StatusOK {
			t.Fatal(status, text)
		}
	}
	for _, want := range []string{`kvconn_router_time_to_first_token_seconds_count{model="m"} 1`, `kvconn_router_request_duration_seconds_count{model="m"} 2`} {
		// An answer is counted a little after its end was sent.
		wait.For(t, want, func() bool { _, text := r.scrape(""); return strings.Contains(text, "\n"+want+"\n") })
	}
}

// The manual, the dashboards and the alerts are made of this list.
func TestMetricsListsWhatIsCollected(t *testing.T) {
	requests := observe.NewRequests()
	requests.FirstToken("m", 1)
	requests.Answered("m", 1)
	status := func() *Status {
		s := &Status{RankReady: map[string]bool{"0": true}, EventFeeds: byState[int](nil, nil), StoreFeeds: byState[int](nil, nil)}
		s.Reasons = map[policy.Reason]uint64{policy.ReasonScore: 1}
		return s
	}
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(counters.NewCollector(metricPrefix, status), newTimed(nil).times, requests, observe.BuildInfo(metricPrefix))
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	have := map[string]*dto.MetricFamily{}
	for _, f := range families {
		have[f.GetName()] = f
	}
	for _, m := range Metrics() {
		f := have[m.Name]
		if f == nil || f.GetHelp() != m.Help || !strings.EqualFold(f.GetType().String(), m.Kind) || len(f.Metric[0].Label) != len(m.Labels) {
			t.Errorf("%+v is listed, there is %v", m, f)
		}
		delete(have, m.Name)
	}
	if len(have) > 0 {
		t.Errorf("not listed: %v", slices.Collect(maps.Keys(have)))
	}
	if problems, err := promlint.NewWithMetricFamilies(families).Lint(); err != nil || len(problems) > 0 {
		t.Errorf("%v, %v", problems, err)
	}
}
