package engine

import (
	"strings"
	"testing"
)

// a is loaded into 9 of the 19 blocks while b, which is computed in chunks, needs 13 of them.
func TestTheFirstRunningRequestKeepsItsBlocksFromLoads(t *testing.T) {
	a := Request{ID: "a", Prompt: prompt(16, 160), MaxTokens: generated}
	b := Request{ID: "b", Prompt: prompt(17, 180), MaxTokens: generated, NoLoad: true}
	store := filled(t, a)
	for name, polls := range map[string]int{"a waits for room": 1, "a still loads": 40} {
		t.Run(name, func(t *testing.T) {
			e := newEngine(t, func(o *Options) { o.Blocks, o.MaxBatchedTokens = 20, 22 })
			newFake(t, e, store).polls = polls
			got := run(t, e, a, b)
			check(t, got[0], alone(t, a))
			check(t, got[1], alone(t, b))
			if got[0].Preemptions != 1 || got[1].Preemptions > 0 {
				t.Errorf("a gave way %d times, b %d times", got[0].Preemptions, got[1].Preemptions)
			}
		})
	}
}

func TestRequestsThatTakeTurnsWithoutATokenEndTheRun(t *testing.T) {
	e, _ := newTensorRT(t, newStore(), func(o *Options) { o.TensorRT.DropBatch = func(int) bool { return true } })
	e.barren = maxBarren - 5
	if _, err := e.Run(t.Context(), []Request{{ID: "a", Prompt: prompt(1, 20), MaxTokens: 1}}); err == nil || !strings.Contains(err.Error(), "not one token") {
		t.Errorf("error %v", err)
	}
}

// The blocks of a load that cannot be cancelled are not given out again.
func TestRequestsForWhichBlocksAreLeftNoMoreEndTheRun(t *testing.T) {
	a := Request{ID: "a", Prompt: prompt(16, 160), MaxTokens: generated}
	for name, b := range map[string]Request{
		"waiting": {ID: "b", Prompt: prompt(17, 180), MaxTokens: 1},
		"running": {ID: "b", Prompt: prompt(17, 40), MaxTokens: 180},
	} {
		t.Run(name, func(t *testing.T) {
			e := newEngine(t, func(o *Options) { o.Blocks = 20 })
			f := newFake(t, e, filled(t, a))
			f.polls = 1 << 30
			e.Attach(f, struct{ WorkerConnector }{f.workers[0]})
			if err := e.Submit(a); err != nil {
				t.Fatal(err)
			}
			step(t, e)
			if ok, err := e.Cancel(t.Context(), "a"); !ok || err == nil {
				t.Fatalf("cancelled: %t, %v", ok, err)
			}
			if _, err := e.Run(t.Context(), []Request{b}); err == nil || !strings.Contains(err.Error(), "10 of 19 blocks") && !strings.Contains(err.Error(), "0 of 19 blocks") {
				t.Errorf("error %v", err)
			}
		})
	}
}
