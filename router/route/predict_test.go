package route

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/router/registry"
)

// A burst of siblings follows the first one before the engine has said anything, for a moment only.
func TestWhatWasJustRoutedCountsUntilEventsMustHaveCome(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRouter(t, 0, nil)
		spec := rank(0)
		spec.Events = &registry.Events{Endpoint: "ipc:///nobody/publishes/here"}
		add(t, r, spec)
		ask(t, r, free(prompt(1, 64)))
		if d := ask(t, r, free(prompt(1, 64))); d.Match.GPU != 64-16 {
			t.Errorf("a sibling: %+v", d)
		}
		time.Sleep(r.opts.PredictTTL + expireInterval) // the router forgets by itself what has expired
		synctest.Wait()
		if p, err := r.Prefixes("m", prompt(1, 64), connector.Scope{}); err != nil || p[0].Match.GPU != 0 {
			t.Errorf("long after: %+v %v", p, err)
		}
	})
}
