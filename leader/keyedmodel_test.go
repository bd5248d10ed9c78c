package leader

import (
	"fmt"
	"maps"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/internal/testkit/property"
	"github.com/kvconn/kvconn/store"
)

// keyedWorld is an engine that makes its calls in any order; what is offered is compared with what is
// true.
type keyedWorld struct {
	*keyedFixture
	rt *rapid.T
	// failed are the requests whose load has failed since their last touch, and loading the requests
	// of the loads under way.
	failed  map[string]bool
	loading map[string]worldLoad
	next    int
	// life counts the ends of each request.
	life map[string]int
	// offered are the blocks that each request was offered last, lent those that it had been offered
	// when its loads under way began: all of them are pinned.
	offered, lent map[string][]store.RecordID
}

// worldLoad is a load of a request, in one of its lives: a request that ended may come back.
type worldLoad struct {
	of   string
	life int
}

const keyedWorldBlocks = 12

func TestKeyedAgainstAModelOfTheEngine(t *testing.T) {
	for name, change := range map[string]func(*Options){
		"one group": func(o *Options) { o.Manifest.TensorParallel = 2 },
		"hybrid":    hybrid,
		"windows": func(o *Options) {
			o.Manifest = testManifest(connector.Group{Layers: 1, Window: 16}, connector.Group{Layers: 1, Window: 7})
		},
	} {
		t.Run(name, func(t *testing.T) {
			property.Check(t, func(rt *rapid.T) {
				w := &keyedWorld{
					keyedFixture: newKeyedFixture(t, change), rt: rt,
					failed: map[string]bool{}, loading: map[string]worldLoad{}, life: map[string]int{}, offered: map[string][]store.RecordID{}, lent: map[string][]store.RecordID{},
				}
				rt.Repeat(map[string]func(*rapid.T){
					"save": w.save, "save more": w.save, "ask": w.ask, "ask again": w.ask, "fetch": w.fetch,
					"end": w.end, "touch": w.touch, "evict": w.evict, "": w.pinned,
				})
				for load := range w.loading {
					w.Loaded(finished(load))
				}
				for i := range 4 {
					w.Touch(&connector.TouchRequest{Request: fmt.Sprint(i)})
				}
				if n := w.Stats().Requests; n != 0 || w.x.held() != 0 || len(w.loads) != 0 {
					rt.Fatalf("left behind: %d requests, %d leases", n, w.x.held())
				}
			})
		})
	}
}

func (w *keyedWorld) request() string {
	return fmt.Sprint(rapid.IntRange(0, 3).Draw(w.rt, "request"))
}

func (w *keyedWorld) save(*rapid.T) {
	g := rapid.IntRange(0, len(w.groups)-1).Draw(w.rt, "group")
	first := rapid.IntRange(0, keyedWorldBlocks-1).Draw(w.rt, "first")
	for i := first; i < min(first+4, keyedWorldBlocks); i++ {
		w.store(g, i)
	}
}

func (w *keyedWorld) evict(*rapid.T) {
	id := w.record(rapid.IntRange(0, len(w.groups)-1).Draw(w.rt, "group"), rapid.IntRange(0, keyedWorldBlocks-1).Draw(w.rt, "block"), 0)
	for _, ids := range w.x.leases {
		for _, pinned := range ids {
			if pinned == id {
				return
			}
		}
	}
	delete(w.x.records, id)
}

func (w *keyedWorld) record(g, block, shard int) store.RecordID {
	key := connector.EngineKey(hashes(block, block+1)[0])
	return store.RecordID{Namespace: testNamespace, Shard: w.groups[g].Shards[shard], Key: key}
}

// stored reports whether all shards of a block are there.
func (w *keyedWorld) stored(g, block int) bool {
	return w.x.all(testNamespace, w.groups[g].Shards, connector.EngineKey(hashes(block, block+1)[0]))
}

func (w *keyedWorld) ask(*rapid.T) {
	m := connector.PresentRequest{
		Request: w.request(), First: rapid.IntRange(0, 4).Draw(w.rt, "first"),
		Held: rapid.IntRange(0, keyedWorldBlocks).Draw(w.rt, "held"), NoLoad: rapid.IntRange(0, 9).Draw(w.rt, "no load") == 0,
	}
	end := rapid.IntRange(m.First, keyedWorldBlocks).Draw(w.rt, "end")
	got := w.present(m, end)
	want := w.want(&m, end)
	if got != want {
		w.rt.Fatalf("%+v up to %d: %s is offered, want %s", m, end, got, want)
	}
	w.offered[m.Request] = nil
	for g, bits := range w.bits {
		for i := range end - m.First {
			if bits[i/8]>>(i%8)&1 == 1 {
				for s := range w.groups[g].Shards {
					w.offered[m.Request] = append(w.offered[m.Request], w.record(g, m.First+i, s))
				}
			}
		}
	}
}

// want tries every boundary.
func (w *keyedWorld) want(m *connector.PresentRequest, end int) string {
	offered := make([][]bool, len(w.groups))
	for g := range offered {
		offered[g] = make([]bool, end-m.First)
	}
	start := max(m.First, m.Held)
	if !m.NoLoad && !w.failed[m.Request] && start < end {
		boundary := end
		for boundary > start && !w.reaches(start, boundary) {
			boundary--
		}
		for g := range offered {
			for i := w.begin(g, start, boundary); i < boundary; i++ {
				offered[g][i-m.First] = true
			}
		}
		if w.gapAt(boundary, end) {
			for g := range offered {
				w.afterGap(g, boundary, end, offered[g][boundary-m.First:])
			}
		}
	}
	out := ""
	for g := range offered {
		if g > 0 {
			out += " "
		}
		for _, bit := range offered[g] {
			if bit {
				out += "1"
			} else {
				out += "0"
			}
		}
	}
	return out
}

// afterGap sets the blocks [gap, end) of a group that are offered: those of the first runs.
func (w *keyedWorld) afterGap(g, gap, end int, offered []bool) {
	runs := 0
	for i := gap; i < end && runs <= maxStretches/len(w.groups); i++ {
		if !w.stored(g, i) {
			continue
		}
		if i == gap || !w.stored(g, i-1) {
			runs++
		}
		offered[i-gap] = runs <= maxStretches/len(w.groups)
	}
}

// begin is the first block of a group that a load of blocks [start, boundary) needs.
func (w *keyedWorld) begin(g, start, boundary int) int {
	return min(boundary, max(start, w.groups[g].FirstBlock(boundary*w.bs, w.bs)))
}

// reaches reports whether all that a load of blocks [start, boundary) needs is there.
func (w *keyedWorld) reaches(start, boundary int) bool {
	for g := range w.groups {
		for i := w.begin(g, start, boundary); i < boundary; i++ {
			if !w.stored(g, i) {
				return false
			}
		}
	}
	return true
}

// gapAt reports whether a group without a window lacks a block.
func (w *keyedWorld) gapAt(block, end int) bool {
	for g := range w.groups {
		if block < end && w.groups[g].Window == 0 && !w.stored(g, block) {
			return true
		}
	}
	return false
}

func (w *keyedWorld) fetch(*rapid.T) {
	of := w.request()
	w.next++
	m := fetch(fmt.Sprint("load ", w.next), of, rapid.IntRange(0, 3).Draw(w.rt, "blocks"))
	w.Loading(m)
	w.loading[m.ID] = worldLoad{of, w.life[of]}
	w.lent[of] = append(w.lent[of], w.offered[of]...)
	delete(w.offered, of)
}

func (w *keyedWorld) end(*rapid.T) {
	if len(w.loading) == 0 {
		w.rt.Skip("no load")
	}
	load := rapid.SampledFrom(slices.Sorted(maps.Keys(w.loading))).Draw(w.rt, "load")
	l := w.loading[load]
	delete(w.loading, load)
	switch rapid.IntRange(0, 2).Draw(w.rt, "how") {
	case 0:
		w.Cancelled(load)
	case 1:
		w.Loaded(finished(load))
	default:
		w.Loaded(finished(load, 1))
		if l.life == w.life[l.of] {
			w.failed[l.of] = true
		}
	}
	if l.life == w.life[l.of] && !slices.Contains(slices.Collect(maps.Values(w.loading)), l) {
		delete(w.lent, l.of)
	}
}

func (w *keyedWorld) touch(*rapid.T) {
	r := w.request()
	w.Touch(&connector.TouchRequest{Request: r, Hashes: hashes(0, 3)})
	delete(w.failed, r)
	delete(w.offered, r)
	delete(w.lent, r)
	w.life[r]++
}

// pinned checks that what was offered is.
func (w *keyedWorld) pinned(*rapid.T) {
	all := map[store.RecordID]bool{}
	for _, ids := range w.x.leases {
		for _, id := range ids {
			all[id] = true
		}
	}
	for _, pins := range []map[string][]store.RecordID{w.offered, w.lent} {
		for r, ids := range pins {
			for _, id := range ids {
				if !all[id] {
					w.rt.Fatalf("%v was offered to %s and is not pinned", id, r)
				}
			}
		}
	}
}
