package spans

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/internal/testkit/collector"
	"github.com/kvconn/kvconn/worker"
)

const (
	traceID    = "0af7651916cd43dd8448eb211c80319c"
	parentID   = "b7ad6b7169203331"
	recorded   = "00-" + traceID + "-" + parentID + "-01"
	unrecorded = "00-" + traceID + "-" + parentID + "-00"
)

// newTracer sends to a collector, at once.
func newTracer(t *testing.T, c *collector.Collector, change func(*Options)) *Tracer {
	t.Helper()
	o := Options{URL: c.URL + "/v1/traces", Interval: time.Millisecond, StopTimeout: time.Minute, Version: "1.2.3", Instance: "i"}
	if change != nil {
		change(&o)
	}
	tracer, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	return tracer
}

func newEngine(tracer *Tracer) *Engine {
	return tracer.Engine("e", &connector.Manifest{Model: "m\xff"}, "0123")
}

// answers is a leader that always answers the same.
func answers(o connector.Offer, err error) func(context.Context, *connector.MatchRequest) (connector.Offer, error) {
	return func(context.Context, *connector.MatchRequest) (connector.Offer, error) { return o, err }
}

// nothing observes nothing.
type nothing struct{}

func (nothing) LoadEnded(*worker.Load)                  {}
func (nothing) SaveStarted(time.Duration)               {}
func (nothing) SaveEnded(context.Context, *worker.Save) {}

func TestMatchIsAChildOfTheEnginesSpan(t *testing.T) {
	c := collector.New(t, nil)
	tracer := newTracer(t, c, func(o *Options) { o.Headers = map[string]string{"Authorization": "Bearer k"} })
	offer := connector.Offer{Tokens: 48, Refused: 16, Tiers: [connector.MaxTiers]connector.TierTokens{{Tier: "host", Tokens: 16}, {Tier: "disk", Tokens: 32}}}
	m := connector.MatchRequest{Request: "r\xff", Tokens: make([]uint32, 100), Computed: 16, Trace: recorded}
	got, err := newEngine(tracer).Match(t.Context(), &m, func(_ context.Context, m *connector.MatchRequest) (connector.Offer, error) {
		if !m.Tiers || m.Trace != recorded {
			t.Errorf("the leader is asked %+v", m)
		}
		return offer, nil
	})
	if err != nil || got.Tokens != 48 || got.Tiers != (connector.Offer{}).Tiers || m.Tiers {
		t.Errorf("the engine is answered %+v, %v, and its request is %+v", got, err, m)
	}
	tracer.Close()
	spans := c.Spans()
	if len(spans) != 1 {
		t.Fatalf("%+v", spans)
	}
	s := spans[0]
	if s.Name != "kvconn.match" || s.TraceID != traceID || s.ParentID != parentID || s.Failed || s.StartNanos == 0 || s.EndNanos < s.StartNanos {
		t.Errorf("%+v", s)
	}
	want(t, s.Attributes, map[string]any{
		"gen_ai.request.model": "m\uFFFD", "gen_ai.request.id": "r\uFFFD", "kvconn.namespace": "0123", "kvconn.engine": "e", "kvconn.prompt_tokens": int64(100),
		"kvconn.computed_tokens": int64(16), "kvconn.queried_tokens": int64(84), "kvconn.offered_tokens": int64(48), "kvconn.refused_tokens": int64(16),
		"kvconn.offered_tokens.host": int64(16), "kvconn.offered_tokens.disk": int64(32),
	})
	if s.Resource["service.name"] != "kvconnd" || s.Resource["service.version"] != "1.2.3" || s.Resource["service.instance.id"] != "i" {
		t.Errorf("resource %v", s.Resource)
	}
	if got := c.Header("Authorization"); got != "Bearer k" {
		t.Errorf("Authorization: %q", got)
	}
	if st := tracer.Stats(); *st != (Stats{Exported: 1}) {
		t.Errorf("%+v", st)
	}
}

func want(t *testing.T, got, want map[string]any) {
	t.Helper()
	for k, v := range want {
		if got[k] != v {
			t.Errorf("%s is %v, want %v", k, got[k], v)
		}
	}
	for k := range got {
		if _, ok := want[k]; !ok {
			t.Errorf("%s is %v, and is not wanted", k, got[k])
		}
	}
}

// What the client has decided holds; what brings no trace begins one as the ratio says; a request is asked for once.
func TestWhichMatchesHaveASpan(t *testing.T) {
	for name, c := range map[string]struct {
		trace string
		from  int
		ratio float64
		want  bool
	}{
		"recorded":                  {recorded, 0, 0, true},
		"not recorded":              {unrecorded, 0, 1, false},
		"asked again":               {recorded, 10, 1, false},
		"no trace":                  {"", 0, 0, false},
		"no trace, all are sampled": {"", 0, 1, true},
		"no trace, asked again":     {"", 10, 1, false},
		"malformed":                 {strings.Repeat("f", 55), 0, 0, false},
		"malformed, all sampled":    {strings.Repeat("f", 55), 0, 1, true},
		"another malformed":         {"00-aa-bb-01", 0, 1, true},
	} {
		t.Run(name, func(t *testing.T) {
			col := collector.New(t, nil)
			tracer := newTracer(t, col, func(o *Options) { o.Ratio = c.ratio })
			m := connector.MatchRequest{Request: "r", From: c.from, Tokens: make([]uint32, 8), Trace: c.trace}
			if _, err := newEngine(tracer).Match(t.Context(), &m, answers(connector.Offer{Why: connector.WhyNotStored}, nil)); err != nil {
				t.Fatal(err)
			}
			tracer.Close()
			spans := col.Spans()
			if (len(spans) == 1) != c.want || len(spans) > 1 {
				t.Fatalf("%+v", spans)
			}
			if !c.want {
				if m.Trace != c.trace {
					t.Errorf("the trace has become %q", m.Trace)
				}
				return
			}
			if spans[0].Attributes["kvconn.no_offer_reason"] != "not_stored" {
				t.Errorf("%+v", spans[0])
			}
			// What follows joins the span's trace.
			if c.trace != recorded && (m.Trace != "00-"+spans[0].TraceID+"-"+spans[0].SpanID+"-01" || spans[0].ParentID != "") {
				t.Errorf("%q of %+v", m.Trace, spans[0])
			}
		})
	}
}

func TestFailedMatchIsAnError(t *testing.T) {
	c := collector.New(t, nil)
	tracer := newTracer(t, c, nil)
	m := connector.MatchRequest{Request: "r", Tokens: make([]uint32, 8), Trace: recorded}
	if _, err := newEngine(tracer).Match(t.Context(), &m, answers(connector.Offer{}, errors.New("broken"))); err == nil {
		t.Fatal("the error is lost")
	}
	tracer.Close()
	if s := c.Spans(); len(s) != 1 || !s[0].Failed || s[0].Attributes["error.type"] != "match" {
		t.Errorf("%+v", s)
	}
}

func TestLoadsAndSavesAreChildrenToo(t *testing.T) {
	c := collector.New(t, nil)
	tracer := newTracer(t, c, nil)
	e := newEngine(tracer)
	traces := map[string]string{"a": recorded, "b": unrecorded, "c": recorded}
	of := func(request string) string { return traces[request] }
	r := e.Rank(3, func(load string) (string, string) { return load, of(load) }, nothing{})
	began := time.Now()
	r.LoadEnded(&worker.Load{Request: "b", Began: began})
	r.LoadEnded(&worker.Load{Request: "unknown", Began: began})
	r.LoadEnded(&worker.Load{
		Request: "a", Began: began, Took: time.Second, Waited: time.Millisecond, FailedBlocks: 2, Cause: errors.New("bits\xff"), CauseKind: "corrupt",
		Tiers: []connector.TierBlocks{{Tier: "host", Blocks: 1, Bytes: 10}, {Tier: "disk", Blocks: 2, Bytes: 20}},
	})
	step := connector.StepRequest{}
	reply, err := e.Step(t.Context(), &step, of, func(_ context.Context, m *connector.StepRequest) (connector.StepReply, error) {
		if !m.TellSaves {
			t.Error("the leader is not asked for its saves")
		}
		return connector.StepReply{Metadata: []byte("plan"), Saves: []connector.PlannedSave{
			{Request: "a", Count: 2}, {Request: "a", Group: 1, Count: 1}, {Request: "b", Count: 1}, {Request: "c", Count: 5},
		}}, nil
	})
	if err != nil || reply.Saves != nil || step.TellSaves {
		t.Errorf("the engine is told %+v, %v", reply, err)
	}
	r.SaveEnded(e.Saving(t.Context(), []byte("another plan")), &worker.Save{Began: began})
	r.SaveEnded(e.Saving(t.Context(), []byte("plan")), &worker.Save{Began: began, Took: time.Second, Blocks: 9, Bytes: 90, FailedBlocks: 1})
	tracer.Close()
	loads, saves := c.Named("kvconn.load"), c.Named("kvconn.save")
	if len(loads) != 1 || len(saves) != 2 {
		t.Fatalf("%+v", c.Spans())
	}
	for _, s := range c.Spans() {
		if s.TraceID != traceID || s.ParentID != parentID || !s.Failed || s.StartNanos != uint64(began.UnixNano()) || s.EndNanos != s.StartNanos+1e9 {
			t.Errorf("%+v", s)
		}
	}
	want(t, loads[0].Attributes, map[string]any{
		"gen_ai.request.model": "m\uFFFD", "gen_ai.request.id": "a", "kvconn.namespace": "0123", "kvconn.engine": "e", "kvconn.rank": int64(3),
		"kvconn.loaded_blocks": int64(3), "kvconn.loaded_bytes": int64(30), "kvconn.loaded_blocks.host": int64(1), "kvconn.loaded_blocks.disk": int64(2),
		"kvconn.loaded_bytes.host": int64(10), "kvconn.loaded_bytes.disk": int64(20), "kvconn.failed_blocks": int64(2), "kvconn.wait_seconds": 0.001,
		"error.type": "corrupt",
	})
	want(t, saves[0].Attributes, map[string]any{
		"gen_ai.request.model": "m\uFFFD", "gen_ai.request.id": "a", "kvconn.namespace": "0123", "kvconn.engine": "e", "kvconn.rank": int64(3),
		"kvconn.planned_blocks": int64(3), "kvconn.batch_blocks": int64(9), "kvconn.batch_bytes": int64(90), "kvconn.failed_blocks": int64(1), "error.type": "write",
	})
	if saves[1].Attributes["gen_ai.request.id"] != "c" || saves[1].Attributes["kvconn.planned_blocks"] != int64(5) {
		t.Errorf("%+v", saves[1])
	}
}

// A daemon that makes no traces, and requests that are in none, allocate nothing.
func TestNothingIsAllocatedWithoutASpan(t *testing.T) {
	c := collector.New(t, nil)
	tracer := newTracer(t, c, nil)
	defer tracer.Close()
	answer, ctx := answers(connector.Offer{}, nil), t.Context()
	plan := []byte("plan")
	for name, e := range map[string]*Engine{"off": (*Tracer)(nil).Engine("e", nil, ""), "on": newEngine(tracer)} {
		m := connector.MatchRequest{Request: "r", Tokens: make([]uint32, 8)}
		for _, trace := range []string{"", unrecorded} {
			m.Trace = trace
			if n := testing.AllocsPerRun(100, func() { _, _ = e.Match(ctx, &m, answer) }); n != 0 {
				t.Errorf("%s: %v allocations in a match with trace %q", name, n, trace)
			}
		}
		if n := testing.AllocsPerRun(100, func() { _ = e.Saving(ctx, plan) }); n != 0 {
			t.Errorf("%s: %v allocations in a save", name, n)
		}
	}
	if o := (*Tracer)(nil).Engine("e", nil, "").Rank(0, nil, nothing{}); o != (nothing{}) {
		t.Errorf("loads and saves are observed by %T", o)
	}
	if s := (*Tracer)(nil).Stats(); s != nil {
		t.Errorf("%+v", s)
	}
	(*Tracer)(nil).Close()
}

func TestOptionsAreChecked(t *testing.T) {
	for _, o := range []Options{{}, {URL: "u", Ratio: 2}, {URL: "u", Ratio: -1}, {URL: "u", QueueSpans: -1}, {URL: "u", Interval: -1}} {
		if _, err := New(o); err == nil {
			t.Errorf("%+v is taken", o)
		}
	}
}

// A collector that answers with a redirect does not get the headers sent elsewhere.
func TestRedirectsAreNotFollowed(t *testing.T) {
	other := collector.New(t, nil)
	c := collector.New(t, func(w http.ResponseWriter, r *http.Request) bool {
		http.Redirect(w, r, other.URL+"/v1/traces", http.StatusTemporaryRedirect)
		return true
	})
	tracer := newTracer(t, c, nil)
	m := connector.MatchRequest{Request: "r", Tokens: make([]uint32, 8), Trace: recorded}
	if _, err := newEngine(tracer).Match(t.Context(), &m, answers(connector.Offer{}, nil)); err != nil {
		t.Fatal(err)
	}
	tracer.Close()
	if st := tracer.Stats(); *st != (Stats{Collector: 1}) || len(other.Spans()) > 0 {
		t.Errorf("%+v, %+v", st, other.Spans())
	}
}
