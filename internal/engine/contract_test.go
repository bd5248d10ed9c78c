package engine

import (
	"context"
	"strings"
	"testing"

	"github.com/kvconn/kvconn/connector"
)

func TestConnectorIsCalledInVLLMsOrder(t *testing.T) {
	q := Request{ID: "a", Prompt: prompt(16, 70), MaxTokens: 12}
	e := newEngine(t, func(o *Options) { o.MaxBatchedTokens, o.PrefixCaching = 40, true })
	f := newFake(t, e, newStore())
	f.logged = true
	run(t, e, Request{ID: "cold", Prompt: q.Prompt, MaxTokens: 2})
	// Another engine on the same store; the last block of the load fails.
	e = newEngine(t, func(o *Options) { o.MaxBatchedTokens = 40 })
	g := newFake(t, e, f.store)
	g.logged = true
	g.fail = func(_ string, _, i int) bool { return i == 3 }
	run(t, e, q)
	got := strings.Join(append(f.calls, g.calls[:15]...), "\n")
	want := `match cold computed 0: 0
step preempted [] finished []
  alloc cold computed 0 external 0
  scheduled cold reset true computed 0 count 40
save 2
step preempted [] finished []
  scheduled cold reset false computed 40 count 30
save 2
step preempted [] finished []
  scheduled cold reset false computed 70 count 1
step preempted [] finished [cold]
match a computed 0: 64
step preempted [] finished []
  alloc a computed 0 external 64
load
step preempted [] finished []
poll 1
loaded [a] invalid blocks 1
step preempted [] finished []
  alloc a computed 48 external 0
  scheduled a reset true computed 48 count 22
step preempted [] finished []
  scheduled a reset false computed 70 count 1
step preempted [] finished []
  scheduled a reset false computed 71 count 1
step preempted [] finished []`
	if got != want {
		t.Errorf("calls\n%s\nwant\n%s", got, want)
	}
}

// brokenConnector is a fakeConnector that breaks one rule.
type brokenConnector struct {
	*fakeConnector
	match func(connector.Offer) connector.Offer
	step  func(connector.StepReply) connector.StepReply
}

// brokenWorker is a fakeWorker that breaks one rule.
type brokenWorker struct {
	*fakeWorker
	poll func([]connector.FinishedLoad) []connector.FinishedLoad
}

func (b *brokenConnector) Match(ctx context.Context, m *connector.MatchRequest) connector.Offer {
	return b.match(b.fakeConnector.Match(ctx, m))
}

func (b *brokenConnector) Step(ctx context.Context, m *connector.StepRequest) connector.StepReply {
	return b.step(b.fakeConnector.Step(ctx, m))
}

func (b *brokenWorker) Poll(ctx context.Context) []connector.FinishedLoad {
	return b.poll(b.fakeWorker.Poll(ctx))
}

func TestConnectorThatBreaksTheContractEndsTheRun(t *testing.T) {
	q := Request{ID: "a", Prompt: prompt(17, 64), MaxTokens: 3}
	store := filled(t, q)
	for name, x := range map[string]struct {
		breakIt func(b *brokenConnector, w *brokenWorker)
		want    string
	}{
		"offer of the last token": {func(b *brokenConnector, w *brokenWorker) {
			b.match = func(connector.Offer) connector.Offer { return connector.Offer{Tokens: 64, Async: true} }
		}, "offers 64 tokens"},
		"asynchronous offer of nothing": {func(b *brokenConnector, w *brokenWorker) {
			b.match = func(connector.Offer) connector.Offer { return connector.Offer{Async: true} }
		}, "nothing asynchronously"},
		"load of fewer blocks": {func(b *brokenConnector, w *brokenWorker) {
			b.step = func(r connector.StepReply) connector.StepReply {
				for i := range r.Loads {
					r.Loads[i].Blocks = r.Loads[i].Blocks[1:]
				}
				return r
			}
		}, "waits for 3 blocks"},
		"load of a stranger": {func(b *brokenConnector, w *brokenWorker) {
			b.step = func(r connector.StepReply) connector.StepReply {
				r.Loads = append(r.Loads, connector.PlannedLoad{Request: "stranger"})
				return r
			}
		}, "waits for nothing"},
		"offer without a load": {func(b *brokenConnector, w *brokenWorker) {
			b.step = func(r connector.StepReply) connector.StepReply { return connector.StepReply{Metadata: r.Metadata} }
		}, "load planned: false"},
		"load that ends twice": {func(b *brokenConnector, w *brokenWorker) {
			w.poll = func(l []connector.FinishedLoad) []connector.FinishedLoad { return append(l, l...) }
		}, "none in flight"},
		"failure of somebody else's block": {func(b *brokenConnector, w *brokenWorker) {
			w.poll = func(l []connector.FinishedLoad) []connector.FinishedLoad {
				for i := range l {
					l[i].FailedBlocks = []uint32{77}
				}
				return l
			}
		}, "block 77"},
	} {
		t.Run(name, func(t *testing.T) {
			e := newEngine(t, nil)
			f := newFake(t, e, store)
			b := &brokenConnector{
				fakeConnector: f,
				match:         func(o connector.Offer) connector.Offer { return o },
				step:          func(r connector.StepReply) connector.StepReply { return r },
			}
			w := &brokenWorker{f.workers[0], func(l []connector.FinishedLoad) []connector.FinishedLoad { return l }}
			x.breakIt(b, w)
			e.Attach(b, w)
			if _, err := e.Run(t.Context(), []Request{q}); err == nil || !strings.Contains(err.Error(), x.want) {
				t.Errorf("error %v, want one with %q", err, x.want)
			}
		})
	}
}
