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
		time.Sleep(r.opts.PredictTTL + leastAssumed*time.Second + expireInterval) // the router forgets by itself what has expired
		synctest.Wait()
		if p, err := r.Prefixes("m", prompt(1, 64), connector.Scope{}); err != nil || p[0].Match.GPU != 0 {
			t.Errorf("long after: %+v %v", p, err)
		}
	})
}

// A turn that waits longer than events take is still where the next one of its conversation finds its prefix: it is
// not computed again elsewhere.
func TestWhatWaitsInAQueueCountsUntilItShouldBeComputed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const tokens, queue = 100_000, 10 * time.Second // at the speed that counts while none is measured
		r := newRouter(t, 0, nil)
		spec := rank(0)
		spec.Events = &registry.Events{Endpoint: "ipc:///nobody/publishes/here"}
		add(t, r, spec)
		ask(t, r, free(prompt(1, tokens)))
		ask(t, r, free(prompt(2, 640))) // waits for the first one
		has := func() int32 {
			synctest.Wait()
			p, err := r.Prefixes("m", prompt(2, 640), connector.Scope{})
			if err != nil {
				t.Fatal(err)
			}
			return p[0].Match.GPU
		}
		time.Sleep(queue + r.opts.PredictTTL)
		if got := has(); got != 640 {
			t.Errorf("in a queue of %v: %d tokens of 640", queue, got)
		}
		time.Sleep(2*queue + expireInterval)
		if got := has(); got != 0 {
			t.Errorf("long after: %d tokens", got)
		}
	})
}
