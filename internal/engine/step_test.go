package engine

import (
	"context"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/internal/engine/model"
)

// The connector has to live with a step that it is told of before the blocks of the one in
// front are computed and saved: the fake plans to save those again.
func TestOverlappingStepIsToldBeforeTheOneInFrontIsSaved(t *testing.T) {
	q := Request{ID: "a", Prompt: prompt(16, 70), MaxTokens: 1}
	for overlap, want := range map[bool]string{
		false: `match a computed 0: 0
step preempted [] finished []
  alloc a computed 0 external 0
  scheduled a reset true computed 0 count 40
save 2
step preempted [] finished []
  scheduled a reset false computed 40 count 30
save 2
step preempted [] finished [a]`,
		true: `match a computed 0: 0
step preempted [] finished []
  alloc a computed 0 external 0
  scheduled a reset true computed 0 count 40
step preempted [] finished []
  scheduled a reset false computed 40 count 30
save 2
step preempted [] finished []
save 4
step preempted [] finished [a]`,
	} {
		e := newEngine(t, func(o *Options) { o.MaxBatchedTokens, o.Overlap = 40, overlap })
		f := newFake(t, e, newStore())
		f.logged = true
		check(t, run(t, e, q)[0], alone(t, q))
		if got := strings.Join(f.calls, "\n"); got != want {
			t.Errorf("overlap %t: calls\n%s\nwant\n%s", overlap, got, want)
		}
	}
}

// Without that, KV that a connector says it has loaded and did not write could be what the
// block's last owner left: the right bytes, by chance.
func TestBlocksThatAreHandedOutHoldNoKV(t *testing.T) {
	for _, change := range []func(*Options){nil, func(o *Options) { o.Model, o.TensorParallel = model.TinyHybrid(7), 2 }} {
		e := newEngine(t, change, func(o *Options) { o.MaxBatchedTokens = 4 })
		for _, m := range e.memories {
			for i := range m.floats {
				m.floats[i] = 1
			}
		}
		if err := e.Submit(Request{ID: "a", Prompt: prompt(3, 20), MaxTokens: 1}); err != nil {
			t.Fatal(err)
		}
		step(t, e)
		for rank, m := range e.memories {
			for g, table := range e.running[0].blocks {
				for i := range m.shard.layers(&e.opts.Model.Groups()[g]) {
					page := m.page(i, table[0])
					if slices.Contains(page, 1) || !slices.ContainsFunc(page, func(x float32) bool { return math.IsNaN(float64(x)) }) {
						t.Errorf("rank %d: layer %d of group %d has what was there before", rank, i, g)
					}
				}
			}
		}
	}
}

// allocWatch notes how many blocks allocations have.
type allocWatch struct {
	*fakeConnector
	blocks []int
}

func (a *allocWatch) Step(ctx context.Context, m *connector.StepRequest) connector.StepReply {
	for i := range m.Allocs {
		a.blocks = append(a.blocks, len(m.Allocs[i].Blocks[0]))
	}
	return a.fakeConnector.Step(ctx, m)
}

// The two managers of TensorRT-LLM differ in what an allocation tells of a prompt that is
// computed in chunks.
func TestAllocationsAreOfTheWholePromptOrFollowTheChunks(t *testing.T) {
	q := Request{ID: "a", Prompt: prompt(16, 70), MaxTokens: 1}
	for whole, want := range map[bool]int{false: 3, true: 5} {
		e := newEngine(t, func(o *Options) { o.Order, o.MaxBatchedTokens, o.TensorRT.AllocatePrompt = TensorRTLLM, 40, whole })
		f := newFake(t, e, newStore())
		w := &allocWatch{fakeConnector: f}
		e.Attach(w, f.workers[0])
		check(t, run(t, e, q)[0], alone(t, q))
		if !slices.Equal(w.blocks, []int{want}) {
			t.Errorf("whole prompt %t: allocations of %d blocks, want one of %d", whole, w.blocks, want)
		}
	}
}

// Where a block of a window fails, the tokens before it may have no window of their own.
func TestFailureOfAnyBlockOfAHybridModelIsRecomputed(t *testing.T) {
	hybrid := func(o *Options) { o.Model = model.TinyHybrid(7) }
	q := Request{ID: "a", Prompt: prompt(6, 150), MaxTokens: generated}
	want, store := alone(t, q, hybrid), filled(t, q, hybrid)
	for bad := range 9 {
		e := newEngine(t, hybrid, func(o *Options) { o.MaxBatchedTokens = 40 })
		newFake(t, e, store).fail = func(_ string, _, i int) bool { return i == bad }
		check(t, run(t, e, q)[0], want)
	}
}

// Ranks may end a load at different times; each does so once.
func TestLoadThatOneOfTwoRanksReportsTwiceEndsTheRun(t *testing.T) {
	two := func(o *Options) { o.TensorParallel = 2 }
	q := Request{ID: "a", Prompt: prompt(17, 64), MaxTokens: 3}
	store := filled(t, q, two)
	e := newEngine(t, two)
	f := newFake(t, e, store)
	twice := &brokenWorker{f.workers[0], func(l []connector.FinishedLoad) []connector.FinishedLoad { return append(l, l...) }}
	e.Attach(f, twice, f.workers[1])
	if _, err := e.Run(t.Context(), []Request{q}); err == nil || !strings.Contains(err.Error(), "rank 0: connector reports a load") {
		t.Errorf("error %v, want that of the rank", err)
	}
}
