package leader

import (
	"slices"

	"pgregory.net/rapid"

	"github.com/kvconn/kvconn/connector"
)

// compute runs some steps for one request.
func (w *world) compute(*rapid.T) {
	r := w.pick(running)
	for range rapid.IntRange(1, 8).Draw(w.rt, "steps") {
		w.computeStep(r)
	}
}

// computeStep runs a step for one request: a chunk of its prompt, or decoding.
func (w *world) computeStep(r *worldRequest) {
	s := connector.Scheduled{Request: r.id, Computed: r.computed, From: r.told}
	if r.computed >= len(r.toks) { // decode
		r.toks = append(r.toks, uint32(5000+w.ids))
		r.keys = w.keys(r.toks)
	}
	s.Count = rapid.IntRange(1, len(r.toks)-r.computed).Draw(w.rt, "count")
	if rapid.IntRange(0, 3).Draw(w.rt, "tells") > 0 {
		s.NewTokens = r.toks[r.told:]
		r.told = len(r.toks)
	}
	w.leaveWindows(r)
	before := make([]int, len(r.tables))
	for g := range r.tables {
		before[g] = len(r.tables[g])
	}
	w.extend(r, r.computed+s.Count)
	s.NewBlocks = make([][]uint32, len(r.tables))
	if s.Reset = r.fresh || rapid.IntRange(0, 5).Draw(w.rt, "resets") == 0; s.Reset {
		clear(before)
	}
	r.fresh = false
	for g := range r.tables {
		s.NewBlocks[g] = slices.Clone(r.tables[g][before[g]:])
	}
	w.fill(r, r.computed, r.computed+s.Count)
	r.computed += s.Count
	w.checkSaves(r, w.step(connector.StepRequest{Scheduled: []connector.Scheduled{s}}))
}

// leaveWindows takes away the blocks that no layer of the group looks at any more.
func (w *world) leaveWindows(r *worldRequest) {
	for g := range r.tables {
		for i := range min(w.groups[g].FirstBlock(r.computed, w.bs), len(r.tables[g])) {
			delete(w.content, r.tables[g][i])
		}
	}
}

// fill computes the tokens [from, to): a block is whole once its last token is there and
// the ones before were.
func (w *world) fill(r *worldRequest, from, to int) {
	for g := range r.tables {
		for i := from / w.bs; i < to/w.bs; i++ {
			if slot := r.tables[g][i]; slot != connector.NoBlock {
				w.content[slot] = r.keys[i]
			}
		}
	}
}

// checkSaves compares a plan's saves with what the slots hold, and stores most of them.
func (w *world) checkSaves(r *worldRequest, p *connector.Plan) {
	for _, t := range p.Saves {
		parent := t.Parent
		for _, b := range t.Blocks {
			i := slices.Index(r.tables[t.Group], b.Slot)
			if i < 0 || w.content[b.Slot] != b.Key || b.Key != r.keys[i] {
				w.rt.Fatalf("%s: slot %d of group %d is saved as what it does not hold", r.id, b.Slot, t.Group)
			}
			if want := r.parentOf(w, i); parent != want {
				w.rt.Fatalf("%s: block %d has another parent", r.id, i)
			}
			parent = b.Key
			stored := w.stored(t.Group, b.Key)
			if stored && !r.lost[i] {
				w.rt.Fatalf("%s: block %d of group %d is saved though it is stored", r.id, i, t.Group)
			}
			// A worker leaves out a block that it has. If that is dropped later, it is planned again.
			planned := plannedBlock{t.Group, b.Key}
			if leftOut, ok := w.planned[planned]; ok && (stored || !leftOut) {
				w.rt.Fatalf("%s: block %d of group %d is planned twice", r.id, i, t.Group)
			}
			w.planned[planned] = stored
			if rapid.IntRange(0, 5).Draw(w.rt, "dropped") > 0 {
				w.setStored(t.Group, b.Key, true)
			}
		}
	}
}

func (r *worldRequest) parentOf(w *world, i int) connector.Key {
	if i == 0 {
		return connector.RootKey(w.bs, connector.Scope{})
	}
	return r.keys[i-1]
}

// takeBlocks takes a request's blocks away.
func (w *world) takeBlocks(r *worldRequest) {
	for g := range r.tables {
		for _, slot := range r.tables[g] {
			delete(w.content, slot)
		}
	}
	r.tables, r.loading, r.offer = nil, false, 0
}

func (w *world) preempt(*rapid.T) {
	r := w.pick(running)
	w.takeBlocks(r)
	w.step(connector.StepRequest{Preempted: []string{r.id}})
}

func (w *world) finish(*rapid.T) {
	w.end(w.pick(func(*worldRequest) bool { return true }))
}

// end finishes or aborts a request, whatever it is at.
func (w *world) end(r *worldRequest) {
	w.takeBlocks(r)
	w.reqs = slices.DeleteFunc(w.reqs, func(q *worldRequest) bool { return q == r })
	if p := w.step(connector.StepRequest{Finished: []string{r.id}}); !p.Empty() {
		w.rt.Fatalf("%s: a plan for its end", r.id)
	}
}

// dropCache preempts all that run and resets the engine's cache, but not loads under way.
func (w *world) dropCache(*rapid.T) {
	for _, r := range w.reqs {
		if r.loading {
			w.rt.Skip("a load is under way")
		}
	}
	for _, r := range w.reqs {
		w.takeBlocks(r)
	}
	if err := w.Reset(w.Context()); err != nil {
		w.rt.Fatal(err)
	}
}
