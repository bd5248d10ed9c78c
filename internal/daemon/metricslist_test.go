package daemon

import (
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"github.com/kvconn/kvconn/internal/daemon/health"
	"github.com/kvconn/kvconn/internal/daemon/opening"
	"github.com/kvconn/kvconn/internal/observe"
)

// gather collects an example of everything.
func gather(t *testing.T) map[string]*dto.MetricFamily {
	t.Helper()
	r := prometheus.NewPedanticRegistry()
	r.MustRegister(newCollector(func(time.Time) *reading { return example() }), observe.NewTimes(), observe.BuildInfo("kvconn_"))
	families, err := r.Gather()
	if err != nil {
		t.Fatal(err)
	}
	out := make(map[string]*dto.MetricFamily, len(families))
	for _, f := range families {
		out[f.GetName()] = f
	}
	return out
}

// The manual, the dashboards and the alerts are made of this list.
func TestMetricsListsWhatIsCollected(t *testing.T) {
	have := gather(t)
	for _, m := range Metrics() {
		f := have[m.Name]
		if f == nil {
			t.Errorf("%s is listed, and not there", m.Name)
			continue
		}
		var labels []string
		for _, l := range f.Metric[0].Label {
			labels = append(labels, l.GetName())
		}
		if f.GetHelp() != m.Help || !strings.EqualFold(f.GetType().String(), m.Kind) || !slices.Equal(labels, slices.Sorted(slices.Values(m.Labels))) {
			t.Errorf("%+v is listed, there is %v with the labels %v", m, f.GetType(), labels)
		}
		delete(have, m.Name)
	}
	for name := range maps.Keys(have) {
		t.Errorf("%s is not listed", name)
	}
}

// Prometheus asks for OpenMetrics first, and for protobuf if it takes native histograms.
func TestMetricsHaveTheFormThatIsAskedFor(t *testing.T) {
	quiet := slog.New(slog.DiscardHandler)
	d := &daemon{opts: new(Options), times: observe.NewTimes(), health: health.New(quiet), opening: opening.New(quiet, time.Now(), nil)}
	for accept, want := range map[string]string{
		"": "text/plain; version=0.0.4",
		"application/openmetrics-text;version=1.0.0":                                                 "application/openmetrics-text; version=1.0.0",
		"application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;encoding=delimited": "application/vnd.google.protobuf; proto=io.prometheus.client.MetricFamily; encoding=delimited",
	} {
		for _, route := range d.routes() {
			if route.Pattern != "GET /metrics" {
				continue
			}
			r, w := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/metrics", nil), httptest.NewRecorder()
			r.Header.Set("Accept", accept)
			route.Handler.ServeHTTP(w, r)
			if got := w.Header().Get("Content-Type"); w.Code != http.StatusOK || !strings.HasPrefix(got, want) {
				t.Errorf("Accept %q: status %d, %q; want %q: %.300s", accept, w.Code, got, want, w.Body)
			}
			if ended := strings.HasSuffix(w.Body.String(), "# EOF\n"); ended != strings.HasPrefix(want, "application/openmetrics") {
				t.Errorf("Accept %q: ends with # EOF: %t", accept, ended)
			}
		}
	}
}
