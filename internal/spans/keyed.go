package spans

import (
	"math/bits"
	"strings"

	lru "github.com/hashicorp/golang-lru/v2"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"

	"github.com/kvconn/kvconn/connector"
)

// Keyed remembers the traces of an engine that brings its own keys: its requests are told with one call, its loads with
// another. It is safe for concurrent use.
type Keyed struct {
	requests *lru.Cache[string, string]
	loads    *lru.Cache[string, owner]
}

// owner is the request that a load is for, and its trace.
type owner struct{ request, trace string }

// maxKeyed bounds the requests, and the loads, that are remembered.
const maxKeyed = 4096

// NewKeyed returns one that knows of nothing.
func NewKeyed() (*Keyed, error) {
	requests, err := lru.New[string, string](maxKeyed)
	if err != nil {
		return nil, err
	}
	loads, err := lru.New[string, owner](maxKeyed)
	return &Keyed{requests, loads}, err
}

// Present calls present, which answers m, and notes the trace of its request, which has one. The first time, and if e is not
// nil, it makes a span. It keeps nothing of m.
func (k *Keyed) Present(
	e *Engine, m *connector.PresentRequest, into [][]byte, blockTokens int, present func(*connector.PresentRequest, [][]byte) [][]byte,
) [][]byte {
	old, _ := k.requests.Get(m.Request)
	known := old == m.Trace
	if !known {
		k.requests.Add(strings.Clone(m.Request), strings.Clone(m.Trace))
	}
	var span trace.Span
	if e != nil && !known {
		span = e.t.child("kvconn.match", m.Trace, trace.WithSpanKind(trace.SpanKindServer), e.attrs)
	}
	if span == nil {
		return present(m, into)
	}
	defer span.End()
	groups := present(m, into)
	offered := 0
	for _, g := range groups {
		n := 0
		for _, b := range g {
			n += bits.OnesCount8(b)
		}
		offered = max(offered, n)
	}
	asked := m.First + len(m.Hashes)
	held := min(max(m.First, m.Held), asked)
	span.SetAttributes(request(m.Request), attribute.Int("kvconn.prompt_tokens", asked*blockTokens), attribute.Int("kvconn.computed_tokens", held*blockTokens),
		attribute.Int("kvconn.queried_tokens", (asked-held)*blockTokens), attribute.Int("kvconn.offered_tokens", offered*blockTokens))
	return groups
}

// Loading notes whose load m is, before it can end. It keeps nothing of m.
func (k *Keyed) Loading(m *connector.KeyedMove) {
	if trace, ok := k.requests.Get(m.Owner()); ok {
		k.loads.Add(strings.Clone(m.ID), owner{strings.Clone(m.Owner()), trace})
	} else {
		k.loads.Remove(m.ID) // of an earlier use of the id
	}
}

// Ended notes the end of a request.
func (k *Keyed) Ended(request string) { k.requests.Remove(request) }

// Of returns the request that a load is for, and its traceparent, "" if it has none.
func (k *Keyed) Of(load string) (request, trace string) {
	o, _ := k.loads.Get(load)
	return o.request, o.trace
}
