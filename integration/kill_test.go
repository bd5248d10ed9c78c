package integration

import (
	"fmt"
	"testing"

	"github.com/kvconn/kvconn/internal/engine"
	"github.com/kvconn/kvconn/internal/engine/model"
)

// variant is a kind of engine.
type variant struct {
	name   string
	change func(*engine.Options)
}

func tensorRT(o *engine.Options) { o.Order = engine.TensorRTLLM }

func hybrid(o *engine.Options) { o.Model = model.TinyHybrid(1) }

// variants are the engines that everything has to hold for.
func variants() []variant {
	return []variant{
		{"vLLM", func(*engine.Options) {}},
		{"vLLM, overlapping steps", func(o *engine.Options) { o.Overlap = true }},
		{"vLLM, synchronous loads, hybrid model", func(o *engine.Options) { hybrid(o); o.SyncLoads, o.MaxBatchedTokens = true, 64 }},
		{"TensorRT-LLM", tensorRT},
		{"TensorRT-LLM, two ranks, hybrid model", func(o *engine.Options) { tensorRT(o); hybrid(o); o.TensorParallel = 2 }},
	}
}

// trigger does something once, at a point of an engine's step.
type trigger struct {
	point string
	do    func()
}

func (tr *trigger) at(point string) {
	if tr.point == point {
		tr.point = ""
		tr.do()
	}
}

func (tr *trigger) arm(point string, do func()) { tr.point, tr.do = point, do }

// Wherever the daemon is killed, and whether or not it comes back, the engine's answers
// stay the same, and one that cannot take a failed load sees none.
func TestDaemonKilledAtAnyPointChangesNoToken(t *testing.T) {
	t.Parallel()
	points := []string{atMatch, atOffer, atPlanned, atLoading, atSave, atSaving, atPoll}
	for i, v := range variants() {
		t.Run(v.name, func(t *testing.T) {
			if !long() && (i%2 == 1 || testing.Short() && i == 2) {
				t.Skip("KVCONN_TEST_LONG=1 runs it")
			}
			ps := prompts(60, 2+2*len(points))
			want := reference(t, v.change, ps)
			n := newMemoryNode(t)
			n.start()
			var tr trigger
			e := newInstanceWith(t, n, setup{engine: v.change, at: tr.at})
			known, fresh := ps[:2], ps[2:]
			same(t, "first run", e.run("first", known), want[:2])
			n.waitDurable(e)
			for k, point := range points {
				for back := range 2 {
					if !long() && back != k%2 {
						continue
					}
					i := 2*k + back
					name := fmt.Sprintf("killed %s, comes back: %d", point, back)
					tr.arm(point, func() {
						n.kill()
						if back == 1 {
							n.start()
						}
					})
					asked := append(known[:2:2], fresh[i])
					same(t, name, e.run(name, asked), append(want[:2:2], want[2+i]))
					if tr.point != "" {
						t.Errorf("%s: the point was not reached", name)
					}
					if n.cmd == nil {
						n.start()
					}
					// A staged engine is offered nothing before its ranks have come back, which
					// takes them a step.
					for try := 0; ; try++ {
						got := e.run(fmt.Sprintf("%s, again %d", name, try), known)
						same(t, name+", again", got, want[:2])
						if cached(got) > 0 {
							break
						}
						if try == 1 {
							t.Errorf("%s: the cache is of no use afterwards", name)
							break
						}
					}
				}
			}
			e.close()
			n.waitLetGo()
		})
	}
}

// An engine that dies takes everything with it, and what it had saved serves others.
func TestEngineKilledAtAnyPointLeavesNothingBehind(t *testing.T) {
	t.Parallel()
	n := newMemoryNode(t)
	n.start()
	ps := prompts(61, 3)
	for _, p := range []processOptions{
		{Order: engine.VLLM, TensorParallel: 1},
		{Order: engine.TensorRTLLM, TensorParallel: 2, Hybrid: true},
	} {
		p.Socket = n.socket
		change := func(o *engine.Options) { *o = p.engine() }
		want := reference(t, change, ps)
		e := newInstance(t, n, change)
		same(t, "first run", e.run("first", ps[:2]), want[:2])
		n.saved()
		for _, p.At = range []string{atMatch, atOffer, atPlanned, atLoading, atSave, atSaving} {
			name := fmt.Sprintf("order %d, killed %s", p.Order, p.At)
			process := startEngineProcess(t, p)
			process.submit(requestsOf(name, ps))
			if a := process.answer(); !a.Reached {
				t.Fatalf("%s: answer %+v", name, a)
			}
			process.kill()
			n.wait("the dead engine to be noticed", func() bool {
				s := n.status()
				return len(s.Engines) == 1 && len(s.Ranks) == p.TensorParallel
			})
			got := e.run(name, ps[:2])
			same(t, name, got, want[:2])
			if cached(got) == 0 {
				t.Errorf("%s: nothing comes from the cache afterwards", name)
			}
		}
		same(t, "last run", e.run("last", ps), want)
		e.close()
	}
	n.waitLetGo()
}
