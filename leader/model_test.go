package leader

import (
	"fmt"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/internal/testkit/property"
	"github.com/kvconn/kvconn/store"
)

// world is an engine that keeps, for each slot, the key of the block that its bytes are.
// The engine does whatever it may in any order; what the leader answers is compared with
// what is true.
type world struct {
	*fixture
	rt      *rapid.T
	reqs    []*worldRequest
	content map[uint32]connector.Key
	slots   uint32
	ids     int
	// planned are the saves planned since the last failed load, and whether the block was stored then.
	planned map[plannedBlock]bool
}

// worldRequest is a request of the engine; tables is nil while it waits.
type worldRequest struct {
	id       string
	toks     []uint32
	told     int
	keys     []connector.Key
	tables   [][]uint32
	computed int
	offer    int
	failed   bool
	// loading is set between a load's plan and its report, with the slots that have failed.
	loading  bool
	boundary int
	invalid  []uint32
	// lost are the blocks that a load has failed to bring.
	lost  map[int]bool
	fresh bool
}

func TestLeaderAgainstAModelOfTheEngine(t *testing.T) {
	for name, change := range map[string]func(*Options){
		"one group": func(o *Options) { o.Manifest.TensorParallel = 2 },
		"hybrid":    hybrid,
		"windows": func(o *Options) {
			o.Manifest = testManifest(connector.Group{Layers: 1, Window: 16}, connector.Group{Layers: 1, Window: 7}, connector.Group{Layers: 1})
			o.Manifest.TensorParallel = 2
		},
	} {
		t.Run(name, func(t *testing.T) {
			property.Check(t, func(rt *rapid.T) {
				w := &world{
					fixture: newFixture(t, change), rt: rt,
					content: map[uint32]connector.Key{}, planned: map[plannedBlock]bool{},
				}
				rt.Repeat(map[string]func(*rapid.T){
					"arrive": w.arrive, "match": w.rematch, "alloc": w.allocate, "loaded": w.report,
					"compute": w.compute, "compute more": w.compute, "preempt": w.preempt, "finish": w.finish, "evict": w.evict, "drop cache": w.dropCache,
				})
				for len(w.reqs) > 0 {
					w.end(w.reqs[0])
				}
				if w.x.held() != 0 || w.Stats().Requests != 0 || w.Leader.requests.size != 0 {
					rt.Fatalf("left behind: %d leases, %d requests of size %d", w.x.held(), w.Stats().Requests, w.Leader.requests.size)
				}
			})
		})
	}
}

// pick draws a request for which ok holds, or skips.
func (w *world) pick(ok func(*worldRequest) bool) *worldRequest {
	var of []*worldRequest
	for _, r := range w.reqs {
		if ok(r) {
			of = append(of, r)
		}
	}
	if len(of) == 0 {
		w.rt.Skip("no such request")
	}
	return of[rapid.IntRange(0, len(of)-1).Draw(w.rt, "request")]
}

func waiting(r *worldRequest) bool { return r.tables == nil }
func running(r *worldRequest) bool { return r.tables != nil && !r.loading }

// arrive matches a new prompt, which shares its beginning with others.
func (w *world) arrive(*rapid.T) {
	if len(w.reqs) == 6 {
		w.rt.Skip("full")
	}
	n := rapid.IntRange(0, 60).Draw(w.rt, "tokens")
	split := rapid.SampledFrom([]int{0, 9, 24, 60}).Draw(w.rt, "split")
	toks := tokens(0, n)
	for i := min(split, n); i < n; i++ {
		toks[i] += 1000
	}
	w.ids++
	r := &worldRequest{id: fmt.Sprint("r", w.ids), toks: toks, keys: w.keys(toks)}
	w.reqs = append(w.reqs, r)
	w.ask(r)
}

func (w *world) rematch(*rapid.T) { w.ask(w.pick(waiting)) }

// ask matches and compares the offer with what is stored.
func (w *world) ask(r *worldRequest) {
	if r.told > len(r.toks) || rapid.Bool().Draw(w.rt, "from the start") {
		r.told = 0
	}
	r.computed = rapid.IntRange(0, len(r.toks)).Draw(w.rt, "computed")
	if rapid.Bool().Draw(w.rt, "aligned") {
		r.computed -= r.computed % w.bs
	}
	r.offer = w.match(connector.MatchRequest{Request: r.id, From: r.told, Tokens: r.toks[r.told:], Computed: r.computed})
	r.told = len(r.toks)
	if want := w.wantOffer(r); r.offer != want {
		w.rt.Fatalf("%s: offer of %d tokens after %d of %d, want %d", r.id, r.offer, r.computed, len(r.toks), want)
	}
}

// wantOffer tries every boundary.
func (w *world) wantOffer(r *worldRequest) int {
	if r.failed || r.computed%w.bs != 0 {
		return 0
	}
	for b := (len(r.toks) - 1) / w.bs; b > r.computed/w.bs; b-- {
		a := connector.Alloc{Computed: r.computed, External: b*w.bs - r.computed}
		if w.all(&a, func(g, i int) bool { return w.stored(g, r.keys[i]) }) {
			return a.External
		}
	}
	return 0
}

// all reports whether ok holds for all blocks that a load needs.
func (w *world) all(a *connector.Alloc, ok func(g, i int) bool) bool {
	for g := range w.groups {
		first, end := a.LoadRange(w.groups[g].Group, g, w.bs)
		for i := first; i < end; i++ {
			if !ok(g, i) {
				return false
			}
		}
	}
	return true
}

func (w *world) stored(g int, k connector.Key) bool {
	w.x.mu.Lock()
	defer w.x.mu.Unlock()
	return w.x.all(testNamespace, w.groups[g].Shards, k)
}

// allocate gives a waiting request its blocks and takes the offer, or a part of it.
func (w *world) allocate(*rapid.T) {
	r := w.pick(waiting)
	r.computed -= r.computed % w.bs
	external := min(r.offer, rapid.SampledFrom([]int{0, r.offer, r.offer, r.offer / 2}).Draw(w.rt, "external"))
	a := connector.Alloc{Request: r.id, Computed: r.computed, External: external}
	r.tables, r.fresh = make([][]uint32, len(w.groups)), true
	w.extend(r, a.Boundary())
	for g := range w.groups {
		for i := range r.tables[g] {
			if i < w.groups[g].FirstBlock(a.Boundary(), w.bs) {
				r.tables[g][i] = connector.NoBlock
			} else if i < r.computed/w.bs {
				w.content[r.tables[g][i]] = r.keys[i]
			}
		}
		a.Blocks = append(a.Blocks, slices.Clone(r.tables[g]))
	}
	p := w.step(connector.StepRequest{Allocs: []connector.Alloc{a}})
	if external == 0 {
		if !p.Empty() {
			w.rt.Fatalf("%s: a plan for an offer not taken", r.id)
		}
		return
	}
	r.loading, r.boundary, r.invalid = true, a.Boundary(), nil
	want := 0
	w.all(&a, func(int, int) bool { want++; return true })
	for _, t := range p.Loads[0].Transfers {
		want -= len(t.Blocks)
		for _, b := range t.Blocks {
			i := slices.Index(r.tables[t.Group], b.Slot)
			if i < 0 || b.Key != r.keys[i] {
				w.rt.Fatalf("%s: slot %d is filled with another block", r.id, b.Slot)
			}
			if w.stored(t.Group, b.Key) {
				w.content[b.Slot] = b.Key
			} else {
				r.invalid = append(r.invalid, b.Slot)
			}
		}
	}
	if want != 0 {
		w.rt.Fatalf("%s: %d blocks are not loaded", r.id, want)
	}
	if external == r.offer && len(r.invalid) > 0 {
		w.rt.Fatalf("%s: %d blocks of the offer are gone", r.id, len(r.invalid))
	}
	if len(r.invalid) == 0 && rapid.IntRange(0, 4).Draw(w.rt, "fails") == 0 {
		r.invalid = []uint32{p.Loads[0].Transfers[0].Blocks[0].Slot}
	}
}

// extend makes the tables hold n tokens.
func (w *world) extend(r *worldRequest, n int) {
	for g := range r.tables {
		for len(r.tables[g])*w.bs < n {
			w.slots++
			r.tables[g] = append(r.tables[g], w.slots)
		}
	}
}

// report ends a load.
func (w *world) report(*rapid.T) {
	r := w.pick(func(r *worldRequest) bool { return r.loading })
	w.loaded(r.id, r.invalid...)
	r.loading, r.computed = false, r.boundary
	for _, slot := range r.invalid {
		delete(w.content, slot)
		r.failed = true
		for g := range r.tables {
			if i := slices.Index(r.tables[g], slot); i >= 0 {
				r.computed = min(r.computed, i*w.bs)
				if r.lost == nil {
					r.lost = make(map[int]bool)
				}
				r.lost[i] = true
			}
		}
		clear(w.planned)
	}
}

func (w *world) evict(*rapid.T) {
	w.x.mu.Lock()
	defer w.x.mu.Unlock()
	pinned := map[store.RecordID]bool{}
	for _, ids := range w.x.leases {
		for _, id := range ids {
			pinned[id] = true
		}
	}
	shard := connector.Shard(rapid.IntRange(0, 5).Draw(w.rt, "shard"))
	for _, k := range w.keys(tokens(0, 60)) {
		if id := (store.RecordID{Namespace: testNamespace, Shard: shard, Key: k}); !pinned[id] && rapid.IntRange(0, 3).Draw(w.rt, "goes") == 0 {
			delete(w.x.records, id)
		}
	}
}
