package engine

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/kvconn/kvconn/internal/engine/model"
)

// newTensorRT returns an engine in TensorRT-LLM's order, with a logging fake.
func newTensorRT(t *testing.T, store fakeStore, change func(*Options)) (*Engine, *fakeConnector) {
	t.Helper()
	e := newEngine(t, func(o *Options) { o.Order = TensorRTLLM }, change)
	f := newFake(t, e, store)
	f.logged = true
	return e, f
}

func TestConnectorIsCalledInTensorRTLLMsOrder(t *testing.T) {
	q := Request{ID: "a", Prompt: prompt(16, 70), MaxTokens: 2}
	store := filled(t, Request{ID: "head", Prompt: q.Prompt[:64], MaxTokens: 1})
	for name, x := range map[string]struct {
		change func(*Options)
		sync   bool
		want   string
	}{
		"asynchronous: absent while it loads, appears once": {nil, false, `match a computed 0: 64
step preempted [] finished []
  alloc a computed 0 external 64
load
step preempted [] finished []
poll 1
loaded [a] invalid blocks 0
step preempted [] finished []
  scheduled a reset true computed 64 count 6
step preempted [] finished []
  scheduled a reset false computed 70 count 1
step preempted [] finished [a]`},
		"synchronous: computed in the same step": {nil, true, `match a computed 0: 64
step preempted [] finished []
  alloc a computed 0 external 64
  scheduled a reset true computed 64 count 6
load
poll 1
loaded [a] invalid blocks 0
step preempted [] finished []
  scheduled a reset false computed 70 count 1
step preempted [] finished [a]`},
		"computed position without what is loaded": {func(o *Options) { o.TensorRT.DeviceComputed = true }, true, `match a computed 0: 64
step preempted [] finished []
  alloc a computed 0 external 64
  scheduled a reset true computed 0 count 6
load
poll 1
loaded [a] invalid blocks 0
step preempted [] finished []
  scheduled a reset false computed 70 count 1
step preempted [] finished [a]`},
		"offer that is not honoured": {func(o *Options) { o.TensorRT.Honour = func(string, int) int { return 15 } }, true, `match a computed 0: 64
step preempted [] finished []
  alloc a computed 0 external 0
  scheduled a reset true computed 0 count 70
step preempted [] finished []
  scheduled a reset false computed 70 count 1
step preempted [] finished [a]`},
		"load that is thrown away": {func(o *Options) { o.TensorRT.Discard = func(string) bool { return true } }, false, `match a computed 0: 64
step preempted [] finished []
  alloc a computed 0 external 64
load
step preempted [] finished []
poll 1
loaded [a] invalid blocks 0
step preempted [] finished []
  scheduled a reset true computed 0 count 70
step preempted [] finished []
  scheduled a reset false computed 70 count 1
step preempted [] finished [a]`},
		"batch that is dropped": {func(o *Options) { o.TensorRT.DropBatch = func(step int) bool { return step == 1 } }, true, `match a computed 0: 64
step preempted [] finished []
  alloc a computed 0 external 64
  scheduled a reset true computed 64 count 6
load
poll 1
loaded [a] invalid blocks 0
match a computed 0: 64
step preempted [a] finished []
  alloc a computed 0 external 64
  scheduled a reset true computed 64 count 6
load
poll 1
loaded [a] invalid blocks 0
step preempted [] finished []
  scheduled a reset false computed 70 count 1
step preempted [] finished [a]`},
	} {
		t.Run(name, func(t *testing.T) {
			e, f := newTensorRT(t, store, x.change)
			f.sync = x.sync
			check(t, run(t, e, q)[0], alone(t, q))
			if got := strings.Join(f.calls, "\n"); got != x.want {
				t.Errorf("calls\n%s\nwant\n%s", got, x.want)
			}
		})
	}
}

func TestFailedLoadEndsAnEngineThatCannotReportIt(t *testing.T) {
	q := Request{ID: "a", Prompt: prompt(6, 150), MaxTokens: generated}
	store := filled(t, q)
	for _, sync := range []bool{false, true} {
		e, f := newTensorRT(t, store, nil)
		f.sync = sync
		f.fail = func(_ string, _, i int) bool { return i == 5 }
		if _, err := e.Run(t.Context(), []Request{q}); !errors.Is(err, ErrLoadFailed) {
			t.Errorf("synchronous %t: error %v", sync, err)
		}
	}
}

func TestPartOfAnOfferIsHonoured(t *testing.T) {
	q := Request{ID: "a", Prompt: prompt(6, 150), MaxTokens: generated}
	hybrid := func(o *Options) { o.Model = model.TinyHybrid(7) }
	store, want := filled(t, q, hybrid), alone(t, q, hybrid)
	for _, sync := range []bool{false, true} {
		for _, honoured := range []int{0, 1, 4, 9} {
			e, f := newTensorRT(t, store, func(o *Options) {
				hybrid(o)
				o.TensorRT.Honour = func(_ string, offered int) int { return offered * honoured / 9 }
			})
			f.sync = sync
			// A window before the offered boundary is stored here, too: else an engine
			// that takes less than offered would wait for blocks that nobody has.
			r := run(t, e, q)[0]
			check(t, r, want)
			if r.CachedTokens != 16*honoured {
				t.Errorf("%d tokens loaded, want %d", r.CachedTokens, 16*honoured)
			}
		}
	}
}

func TestMatchIsAskedOncePerAllocation(t *testing.T) {
	var requests []Request
	for i := range 6 {
		requests = append(requests, Request{ID: string(rune('a' + i)), Prompt: prompt(uint64(i), 150), MaxTokens: generated})
	}
	for _, whole := range []bool{false, true} {
		// Room for two requests.
		e, f := newTensorRT(t, newStore(), func(o *Options) { o.Blocks, o.MaxBatchedTokens, o.TensorRT.AllocatePrompt = 24, 60, whole })
		preemptions := 0
		for i, r := range run(t, e, requests...) {
			check(t, r, alone(t, requests[i]))
			preemptions += r.Preemptions
		}
		allocs := slices.DeleteFunc(slices.Clone(f.calls), func(c string) bool { return !strings.HasPrefix(c, "  alloc") })
		if got := len(matches(f.calls)); got != len(allocs) || got != len(requests)+preemptions {
			t.Errorf("whole prompt %t: %d matches, %d allocations for %d requests, %d preemptions", whole, got, len(allocs), len(requests), preemptions)
		}
	}
}

func TestRestartedRequestReplaysAsNew(t *testing.T) {
	q := Request{ID: "a", Prompt: prompt(6, 150), MaxTokens: generated}
	want := alone(t, q)
	store := filled(t, q)
	for name, steps := range map[string]int{"before it is admitted": 0, "while it loads": 1, "while it runs": 7} {
		e, f := newTensorRT(t, store, nil)
		if err := e.Submit(q); err != nil {
			t.Fatal(err)
		}
		for range steps {
			step(t, e)
		}
		if !e.Restart("a") || e.Restart("b") {
			t.Errorf("%s: Restart does not know the request", name)
		}
		for e.Busy() {
			for _, r := range step(t, e) {
				check(t, r, want)
			}
		}
		if !slices.Contains(f.calls, "step preempted [a] finished []") || e.pool.free != e.opts.Blocks-1 {
			t.Errorf("%s: %d blocks are free, calls %q", name, e.pool.free, f.calls)
		}
	}
}

func TestCancelTakesTheBlocksBackAtOnce(t *testing.T) {
	q := Request{ID: "a", Prompt: prompt(6, 150), MaxTokens: generated}
	next := Request{ID: "b", Prompt: prompt(14, 150), MaxTokens: generated}
	e := newEngine(t, func(o *Options) { o.TensorParallel = 2 })
	f := newFake(t, e, filled(t, q, func(o *Options) { o.TensorParallel = 2 }))
	f.polls = 50
	if err := e.Submit(q); err != nil {
		t.Fatal(err)
	}
	step(t, e)
	if ok, err := e.Cancel(t.Context(), "a"); !ok || err != nil {
		t.Fatalf("cancelled: %t, error %v", ok, err)
	}
	if e.pool.free != e.opts.Blocks-1 {
		t.Errorf("%d of %d blocks are free", e.pool.free, e.opts.Blocks-1)
	}
	check(t, run(t, e, next)[0], alone(t, next))
	if ok, err := e.Cancel(t.Context(), "a"); ok || err != nil {
		t.Errorf("cancelled again: %t, error %v", ok, err)
	}
}

func TestSynchronousLoadThatFailsIsRecomputedInVLLMsOrder(t *testing.T) {
	q := Request{ID: "a", Prompt: prompt(6, 150), MaxTokens: generated}
	for _, change := range []func(*Options){nil, func(o *Options) { o.Model = model.TinyHybrid(7) }} {
		store := filled(t, q, change)
		want := alone(t, q, change)
		for _, bad := range []int{0, 4, 8} {
			e := newEngine(t, change, func(o *Options) { o.PrefixCaching, o.MaxBatchedTokens = true, 40 })
			f := newFake(t, e, store)
			f.sync = true
			f.fail = func(_ string, _, i int) bool { return i == bad }
			check(t, run(t, e, q)[0], want)
			q := q
			q.ID = "b"
			check(t, run(t, e, q)[0], want)
		}
	}
}
