package route

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/router/registry"
)

// silentFeed returns a router of one rank whose events never come.
func silentFeed(t *testing.T) *Router {
	t.Helper()
	r := newRouter(t, 0, nil)
	spec := rank(0)
	spec.Events = &registry.Events{Endpoint: "ipc:///nobody/publishes/here"}
	add(t, r, spec)
	return r
}

// inGPU is how much of a prompt the only rank is taken to have in its GPU, after a time.
func inGPU(t *testing.T, r *Router, tokens []uint32, after time.Duration) int {
	t.Helper()
	time.Sleep(after)
	synctest.Wait() // the router forgets by itself what has expired
	p, err := r.Prefixes("m", tokens, connector.Scope{})
	if err != nil {
		t.Fatal(err)
	}
	return int(p[0].Match.GPU)
}

// A burst of siblings follows the first one before the engine has said anything, for a moment only.
func TestWhatWasJustRoutedCountsUntilEventsMustHaveCome(t *testing.T) {
	for end, done := range map[string]func(*Router, uint64){
		"prefill": func(r *Router, h uint64) { r.PrefillDone(h) },
		"refusal": func(r *Router, h uint64) { r.Finish(h) },
	} {
		t.Run(end, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := silentFeed(t)
				first := ask(t, r, free(prompt(1, 64)))
				second := ask(t, r, free(prompt(1, 64)))
				if second.Match.GPU != 64-16 {
					t.Errorf("a sibling: %+v", second)
				}
				done(r, first.Handle)
				done(r, second.Handle)
				if n := inGPU(t, r, prompt(1, 64), r.opts.PredictTTL+expireInterval); n != 0 {
					t.Errorf("long after: %d tokens", n)
				}
			})
		})
	}
}

// The next turn of a conversation finds its prefix where this one waits, however long that takes, and is not computed again
// elsewhere. It does not matter whose prediction it was.
func TestWhatWaitsInAQueueCountsAsLongAsItWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := silentFeed(t)
		given := ask(t, r, free(prompt(1, 640)))
		waits := ask(t, r, free(prompt(1, 640)))
		r.Finish(given.Handle) // whoever asked first has hung up
		for range 20 {
			if n := inGPU(t, r, prompt(1, 640), 3*time.Second); n != 640 {
				t.Fatalf("%d tokens of 640 in a queue", n)
			}
		}
		r.PrefillDone(waits.Handle)
		if n := inGPU(t, r, prompt(1, 640), expireInterval); n != 640 {
			t.Errorf("%d tokens while its events are on their way", n)
		}
		if n := inGPU(t, r, prompt(1, 640), r.opts.PredictTTL); n != 0 {
			t.Errorf("%d tokens long after", n)
		}
	})
}

// What an engine has lost with a restart is not there again because a request waits that was sent to it before.
func TestARestartEndsWhatWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := silentFeed(t)
		ask(t, r, free(prompt(1, 640)))
		if n := inGPU(t, r, prompt(1, 640), 3*time.Second); n != 640 {
			t.Errorf("%d tokens of 640", n)
		}
		h, _ := r.Holder(0)
		r.index.Clear(h)
		if n := inGPU(t, r, prompt(1, 640), 3*time.Second); n != 0 {
			t.Errorf("%d tokens after a restart", n)
		}
	})
}

// Neither a rank that is gone nor the one that has its number by now gets what waited for it.
func TestPredictionsLeaveWithTheirRank(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := silentFeed(t)
		ask(t, r, free(prompt(1, 640)))
		if _, err := r.Remove(0); err != nil {
			t.Fatal(err)
		}
		spec := rank(1)
		spec.Events = &registry.Events{Endpoint: "ipc:///nobody/publishes/here/either"}
		add(t, r, spec)
		ask(t, r, free(prompt(2, 640)))
		if n := inGPU(t, r, prompt(1, 640), 10*time.Second); n != 0 {
			t.Errorf("%d tokens of a rank that is gone", n)
		}
		if n := inGPU(t, r, prompt(2, 640), 10*time.Second); n != 640 {
			t.Errorf("%d tokens of 640", n)
		}
	})
}
