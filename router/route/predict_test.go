package route

import (
	"sync"
	"testing"
	"time"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/router/registry"
)

// A burst of siblings follows the first one before the engine has said anything, for a moment only.
func TestWhatWasJustRoutedCountsUntilEventsMustHaveCome(t *testing.T) {
	var mu sync.Mutex
	now := time.Unix(1000, 0)
	r := newRouter(t, 0, func(o *Options) {
		o.Now = func() time.Time { mu.Lock(); defer mu.Unlock(); return now }
	})
	spec := rank(0)
	spec.Events = &registry.Events{Endpoint: "tcp://127.0.0.1:1"} // nobody publishes there
	add(t, r, spec)
	ask(t, r, free(prompt(1, 64)))
	if d := ask(t, r, free(prompt(1, 64))); d.Match.GPU != 64-16 {
		t.Errorf("a sibling: %+v", d)
	}
	mu.Lock()
	now = now.Add(r.opts.PredictTTL)
	mu.Unlock()
	for range 1000 { // the router forgets by itself what has expired
		if r.Stats().Index.Predicted == 0 {
			break
		}
		time.Sleep(10 * time.Millisecond)
	}
	if p, err := r.Prefixes("m", prompt(1, 64), connector.Scope{}); err != nil || p[0].Match.GPU != 0 {
		t.Errorf("long after: %+v %v", p, err)
	}
}
