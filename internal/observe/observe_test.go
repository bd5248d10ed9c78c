package observe

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
	dto "github.com/prometheus/client_model/go"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/worker"
)

// counts returns how often each histogram was told, by name and tier.
func counts(t *testing.T, times *Times) map[string]uint64 {
	t.Helper()
	r := prometheus.NewPedanticRegistry()
	r.MustRegister(times)
	families, err := r.Gather()
	if err != nil {
		t.Fatal(err)
	}
	out := make(map[string]uint64)
	for _, f := range families {
		for _, m := range f.Metric {
			name := strings.TrimSuffix(strings.TrimPrefix(f.GetName(), "kvconn_"), "_seconds")
			for _, l := range m.Label {
				name += " " + l.GetValue()
			}
			if n := m.Histogram.GetSampleCount(); n > 0 {
				out[name] = n
			}
		}
	}
	return out
}

func load(waited time.Duration, tiers ...string) *worker.Load {
	l := &worker.Load{Took: time.Second, Waited: waited}
	for _, name := range tiers {
		l.Tiers = append(l.Tiers, connector.TierBlocks{Tier: name, Blocks: 1})
	}
	return l
}

func TestTimesAreCountedWhereTheyBelong(t *testing.T) {
	times := NewTimes()
	times.Matched(time.Now())
	times.LoadEnded(load(0, "host"))
	times.LoadEnded(load(time.Second, "disk", "host"))
	times.LoadEnded(load(time.Second, "host", "object", "disk"))
	times.LoadEnded(load(-1))
	times.SaveStarted(time.Second)
	times.SaveEnded(t.Context(), &worker.Save{Took: time.Second})
	times.SaveEnded(t.Context(), &worker.Save{Took: time.Second})
	want := map[string]uint64{
		"match_duration": 1, "load_duration host": 1, "load_duration disk": 1, "load_duration object": 1, "load_duration none": 1,
		"load_wait": 3, "save_wait": 1, "save_duration": 2,
	}
	got := counts(t, times)
	for name, n := range want {
		if got[name] != n {
			t.Errorf("%s: %d, want %d", name, got[name], n)
		}
	}
	if len(got) != len(want) {
		t.Errorf("%v", got)
	}
}

func TestHistogramsHaveClassicAndNativeBuckets(t *testing.T) {
	times := NewTimes()
	times.Matched(time.Now().Add(-3 * time.Millisecond))
	var m dto.Metric
	if err := times.match.Write(&m); err != nil {
		t.Fatal(err)
	}
	if h := m.Histogram; len(h.Bucket) != len(microseconds()) || len(h.PositiveSpan) == 0 {
		t.Errorf("%v", &m)
	}
}

// An engine's scheduler waits while a match is measured.
func TestMatchIsMeasuredWithoutAllocation(t *testing.T) {
	times, began := NewTimes(), time.Now()
	times.Matched(began) // makes a bucket
	if n := testing.AllocsPerRun(100, func() { times.match.Observe(0.001) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func TestListDescribesWhatThereIs(t *testing.T) {
	r := prometheus.NewPedanticRegistry()
	r.MustRegister(NewTimes(), BuildInfo("kvconn_"))
	families, err := r.Gather()
	if err != nil {
		t.Fatal(err)
	}
	have := make(map[string]*dto.MetricFamily)
	for _, f := range families {
		have[f.GetName()] = f
	}
	for _, m := range append(List(), BuildMetric("kvconn_")) {
		f := have[m.Name]
		if f == nil || f.GetHelp() != m.Help || !strings.EqualFold(f.GetType().String(), m.Kind) || len(f.Metric[0].Label) != len(m.Labels) {
			t.Errorf("%+v: there is %v", m, f)
		}
		delete(have, m.Name)
	}
	if len(have) > 0 {
		t.Errorf("not described: %v", have)
	}
	if problems, err := promlint.NewWithMetricFamilies(families).Lint(); err != nil || len(problems) > 0 {
		t.Errorf("%v, %v", problems, err)
	}
}

// Names of models come from clients: however many come, the series stay few.
func TestModelsOfRequestsAreBounded(t *testing.T) {
	requests := NewRequests()
	for i := range 10 * maxModels {
		name := fmt.Sprint(i) + strings.Repeat("x", i)
		requests.FirstToken(name, time.Second)
		requests.Answered(name, time.Second)
	}
	requests.Answered("", time.Second)
	requests.Answered("\xff", time.Second)
	r := prometheus.NewPedanticRegistry()
	r.MustRegister(requests)
	families, err := r.Gather()
	if err != nil || len(families) != 2 {
		t.Fatal(len(families), err)
	}
	for _, f := range families {
		n, others := uint64(0), uint64(0)
		for _, m := range f.Metric {
			name := m.Label[0].GetValue()
			if len(name) > maxModelBytes {
				t.Errorf("a name of %d bytes", len(name))
			}
			if n += m.Histogram.GetSampleCount(); name == otherModels {
				others = m.Histogram.GetSampleCount()
			}
		}
		if len(f.Metric) > maxModels+2 || n < 10*maxModels || others == 0 {
			t.Errorf("%s: %d series, %d requests, %d of other models", f.GetName(), len(f.Metric), n, others)
		}
	}
}
