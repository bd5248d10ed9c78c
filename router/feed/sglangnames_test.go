package feed

import (
	"maps"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/internal/testkit/seed"
	"github.com/kvconn/kvconn/router/blockkey"
	"github.com/kvconn/kvconn/router/prefix"
)

// indexed is the ingest of an SGLang rank before a real index.
func indexed(t *testing.T) (*Ingest, *prefix.Index, Holder) {
	t.Helper()
	x, err := prefix.New(prefix.Options{})
	if err != nil {
		t.Fatal(err)
	}
	h, err := x.AddHolder("m")
	if err != nil {
		t.Fatal(err)
	}
	return NewIngest(blockkey.SGLang, testBlockSize, h, x), x, h
}

// namedEvent stores one page, of the tokens of block n, under a name of its own after the one called parent, 0 for none.
func namedEvent(parent, name, n uint64, more ...[]byte) []byte {
	var before any
	if parent != 0 {
		before = parent
	}
	return eventMap("BlockStored", append([][]byte{
		field("block_hashes", []uint64{name}), field("parent_block_hash", before), field("token_ids", tokensOf(n)),
	}, more...)...)
}

// With EAGLE a page's name covers the token after it, and in the format dynamo a request's extra_key. So pages of the same
// tokens have several names.
func TestPagesOfOneKeyAndSeveralNamesAreCopies(t *testing.T) {
	g, x, h := indexed(t)
	batch(t, g, namedEvent(0, 1, 1), namedEvent(0, 11, 1), namedEvent(1, 2, 2), namedEvent(11, 3, 3))
	if s, n := g.Stats(), x.HolderBlocks(h); n != 3 || s.UnknownParents != 0 {
		t.Errorf("%d pages, %+v", n, s)
	}
	batch(t, g, removedEvent(2, 1))
	if n := x.HolderBlocks(h); n != 2 {
		t.Errorf("%d pages, although one copy of the first is left, and the page after it", n)
	}
	batch(t, g, removedEvent(3, 11))
	if s, n := g.Stats(), x.HolderBlocks(h); n != 0 || s.UnknownRemovals != 0 {
		t.Errorf("%d pages are left of none, %+v", n, s)
	}
	batch(t, g, removedEvent(3, 11))
	if s := g.Stats(); s.UnknownRemovals != 2 {
		t.Errorf("%+v", s)
	}
}

// A name that is used for another page is that page's alone: nothing would remove the first.
func TestANameIsOfItsLastPage(t *testing.T) {
	g, x, h := indexed(t)
	batch(t, g, namedEvent(0, 1, 1), namedEvent(0, 1, 1), namedEvent(0, 1, 2))
	if n := x.HolderBlocks(h); n != 1 {
		t.Errorf("%d pages", n)
	}
	if _, ok := x.ParentKey(h, prefix.KeyID(sglangKeys(2)[0])); !ok {
		t.Error("it is not the last one")
	}
	if batch(t, g, removedEvent(1)); x.HolderBlocks(h) != 0 || len(g.pages.held) != 0 {
		t.Errorf("%d pages, %d names", x.HolderBlocks(h), len(g.pages.held))
	}
}

// A page that has to make room is taken out of the index, since its removal would name what is not known any more.
func TestForgottenPagesAreNotHeld(t *testing.T) {
	g, x, h := indexed(t)
	g.pages = newPages(8)
	for n := uint64(1); n <= 100; n++ {
		batch(t, g, namedEvent(0, n, n))
	}
	if n := x.HolderBlocks(h); n != 8 || len(g.pages.held) != 8 {
		t.Errorf("%d pages, %d names", n, len(g.pages.held))
	}
	for n := uint64(1); n <= 100; n++ {
		batch(t, g, removedEvent(n))
	}
	if s, n := g.Stats(), x.HolderBlocks(h); n != 0 || s.UnknownRemovals != 92 {
		t.Errorf("%d pages, %+v", n, s)
	}
}

// The hash of a page with an image covers more than its tokens, and so do those of all that follow. That is no sign of
// another way to hash.
func TestPagesAfterAnImageAreNotMismatched(t *testing.T) {
	g, _, _ := indexed(t)
	image := []any{uint64(1) << 40, 2, 3, 4}
	name := blockkey.SGLang.At(sglangKeys(1)[0], blockkey.Tail{}).Name()
	batch(t, g,
		namedEvent(0, name, 1),
		eventMap("BlockStored", field("block_hashes", []uint64{7}), field("parent_block_hash", name), field("token_ids", image)),
		namedEvent(7, 8, 2), namedEvent(8, 9, 3), namedEvent(0, 10, 4, field("lora_id", 3)))
	if s := g.Stats(); s.MismatchedHashes != 0 || s.ExtraKeyed != 1 || s.UnknownParents != 0 {
		t.Errorf("%+v", s)
	}
	if batch(t, g, namedEvent(name, 11, 3)); g.Stats().MismatchedHashes != 1 {
		t.Errorf("%+v", g.Stats())
	}
}

// engineTree is what an engine holds whose names cover more than the tokens: pages by name, with key, parent and children.
type engineTree struct {
	rng   *rand.Rand
	pages map[uint64]*enginePage
	next  uint64
}

type enginePage struct {
	parent, children uint64
	keys             []connector.Key // from the prompt's first page on
	blocks           []uint64
	copies           int
}

// any is the name of a page that the engine holds, 0 for none.
func (e *engineTree) any() uint64 {
	names := slices.Sorted(maps.Keys(e.pages))
	if len(names) == 0 || e.rng.IntN(4) == 0 {
		return 0
	}
	return names[e.rng.IntN(len(names))]
}

// store stores a page after any other, or one more copy of a page.
func (e *engineTree) store() []byte {
	name := e.any()
	if p := e.pages[name]; p != nil && e.rng.IntN(3) == 0 {
		p.copies++
		return namedEvent(p.parent, name, p.blocks[len(p.blocks)-1])
	}
	e.next++
	p := &enginePage{parent: name, copies: 1}
	if before := e.pages[name]; before != nil {
		before.children++
		p.blocks = slices.Clone(before.blocks)
	}
	n := e.rng.Uint64N(3) + 1 // often the tokens of a page that there is
	p.blocks = append(p.blocks, n)
	p.keys = sglangKeys(p.blocks...)
	e.pages[e.next] = p
	return namedEvent(name, e.next, n)
}

// remove removes a copy of a page that none follows, if any of a few has none.
func (e *engineTree) remove() []byte {
	for range 5 {
		name := e.any()
		p := e.pages[name]
		if p == nil || p.children > 0 {
			continue
		}
		if p.copies--; p.copies == 0 {
			delete(e.pages, name)
			if before := e.pages[p.parent]; before != nil {
				before.children--
			}
		}
		return removedEvent(name)
	}
	return eventMap("Nothing")
}

// The index has what the engine holds, whatever it calls it.
func TestTheIndexHasWhatAnEngineWithOtherNamesHolds(t *testing.T) {
	for round := range 20 {
		e := &engineTree{rng: seed.Random(t, round), pages: map[uint64]*enginePage{}}
		g, x, h := indexed(t)
		for range 300 {
			if e.rng.IntN(5) < 2 {
				batch(t, g, e.remove())
			} else {
				batch(t, g, e.store())
			}
		}
		want := map[connector.Key]bool{}
		for _, p := range e.pages {
			want[p.keys[len(p.keys)-1]] = true
		}
		if n := x.HolderBlocks(h); n != int64(len(want)) || len(g.pages.held) != len(e.pages) {
			t.Errorf("%d keys of %d, %d names of %d", n, len(want), len(g.pages.held), len(e.pages))
		}
		if s := g.Stats(); s.UnknownParents+s.UnknownRemovals+s.Refused != 0 {
			t.Errorf("%+v", s)
		}
		for _, p := range e.pages { // all of the prefix is there: an engine drops a page only after the pages that follow it
			for _, k := range p.keys {
				if got, ok := x.ParentKey(h, prefix.KeyID(k)); !ok || got != k {
					t.Fatalf("%v is missing", k)
				}
			}
		}
	}
}
