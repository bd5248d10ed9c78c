package proxy

import (
	"context"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/kvconn/kvconn/internal/testkit/enginetest"
	"github.com/kvconn/kvconn/router/front"
	"github.com/kvconn/kvconn/router/registry"
	"github.com/kvconn/kvconn/router/route"
)

// spy is a router that notes what it is told.
type spy struct {
	Router
	mu       sync.Mutex
	requests []route.Request
	outputs  []int
}

func (s *spy) Route(ctx context.Context, req *route.Request, d *route.Decision) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	told := *req
	told.Exclude = slices.Clone(req.Exclude)
	s.requests = append(s.requests, told)
	return s.Router.Route(ctx, req, d)
}

func (s *spy) Output(handle uint64, tokens int) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.outputs = append(s.outputs, tokens)
	return s.Router.Output(handle, tokens)
}

func newSpied(t *testing.T, engines int, change func(*Options)) (*rig, *spy) {
	s := new(spy)
	f := newFront(t, engines, func(o *Options) {
		s.Router = o.Router
		o.Router = s
		if change != nil {
			change(o)
		}
	})
	return f, s
}

func TestTheRouterIsToldWhatTheRequestSays(t *testing.T) {
	f, s := newSpied(t, 1, nil)
	body := `{"model":"m","messages":[{"role":"user","content":"x"}],"cache_salt":"tenant","session_id":"sub","stream":true}`
	f.post(t, body, front.ParentHeader, "parent", PinHeader, "0", StrictHeader, "true")
	f.post(t, `{"model":"m","prompt":[1,2]}`)
	a, b := s.requests[0], s.requests[1]
	if a.Model != "m" || a.Scope.Salt != "tenant" || a.Conversation != "parent" || !a.FirstTurn || a.Content == "" || a.Pin != 0 || !a.Strict || a.Silent {
		t.Errorf("%+v", a)
	}
	if b.Scope.Salt != "" || b.Conversation != "" || b.FirstTurn || b.Content != "" || b.Pin >= 0 || b.Strict || !b.Silent || !slices.Equal(b.Prompt, []uint32{1, 2}) {
		t.Errorf("%+v", b)
	}
	if got := f.engines[0].Requests()[0]; got.Header.Get(front.SessionHeader) != "sub" || got.Header.Get(front.ParentHeader) != "parent" {
		t.Errorf("the engine was sent %v", got.Header)
	}
}

// Long streams are reported, so that they do not count as lost.
func TestTheRouterIsToldThatAStreamGoesOn(t *testing.T) {
	f, s := newSpied(t, 1, nil)
	synctest.Test(t, func(t *testing.T) {
		o := f.proxy.opts
		o.Transport = &answer{pause: 6 * outputInterval / 10, chunks: 7}
		p, err := New(o)
		if err != nil {
			t.Fatal(err)
		}
		p.ServeHTTP(httptest.NewRecorder(), httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/v1/completions", strings.NewReader(`{"stream":true,"prompt":[1]}`)))
	})
	if !slices.Equal(s.outputs, []int{3, 2, 2}) { // every second event comes an interval after a report
		t.Errorf("reported %v", s.outputs)
	}
}

func TestTheNumberOfTriesIsBounded(t *testing.T) {
	f, s := newSpied(t, 4, func(o *Options) { o.MaxTries = 2 })
	for i, e := range f.engines {
		e.Set(enginetest.Refuse)
		if err := f.router.Update(registry.Rank{ID: int32(i), Model: "m", Endpoint: e.URL}); err != nil {
			t.Fatal(err)
		}
	}
	if resp, body := f.post(t, `{"prompt":[1]}`); resp.StatusCode != http.StatusServiceUnavailable {
		t.Errorf("%s %s", resp.Status, body)
	}
	if len(s.requests) != 2 || len(s.requests[1].Exclude) != 1 {
		t.Errorf("%+v", s.requests)
	}
}
