package leader

import (
	"fmt"
	"testing"
	"time"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/leader/doubt"
)

// failing is a leader whose other rank is on another node and fails every load of a prompt that is stored here.
type failing struct {
	*fixture
	loads int
}

func newFailing(t *testing.T, here ...int) *failing {
	f := &failing{fixture: newFixture(t, func(o *Options) { o.Manifest.TensorParallel = 2 })}
	f.SetHere(here)
	f.run("seed", tokens(0, 18), 0, connector.Scope{})
	return f
}

// load has a request match and load, if anything is offered, and reports blocks of it as failed.
func (f *failing) load(invalid ...uint32) (offered int) {
	f.Helper()
	f.loads++
	id := fmt.Sprint("load ", f.loads)
	if offered = f.match(connector.MatchRequest{Request: id, Tokens: tokens(0, 18)}); offered > 0 {
		f.step(f.alloc(id, offered))
		f.loaded(id, invalid...)
	}
	f.step(connector.StepRequest{Finished: []string{id}})
	return offered
}

func (f *failing) slot() uint32 { return f.alloc("x", 16).Allocs[0].Blocks[0][0] }

func TestOffersPauseWhileRanksOnOtherNodesFail(t *testing.T) {
	f := newFailing(t, 0)
	bad := f.slot()
	for range doubt.After {
		if f.load(bad) == 0 {
			t.Fatal("nothing is offered before there is doubt")
		}
	}
	for _, pause := range []time.Duration{1, 2, 4, 8, 16, 30, 30} {
		f.clock.advance(pause*time.Second - 1)
		if n := f.load(bad); n != 0 {
			t.Errorf("%d tokens offered within %d s of a failure", n, pause)
		}
		f.clock.advance(1)
		if f.load(bad) == 0 {
			t.Errorf("nothing is tried %d s after a failure", pause)
		}
	}
	if n := f.Stats().Doubted; n != 7 {
		t.Errorf("%d matches counted, want 7", n)
	}
	f.clock.advance(doubt.Max)
	for range 2 * doubt.After {
		if f.load() == 0 {
			t.Fatal("nothing is offered after a load that did not fail")
		}
	}
	if f.load(bad) == 0 || f.load() == 0 {
		t.Error("one failure is no reason to doubt")
	}
}

// Loads that were under way together fail for one cause.
func TestLoadsUnderWayTogetherFailOnce(t *testing.T) {
	f := newFailing(t, 0)
	const loads = 3 * doubt.After
	var step connector.StepRequest
	for i := range loads {
		id := fmt.Sprint(i)
		f.match(connector.MatchRequest{Request: id, Tokens: tokens(0, 18)})
		step.Allocs = append(step.Allocs, f.alloc(id, 16).Allocs...)
	}
	f.step(step)
	for i := range loads {
		f.loaded(fmt.Sprint(i), f.slot())
	}
	if f.load() == 0 {
		t.Error("nothing is offered after failures that came at the same time")
	}
}

// Where all ranks are here, the tiers tell what can be loaded; and a block that has left them is not offered again anyway.
func TestNoDoubtWhereTheTiersTell(t *testing.T) {
	f := newFailing(t, 0, 1)
	for range 2 * doubt.After {
		if f.load(f.slot()) == 0 {
			t.Fatal("nothing is offered, though all ranks are here")
		}
	}
	f = newFailing(t, 0)
	for i := range 2 * doubt.After {
		id := fmt.Sprint(i)
		f.run("seed "+id, tokens(100*(i+1), 18), 0, connector.Scope{})
		toks := tokens(100*(i+1), 18)
		if f.match(connector.MatchRequest{Request: id, Tokens: toks}) == 0 {
			t.Fatal("nothing is offered")
		}
		f.step(f.alloc(id, 16))
		f.setStored(0, f.keys(toks)[0], false)
		f.loaded(id, f.slot())
	}
}

// Ranks on other nodes may load the very shards that ranks here load, or those of another layer group alone.
func TestOffersPauseWhateverRanksOnOtherNodesLoad(t *testing.T) {
	for name, change := range map[string]func(*Options){
		"replicated": func(o *Options) { o.Manifest.TensorParallel, o.Manifest.Groups[0].Replicated = 2, true },
		"stages": func(o *Options) {
			m := o.Manifest
			m.PipelineParallel = 2
			m.Groups = append(m.Groups, m.Groups[0])
			m.Groups[0].Stages, m.Groups[1].Stages = []int{0}, []int{1}
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := &failing{fixture: newFixture(t, change)}
			f.SetHere([]int{0})
			f.run("seed", tokens(0, 18), 0, connector.Scope{})
			for range doubt.After {
				if f.load(f.slot()) == 0 {
					t.Fatal("nothing is offered before there is doubt")
				}
			}
			if n := f.load(); n != 0 {
				t.Errorf("%d tokens offered, though another node fails", n)
			}
		})
	}
}

// After a pause one request tries. Nothing is offered to the others until its load ends: each would lose as much time.
func TestOneRequestTriesAfterAPause(t *testing.T) {
	f := newFailing(t, 0)
	bad := f.slot()
	for range doubt.After {
		f.load(bad)
	}
	offered := func(id string) int { return f.match(connector.MatchRequest{Request: id, Tokens: tokens(0, 18)}) }
	f.clock.advance(doubt.Min)
	if f.match(connector.MatchRequest{Request: "a miss", Tokens: tokens(500, 18)}) != 0 || offered("one") == 0 {
		t.Fatal("nothing is tried after the pause")
	}
	if offered("another") != 0 || offered("one") == 0 {
		t.Error("others are offered blocks before the end of the load that tries, or the one that tries is not")
	}
	f.step(f.alloc("one", 16))
	f.loaded("one")
	if offered("another") == 0 {
		t.Error("nothing is offered after a load that did not fail")
	}

	for range doubt.After {
		f.load(bad)
	}
	f.clock.advance(doubt.Min)
	if offered("evicted") == 0 {
		t.Fatal("nothing is tried after the pause")
	}
	f.step(f.alloc("evicted", 16))
	f.setStored(0, f.keys(tokens(0, 18))[0], false)
	f.loaded("evicted", bad)
	f.setStored(0, f.keys(tokens(0, 18))[0], true)
	if offered("after it") == 0 {
		t.Error("nobody tries after a load that says nothing of the other node")
	}
	f.SetHere([]int{0, 1})
	f.step(f.alloc("after it", 16))
	f.loaded("after it", bad)
	if offered("here") == 0 || offered("here too") == 0 {
		t.Error("there is doubt, though all ranks are here now")
	}
	f.SetHere([]int{0})

	for range doubt.After {
		f.load(bad)
	}
	f.clock.advance(doubt.Min)
	if offered("gone") == 0 {
		t.Fatal("nothing is tried after the pause")
	}
	f.step(connector.StepRequest{Finished: []string{"gone"}})
	f.clock.advance(doubt.Max)
	if offered("the next") == 0 {
		t.Error("nobody tries after a request that ended before its load")
	}
}
