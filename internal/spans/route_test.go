package spans

import (
	"net/http"
	"testing"

	"github.com/kvconn/kvconn/internal/testkit/collector"
)

// A router that makes no spans, and requests that are not recorded, cost no memory on their way.
func TestNothingIsAllocatedForARequestWithoutASpan(t *testing.T) {
	tracer := newTracer(t, collector.New(t, nil), nil)
	defer tracer.Close()
	model, reason := "m", "score"
	for name, r := range map[string]*Router{"off": (*Tracer)(nil).Router("cost"), "on": tracer.Router("cost")} {
		for _, h := range []http.Header{{}, {"Traceparent": {unrecorded}}, {"Traceparent": {recorded, recorded}}} {
			if name == "off" {
				h.Set("Traceparent", recorded)
			}
			before := h.Get("Traceparent")
			if n := testing.AllocsPerRun(100, func() {
				s := r.Begin(h)
				s.Model(model)
				s.Placed(Placement{Rank: 1, Reason: reason, PromptTokens: 100, GPUTokens: 16})
				s.Inject(h)
				s.Unplaced(reason)
				s.Answered("ok", http.StatusOK, "")
				s.End()
			}); n != 0 {
				t.Errorf("%s: %v allocations with %v", name, n, h)
			}
			if h.Get("Traceparent") != before {
				t.Errorf("%s: the header has become %v", name, h)
			}
		}
	}
}
