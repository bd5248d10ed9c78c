package counters

import (
	"net/http/httptest"
	"slices"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

type speed struct {
	LatencyS float64 `metric:"latency_seconds" help:"A latency."`
}

type embedded struct {
	Misses uint64 `metric:"misses_total" help:"Misses."`
}

type tier struct {
	Name string `label:"tier"`
	Hits uint64 `metric:"hits_total" help:"Hits."`
	Full bool   `metric:"full" help:"1 while it is full."`
	Read uint64 `metric:"moved_bytes_total" label:"way=in" help:"Bytes moved."`
	Gone uint64 `metric:"moved_bytes_total" label:"way=out"`
}

type stats struct {
	Reads   uint64 `metric:"reads_total" help:"Reads."`
	Queue   int    `metric:"queue" help:"A queue."`
	Free    int64  `metric:"free_bytes" help:"Free bytes."`
	hidden  uint64 `metric:"hidden" help:"A field that is not exported."`
	Whole   uint64 `metric:"decisions_total" label:"decision=full" help:"Decisions."`
	Trimmed uint64 `metric:"decisions_total" label:"decision=trimmed"`
	Plain   uint64
	Rate    float64 `sum:"-"`
	Text    string
	embedded
	Speed  speed            `metric:"read_"`
	None   *speed           `metric:"none_"`
	Tiers  []tier           `metric:"tier_"`
	Faults map[string]bool  `metric:"fault" label:"code" help:"Faults."`
	Why    map[string]int64 `metric:"why" label:"reason" help:"Reasons."`
	Left   struct{ Reads uint64 }
}

func example() *stats {
	return &stats{
		Reads: 1, Queue: 2, Free: 3, hidden: 4, Whole: 5, Trimmed: 6, Plain: 7, Rate: 8, Text: "t", embedded: embedded{9},
		Speed: speed{0.5}, Tiers: []tier{{"host", 10, true, 1, 2}, {"disk", 11, false, 3, 4}}, Faults: map[string]bool{"a": true, "b": false},
		Why: map[string]int64{"c": 12},
	}
}

func TestCollectorShowsWhatIsTagged(t *testing.T) {
	const want = `# HELP x_decisions_total Decisions.
# TYPE x_decisions_total counter
x_decisions_total{decision="full"} 5
x_decisions_total{decision="trimmed"} 6
# HELP x_fault Faults.
# TYPE x_fault gauge
x_fault{code="a"} 1
x_fault{code="b"} 0
# HELP x_free_bytes Free bytes.
# TYPE x_free_bytes gauge
x_free_bytes 3
# HELP x_hidden A field that is not exported.
# TYPE x_hidden gauge
x_hidden 4
# HELP x_misses_total Misses.
# TYPE x_misses_total counter
x_misses_total 9
# HELP x_none_latency_seconds A latency.
# TYPE x_none_latency_seconds gauge
x_none_latency_seconds 0
# HELP x_queue A queue.
# TYPE x_queue gauge
x_queue 2
# HELP x_read_latency_seconds A latency.
# TYPE x_read_latency_seconds gauge
x_read_latency_seconds 0.5
# HELP x_reads_total Reads.
# TYPE x_reads_total counter
x_reads_total 1
# HELP x_tier_full 1 while it is full.
# TYPE x_tier_full gauge
x_tier_full{tier="disk"} 0
x_tier_full{tier="host"} 1
# HELP x_tier_hits_total Hits.
# TYPE x_tier_hits_total counter
x_tier_hits_total{tier="disk"} 11
x_tier_hits_total{tier="host"} 10
# HELP x_tier_moved_bytes_total Bytes moved.
# TYPE x_tier_moved_bytes_total counter
x_tier_moved_bytes_total{tier="disk",way="in"} 3
x_tier_moved_bytes_total{tier="disk",way="out"} 4
x_tier_moved_bytes_total{tier="host",way="in"} 1
x_tier_moved_bytes_total{tier="host",way="out"} 2
# HELP x_why Reasons.
# TYPE x_why gauge
x_why{reason="c"} 12
`
	r := prometheus.NewPedanticRegistry()
	r.MustRegister(NewCollector("x_", example))
	w := httptest.NewRecorder()
	promhttp.HandlerFor(r, promhttp.HandlerOpts{}).ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
	if got := w.Body.String(); got != want {
		t.Errorf("got\n%s", got)
	}
}

// A metric is described before it has a series, so that a name that is taken twice is found at
// the start.
func TestWhatHasNoSeriesYetIsDescribed(t *testing.T) {
	r := prometheus.NewPedanticRegistry()
	r.MustRegister(NewCollector("x_", func() *stats { return new(stats) }))
	if err := r.Register(NewCollector("x_tier_", func() *tier { return new(tier) })); err == nil {
		t.Error("a name was taken twice")
	}
}

func TestListDescribesWhatIsCollected(t *testing.T) {
	list := List[stats]("x_")
	names := make([]string, len(list))
	for i, m := range list {
		names[i] = m.Name
		switch m.Name {
		case "x_tier_moved_bytes_total":
			if m.Kind != "counter" || m.Help != "Bytes moved." || !slices.Equal(m.Labels, []string{"tier", "way"}) {
				t.Errorf("%+v", m)
			}
		case "x_fault":
			if m.Kind != "gauge" || !slices.Equal(m.Labels, []string{"code"}) {
				t.Errorf("%+v", m)
			}
		}
	}
	if !slices.IsSorted(names) || len(names) != 13 {
		t.Errorf("%d names: %v", len(names), names)
	}
}

func TestAddAddsNumbersOnly(t *testing.T) {
	sum, more := example(), example()
	more.Text = "other"
	Add(sum, more)
	got := [...]float64{float64(sum.Reads), float64(sum.Queue), float64(sum.Free), float64(sum.Plain), float64(sum.Misses), sum.Speed.LatencyS, sum.Rate}
	if want := [...]float64{2, 4, 6, 14, 18, 1, 8}; got != want || sum.Text != "t" || len(sum.Tiers) != 2 || sum.Tiers[0].Hits != 10 {
		t.Errorf("%v, want %v: %+v", got, want, sum)
	}
}
