package integration

import (
	"context"
	"fmt"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/internal/daemon"
	"github.com/kvconn/kvconn/internal/engine"
	"github.com/kvconn/kvconn/internal/testkit/storetest"
	"github.com/kvconn/kvconn/store/disk"
)

// A lease that runs out between match and load lets the records go. An engine that can take
// a failed load recomputes; one that cannot has everything in staging memory already.
func TestLeaseThatExpiresBetweenMatchAndLoadCostsTheHitAtMost(t *testing.T) {
	t.Parallel()
	for _, v := range []struct {
		variant
		loses bool
	}{
		{variant{"vLLM", func(*engine.Options) {}}, true},
		{variant{"TensorRT-LLM", tensorRT}, false},
	} {
		t.Run(v.name, func(t *testing.T) {
			ps := prompts(130, 1)
			want := reference(t, v.change, ps)
			n, _, restart := onDisk(t, func(o *daemon.Options) {
				under := o.Store
				o.MaxBytes = disk.MinMaxBytes
				o.NoPrefetch = true // what is offered would be in the host tier before it is evicted
				o.Store = func(s disk.Options) disk.Options {
					s.LeaseMax = time.Millisecond
					return under(s)
				}
			})
			var tr trigger
			e := newInstanceWith(t, n, setup{engine: v.change, at: tr.at})
			same(t, "first run", e.run("first", ps), want)
			n.saved()
			restart()                      // what is in the host tier outlives the record
			e.run("back", prompts(131, 1)) // a staged engine's ranks come back in its next step
			n.saved()
			other := newInstance(t, n, nil)
			tr.arm(atOffer, func() {
				records := n.status().Store
				n.wait("the lease to run out", func() bool { return n.status().Store.Leases == 0 })
				for round := 0; n.status().Store.Evicted < uint64(records.Records); round++ {
					other.run(fmt.Sprint("pressure", round), prompts(200+round, 8))
					n.saved()
				}
			})
			got := e.run("second", ps)
			same(t, "second run", got, want)
			if lost := recomputed(got) > 0; tr.point != "" || lost != v.loses {
				t.Errorf("%d tokens cached, %d recomputed; point reached: %t", cached(got), recomputed(got), tr.point == "")
			}
		})
	}
}

// A small pool preempts requests while their blocks are still being written.
func TestPreemptionDuringSavesChangesNoToken(t *testing.T) {
	t.Parallel()
	for _, v := range []variant{
		{"vLLM", nil},
		{"vLLM, overlapping steps", func(o *engine.Options) { o.Overlap = true }},
		{"vLLM, hybrid", hybrid},
		{"TensorRT-LLM", tensorRT},
	} {
		t.Run(v.name, func(t *testing.T) {
			small := func(o *engine.Options) {
				if v.change != nil {
					v.change(o)
				}
				o.Blocks, o.MaxBatchedTokens = 45*len(o.Model.Groups()), 48
			}
			requests := func(name string) []engine.Request {
				q := requestsOf(name, prompts(131, 5))
				for k := range q {
					q[k].MaxTokens = 40 // for which there is no room in all of them
				}
				return q
			}
			want := newInstance(t, nil, v.change).serve(requests("reference")...)
			n, d, _ := onDisk(t, nil)
			d.Hook(func(op storetest.Op) error {
				if op.Kind == storetest.Write {
					time.Sleep(slowRead / 20)
				}
				return nil
			})
			e := newInstance(t, n, small)
			preempted := 0
			for round := range 2 {
				got := e.serve(requests(fmt.Sprint("round", round))...)
				same(t, fmt.Sprintf("round %d", round), got, want)
				for _, r := range got {
					preempted += r.Preemptions
				}
			}
			if preempted == 0 {
				t.Error("nothing was preempted")
			}
			n.saved()
			fresh := newInstance(t, n, v.change)
			got := fresh.serve(requests("fresh")...)
			same(t, "another engine", got, want)
			if cached(got) == 0 {
				t.Error("nothing of what was saved serves another engine")
			}
		})
	}
}

// holdReads keeps the disk's reads from ending until release is called.
func holdReads(d *storetest.Disk) (release func()) {
	held := make(chan struct{})
	d.Hook(func(op storetest.Op) error {
		if op.Kind == storetest.Read {
			<-held
		}
		return nil
	})
	return sync.OnceFunc(func() { d.Hook(nil); close(held) })
}

// A request that is aborted while its load runs keeps its blocks until the load has ended;
// one that is cancelled gives them back at once, and nothing is written to them any more.
func TestAbortDuringALoadHurtsNoOtherRequest(t *testing.T) {
	t.Parallel()
	for name, abort := range map[string]func(t *testing.T, e *engine.Engine, id string, tr *trigger, release func()){
		"aborted": func(t *testing.T, e *engine.Engine, id string, tr *trigger, release func()) {
			if !e.Abort(id) {
				t.Error("there is no such request")
			}
			release()
		},
		"cancelled": func(t *testing.T, e *engine.Engine, id string, tr *trigger, release func()) {
			if ok, err := e.Cancel(t.Context(), id); !ok || err != nil {
				t.Errorf("cancelled: %t, %v", ok, err)
			}
			tr.arm(atSaving, release) // while others use the blocks
		},
		"started over": func(t *testing.T, e *engine.Engine, id string, tr *trigger, release func()) {
			if !e.Restart(id) {
				t.Error("there is no such request")
			}
			release()
		},
	} {
		t.Run(name, func(t *testing.T) {
			// Room for little more than one prompt: the next uses the same blocks.
			change := func(o *engine.Options) { o.Blocks = 40 }
			ps, others := prompts(132, 1), prompts(133, 3)
			want, wantOthers := reference(t, nil, ps), reference(t, nil, others)
			n, d, restart := onDisk(t, nil)
			var tr trigger
			e := newInstanceWith(t, n, setup{engine: change, at: tr.at})
			same(t, "first run", e.run("first", ps), want)
			n.saved()
			restart()
			release := holdReads(d)
			defer release()
			q := requestsOf("held", ps)[0]
			if err := e.Submit(q); err != nil {
				t.Fatal(err)
			}
			n.wait("the load to run", func() bool {
				if _, _, err := e.Step(t.Context()); err != nil {
					t.Fatal(err)
				}
				return n.status().Queues.LoadsInFlight > 0
			})
			abort(t, e.Engine, q.ID, &tr, release)
			same(t, "others", e.run("others", others), wantOthers)
			if tr.point != "" {
				t.Error("the read did not end while others used the blocks")
			}
			same(t, "again", e.run("again", ps), want)
			e.close()
			n.waitLetGo()
		})
	}
}

func TestFullPromptHitLeavesTheLastTokenToCompute(t *testing.T) {
	t.Parallel()
	for _, v := range variants() {
		t.Run(v.name, func(t *testing.T) {
			n, _, _ := onDisk(t, nil)
			p := prompts(134, 1)[0]
			p = p[:len(p)/8*8]
			for _, tokens := range []int{len(p), len(p) - 1, len(p) - 7, 9, 8, 7} {
				ps := [][]uint32{p[:tokens]}
				want := reference(t, v.change, ps)
				for round, hit := range []int{-1, whole(ps[0], 8)} {
					e := newInstance(t, n, v.change)
					got := e.run(fmt.Sprint(tokens), ps)
					same(t, fmt.Sprintf("%d tokens, run %d", tokens, round), got, want)
					if hit >= 0 && got[0].CachedTokens != hit {
						t.Errorf("%d tokens: %d from the cache, want %d", tokens, got[0].CachedTokens, hit)
					}
					n.saved()
					e.close()
				}
			}
		})
	}
}

// An engine that has computed a part of a block is offered nothing.
func TestComputedTokensThatEndInsideABlockAreNotBuiltOn(t *testing.T) {
	t.Parallel()
	change := func(o *engine.Options) { o.PrefixCaching, o.PartialReuse = true, true }
	n, _, _ := onDisk(t, nil)
	p := prompts(135, 1)[0]
	ps := [][]uint32{p[:len(p)/8*8]}
	want := reference(t, change, ps)
	e := newInstance(t, n, change)
	same(t, "first run", e.run("first", ps), want)
	n.saved()
	got := e.run("second", ps)
	same(t, "second run", got, want)
	if r := got[0]; r.LocalCachedTokens != len(ps[0])-1 || r.CachedTokens != 0 {
		t.Errorf("%d tokens of its own and %d from the cache, want %d and 0", r.LocalCachedTokens, r.CachedTokens, len(ps[0])-1)
	}
	e.Reset(t.Context())
	got = e.run("after a reset", ps)
	same(t, "after a reset", got, want)
	if r := got[0]; r.LocalCachedTokens != 0 || r.CachedTokens != whole(ps[0], 8) {
		t.Errorf("after a reset: %d tokens of its own and %d from the cache, want 0 and %d", r.LocalCachedTokens, r.CachedTokens, whole(ps[0], 8))
	}
}

// unaligned tells the daemon of a few more tokens than the engine has in whole blocks, as an
// engine does that has reused a part of a block and could go on after it.
type unaligned struct{ engine.SchedulerClient }

func (u unaligned) Match(ctx context.Context, m *connector.MatchRequest) connector.Offer {
	within := *m
	within.Computed += 3
	return u.SchedulerClient.Match(ctx, &within)
}

func TestNothingIsOfferedBehindAPartOfABlock(t *testing.T) {
	t.Parallel()
	for _, v := range []variant{{"vLLM", nil}, {"TensorRT-LLM", tensorRT}} {
		t.Run(v.name, func(t *testing.T) {
			change := func(o *engine.Options) {
				if v.change != nil {
					v.change(o)
				}
				o.PrefixCaching = true
			}
			n, _, _ := onDisk(t, nil)
			p := prompts(137, 1)[0]
			want := reference(t, change, [][]uint32{p})
			first := newInstance(t, n, change)
			same(t, "first run", first.run("first", [][]uint32{p}), want)
			n.saved()
			e := newInstance(t, n, change)
			half := [][]uint32{p[:len(p)/2]} // what the engine has itself of the whole
			e.run("half", half)
			o := engineOptions(change)
			scheduler, err := engine.NewSchedulerClient(clientOptions(n.socket, "unaligned", e.Engine, &o))
			if err != nil {
				t.Fatal(err)
			}
			defer scheduler.Close()
			w, err := engine.NewWorkerClient(clientOptions(n.socket, "unaligned", e.Engine, &o), 0, e.Layout(0), []*os.File{e.File(0)})
			if err != nil {
				t.Fatal(err)
			}
			defer w.Close()
			if err := w.Connect(t.Context()); err != nil {
				t.Fatal(err)
			}
			e.Attach(unaligned{scheduler}, w)
			got := e.run("whole", [][]uint32{p})
			same(t, "after a part of a block", got, want)
			if r := got[0]; r.LocalCachedTokens == 0 || r.CachedTokens+r.RecomputedTokens > 0 {
				t.Errorf("after %d tokens of its own: %d tokens offered, want none", r.LocalCachedTokens, r.CachedTokens+r.RecomputedTokens)
			}
			e.Attach(scheduler, w)
			e.Reset(t.Context())
			e.run("half again", half)
			got = e.run("whole again", [][]uint32{p})
			same(t, "after whole blocks", got, want)
			if r := got[0]; r.LocalCachedTokens+r.CachedTokens != whole(p, 8) || r.CachedTokens == 0 {
				t.Errorf("after %d tokens of its own: %d tokens offered", r.LocalCachedTokens, r.CachedTokens)
			}
		})
	}
}

// Content that placeholders stand for, the adapter and the tenant separate equal tokens.
func TestEqualTokensOfOtherContentAreNoHit(t *testing.T) {
	t.Parallel()
	n, _, _ := onDisk(t, nil)
	p := prompts(136, 1)[0]
	alone, e := newInstance(t, nil, nil), newInstance(t, n, nil)
	span := func(id string) func(*engine.Request) {
		return func(q *engine.Request) { q.Spans = []connector.Span{{Start: 10, End: 40, ID: []byte(id)}} }
	}
	for i, change := range []func(*engine.Request){
		func(*engine.Request) {},
		func(q *engine.Request) { q.Scope.LoRA = "adapter" },
		func(q *engine.Request) { q.Scope.LoRA = "ADAPTER" },
		func(q *engine.Request) { q.Scope.Salt = "tenant" },
		func(q *engine.Request) { q.Scope.Salt, q.Scope.LoRA = "tenant", "adapter" },
		span("image a"),
		span("image b"),
	} {
		q := engine.Request{ID: fmt.Sprint(i), Prompt: p, MaxTokens: generated}
		change(&q)
		want := alone.serve(q)
		for round := range 2 {
			q.ID = fmt.Sprintf("%d-%d", i, round)
			got := e.serve(q)
			same(t, q.ID, got, want)
			n.saved()
			hit := []int{0, whole(p, 8)}[round]
			if len(q.Spans) > 0 && round == 0 {
				hit = 8 // what comes before the image is the same
			}
			if got[0].CachedTokens != hit {
				t.Errorf("request %s: %d tokens from the cache, want %d", q.ID, got[0].CachedTokens, hit)
			}
		}
	}
}
