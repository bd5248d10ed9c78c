package feed

import (
	"encoding/hex"
	"encoding/json"
	"maps"
	"os"
	"slices"
	"testing"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/router/blockkey"
	"github.com/kvconn/kvconn/store/residency"
)

// sglangCase is a prompt with the page hashes and the events that SGLang made of it: integration/sglang/page_hashes.py.
type sglangCase struct {
	Page                  int
	Salt, Adapter, Format string
	Tokens                []uint32
	Hashes, Batches       []string
}

func sglangCases(t *testing.T) []sglangCase {
	t.Helper()
	b, err := os.ReadFile("../blockkey/testdata/sglang.json")
	var g struct{ Cases []sglangCase }
	if err == nil {
		err = json.Unmarshal(b, &g)
	}
	if err != nil || len(g.Cases) == 0 {
		t.Fatalf("%d cases: %v", len(g.Cases), err)
	}
	return g.Cases
}

// keys are those of SGLang's pages, by the hashes that its storage has, or the router's own for an adapter.
func (c *sglangCase) keys(t *testing.T) (keys []connector.Key) {
	t.Helper()
	if c.Adapter != "" {
		var h blockkey.Hasher
		h.Begin(blockkey.SGLang.Root(c.Page, connector.Scope{Salt: c.Salt, LoRA: c.Adapter}))
		return h.Append(nil, c.Tokens, c.Page)
	}
	for _, text := range c.Hashes {
		b, err := hex.DecodeString(text)
		if err != nil {
			t.Fatal(err)
		}
		keys = append(keys, connector.EngineKey(connector.Proof(b)))
	}
	return keys
}

func keySet(keys []connector.Key) map[connector.Key]bool {
	set := make(map[connector.Key]bool)
	for _, k := range keys {
		set[k] = true
	}
	return set
}

// What SGLang says of its GPU gets the keys that its stores have.
func TestSGLangsEventsGetTheKeysOfItsStorage(t *testing.T) {
	for _, c := range sglangCases(t) {
		x := newMemIndex()
		g := NewIngest(blockkey.SGLang, c.Page, 1, x)
		keys := c.keys(t)
		for i, want := range []map[connector.Key]bool{keySet(keys), keySet(keys[:2])} {
			payload, err := hex.DecodeString(c.Batches[i])
			if err != nil {
				t.Fatal(err)
			}
			if _, err := g.Batch(payload); err != nil {
				t.Fatal(err)
			}
			if got := x.keys(1); !maps.Equal(got, want) {
				t.Errorf("pages of %d, salt %q, adapter %q, format %s, batch %d: %v, want %v", c.Page, c.Salt, c.Adapter, c.Format, i, got, want)
			}
			if n := len(g.pages.held); n != len(want) {
				t.Errorf("%d names of %d blocks", n, len(want))
			}
		}
		if s := g.Stats(); s.UnknownParents+s.UnknownRemovals+s.UnknownKeys+s.MismatchedHashes+s.MismatchedBlockSize+s.ExtraKeyed != 0 {
			t.Errorf("pages of %d, salt %q, adapter %q, format %s: %+v", c.Page, c.Salt, c.Adapter, c.Format, s)
		}
	}
}

func sglangIngest(x *memIndex) *Ingest { return NewIngest(blockkey.SGLang, testBlockSize, 1, x) }

// sglangKeys are the keys of a prompt of these blocks.
func sglangKeys(blocks ...uint64) []connector.Key {
	var h blockkey.Hasher
	h.Begin(blockkey.SGLang.Root(testBlockSize, connector.Scope{}))
	var tokens []uint32
	for _, n := range blocks {
		tokens = append(tokens, tokensOf(n)...)
	}
	return h.Append(nil, tokens, testBlockSize)
}

func batch(t *testing.T, g *Ingest, events ...[]byte) {
	t.Helper()
	if _, err := g.Batch(eventBatch(events...)); err != nil {
		t.Fatal(err)
	}
}

// Pages of two requests that SGLang keeps apart without saying so have one name: the second is a copy.
func TestPagesFollowACopyThatIsLeft(t *testing.T) {
	x := newMemIndex()
	g := sglangIngest(x)
	batch(t, g, storedEvent(0, []uint64{1, 2}), storedEvent(0, []uint64{1, 2}), removedEvent(2, 1), storedEvent(2, []uint64{3}))
	if got, want := x.keys(1), keySet(sglangKeys(1, 2, 3)); !maps.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
	batch(t, g, removedEvent(3, 2, 1), storedEvent(1, []uint64{4}))
	if len(x.keys(1)) != 0 || len(g.pages.held) != 0 || g.Stats().UnknownParents != 1 || g.orphans != 1 {
		t.Errorf("%d keys, %d names, %+v", len(x.keys(1)), len(g.pages.held), g.Stats())
	}
}

func TestClearedRanksHaveNoPages(t *testing.T) {
	x := newMemIndex()
	g := sglangIngest(x)
	for _, clear := range []func(){g.Clear, func() { batch(t, g, eventMap("AllBlocksCleared")) }} {
		batch(t, g, storedEvent(0, []uint64{1, 2}))
		if clear(); len(g.pages.held) != 0 || len(x.keys(1)) != 0 {
			t.Errorf("%d names", len(g.pages.held))
		}
	}
}

// More pages than are kept: those that follow a forgotten one are left out, and the rank is not rebuilt for that.
func TestNamesAreBounded(t *testing.T) {
	x := newMemIndex()
	g := sglangIngest(x)
	g.pages = newPages(4)
	batch(t, g, storedEvent(0, []uint64{1}))
	for n := uint64(2); n <= 200; n++ { // any page may be forgotten, and soon the first one is
		batch(t, g, storedEvent(1, []uint64{n}))
	}
	s := g.Stats()
	if len(g.pages.held) > 4 || s.UnknownParents == 0 || g.orphans != 0 {
		t.Errorf("%d names, %d orphans, %+v", len(g.pages.held), g.orphans, s)
	}
	if g.Clear(); g.pages.dropped {
		t.Error("a cleared rank has too many pages")
	}
}

// An engine that hashes otherwise is told by its names.
func TestOtherHashesAreCounted(t *testing.T) {
	g := sglangIngest(newMemIndex())
	batch(t, g, storedEvent(0, []uint64{1, 2}), storedEvent(0, []uint64{3}, field("cache_salt", "s")), storedEvent(0, []uint64{4}, field("lora_name", "a")))
	if n := g.Stats().MismatchedHashes; n != 2 {
		t.Errorf("%d", n)
	}
}

func TestSGLangsEventsAreTakenInWithoutAllocation(t *testing.T) {
	g := NewIngest(blockkey.SGLang, testBlockSize, 1, &discardIndex{})
	stored, removed := eventBatch(storedEvent(0, []uint64{1, 2, 3, 4})), eventBatch(removedEvent(4, 3, 2, 1))
	if n := testing.AllocsPerRun(100, func() {
		for _, b := range [][]byte{stored, removed} {
			if _, err := g.Batch(b); err != nil {
				t.Fatal(err)
			}
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// sglangNamespace describes a namespace of one shard with an engine's keys.
func sglangNamespace(number uint32, engine, speculative string) part {
	m := streamManifest(testBlockSize)
	m.Engine, m.KeyScheme, m.TensorParallel = engine, connector.KeySchemeEngine, 1
	m.Groups, m.Extra = m.Groups[:1], map[string]string{"args.speculative_algorithm": speculative}
	return func(w *residency.Writer) error {
		return w.Namespace(residency.Namespace{Number: number, Digest: m.Digest(), Manifest: m.Canonical()})
	}
}

// The first page of every scope has no parent: salted prompts need not wait for the router to meet their salt.
func TestSGLangsRecordsOfAllScopesBeginAtOneRoot(t *testing.T) {
	for _, snapshot := range []bool{true, false} {
		o := residencyOptions()
		o.Scheme = blockkey.SGLang
		f, x := newResidency(t, o)
		s := tell(t, f, hello(7, false), sglangNamespace(0, "sglang/0.5.23", ""), sglangNamespace(1, "vllm/0.32.0", ""),
			sglangNamespace(2, "sglang/0.5.23", "EAGLE"), namespace(3, testBlockSize))
		var list []residency.Record
		var want []connector.Key
		for _, salt := range []string{"", "a", "b"} {
			var h blockkey.Hasher
			h.Begin(blockkey.SGLang.Root(testBlockSize, connector.Scope{Salt: salt}))
			parent := connector.Key{}
			for _, k := range h.Append(nil, slices.Concat(tokensOf(1), tokensOf(2)), testBlockSize) {
				for number := range uint32(4) {
					list = append(list, residency.Record{Namespace: number, Key: k, Parent: parent})
				}
				parent, want = k, append(want, k)
			}
		}
		if snapshot {
			s.tell(records(0, list), snapshotEnd(0))
		} else {
			s.tell(snapshotEnd(0), records(1, list))
		}
		st := f.Stats()
		if got := x.keys(1); !maps.Equal(got, keySet(want)) || st.Waiting != 0 || st.Namespaces != 1 || st.IgnoredNamespaces != 3 {
			t.Errorf("snapshot %v: %d keys, want %d; %+v", snapshot, len(got), len(want), st)
		}
	}
}
