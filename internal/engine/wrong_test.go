package engine

import (
	"bytes"
	"fmt"
	"slices"
	"testing"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/internal/engine/model"
)

// variants are ways to run an engine; each must show wrong KV as wrong tokens.
func variants() map[string]func(*Options) {
	hybrid := func(o *Options) { o.Model = model.TinyHybrid(7) }
	return map[string]func(*Options){
		"plain":             func(*Options) {},
		"hybrid":            hybrid,
		"two tensor ranks":  func(o *Options) { o.TensorParallel = 2 },
		"three stages":      func(o *Options) { hybrid(o); o.PipelineParallel = 3 },
		"two by two":        func(o *Options) { hybrid(o); o.TensorParallel, o.PipelineParallel = 2, 2 },
		"replicated":        func(o *Options) { o.Model.KVHeads, o.TensorParallel = 1, 2 },
		"overlap":           func(o *Options) { hybrid(o); o.Overlap = true },
		"synchronous":       func(o *Options) { o.SyncLoads = true },
		"TensorRT-LLM":      func(o *Options) { o.Order = TensorRTLLM },
		"TensorRT-LLM sync": func(o *Options) { hybrid(o); o.Order, o.SyncLoads, o.Overlap = TensorRTLLM, true, true },
	}
}

// eachVariant runs a test for every variant, with what follows prompts of 150 tokens.
func eachVariant(t *testing.T, test func(t *testing.T, change func(*Options))) {
	for name, change := range variants() {
		t.Run(name, func(t *testing.T) { test(t, change) })
	}
}

func TestEveryVariantLoadsAndGivesTheSameTokens(t *testing.T) {
	eachVariant(t, func(t *testing.T, change func(*Options)) {
		q := Request{ID: "a", Prompt: prompt(8, 150), MaxTokens: generated}
		want := alone(t, q, change)
		store := filled(t, q, change)
		for _, offer := range []int{1, 9} {
			e := newEngine(t, change, func(o *Options) { o.MaxBatchedTokens = 40 })
			newFake(t, e, store).maxOffer = offer
			r := run(t, e, q)[0]
			check(t, r, want)
			if r.CachedTokens != 16*offer {
				t.Errorf("%d tokens loaded, want %d", r.CachedTokens, 16*offer)
			}
		}
	})
}

// loadedBlock is a block of a load on one rank.
type loadedBlock struct {
	rank int
	fakeBlock
}

func TestWrongBytesInAnyLoadedBlockOfAnyRankGiveOtherTokens(t *testing.T) {
	if testing.Short() {
		t.Skip("tokens are compared in the full run; races of the same code show in shorter ones")
	}
	q := Request{ID: "a", Prompt: prompt(8, 100), MaxTokens: generated}
	other := Request{ID: "other", Prompt: prompt(9, 100), MaxTokens: 1}
	eachVariant(t, func(t *testing.T, change func(*Options)) {
		want := alone(t, q, change)
		store, strange := filled(t, q, change), filled(t, other, change)
		e := newEngine(t, change)
		strangeKeys, keys := e.chainOf(other), e.chainOf(q)
		manifest := e.Manifest()
		// loadOf serves the prompt with the bytes of one block replaced, and lists what
		// was loaded.
		loadOf := func(bad loadedBlock, replace func(connector.Shard, []byte) []byte) (r Result, all []loadedBlock) {
			e := newEngine(t, change)
			f := newFake(t, e, store)
			seen := make([][]loadedBlock, len(e.memories))
			f.tamper = func(rank int, b fakeBlock, data []byte) []byte {
				seen[rank] = append(seen[rank], loadedBlock{rank, b})
				if rank == bad.rank && b.Group == bad.Group && b.Index == bad.Index {
					s, _ := manifest.Shard(rank, b.Group)
					return replace(s, data)
				}
				return data
			}
			r = run(t, e, q)[0]
			return r, slices.Concat(seen...)
		}
		r, all := loadOf(loadedBlock{rank: -1}, nil)
		check(t, r, want)
		for _, bad := range all {
			for name, replace := range map[string]func(connector.Shard, []byte) []byte{
				"another prompt": func(s connector.Shard, _ []byte) []byte { return strange.get(storeName(strangeKeys[bad.Index], s)) },
				"its neighbour": func(s connector.Shard, b []byte) []byte {
					for _, i := range []int{bad.Index + 1, bad.Index - 1} {
						if n := store.get(storeName(keys[max(i, 0)%len(keys)], s)); i >= 0 && n != nil && !bytes.Equal(n, b) {
							return n
						}
					}
					return make([]byte, len(b))
				},
			} {
				// One head of a late layer is too little to change a token for certain.
				wrong, _ := loadOf(bad, replace)
				if wrong.Logits == r.Logits || (slices.Equal(wrong.Tokens, want) && len(e.memories) < 4) {
					t.Errorf("rank %d, group %d, block %d with the bytes of %s: tokens or logits are the same", bad.rank, bad.Group, bad.Index, name)
				}
			}
		}
	})
}

func TestOneWrongBitOfKVShowsInTheLogits(t *testing.T) {
	q := Request{ID: "a", Prompt: prompt(8, 150), MaxTokens: generated}
	store := filled(t, q)
	logits := func(flip int) uint64 {
		e := newEngine(t)
		newFake(t, e, store).tamper = func(_ int, b fakeBlock, data []byte) []byte {
			data = bytes.Clone(data)
			if b.Index == flip {
				data[400] ^= 1
			}
			return data
		}
		return run(t, e, q)[0].Logits
	}
	if right := logits(-1); right != logits(-1) || right == logits(4) {
		t.Error("the hash of the logits does not say what was loaded")
	}
}

func TestShardsOfTwoRanksExchangedGiveOtherTokens(t *testing.T) {
	change := func(o *Options) { o.TensorParallel = 2 }
	q := Request{ID: "a", Prompt: prompt(8, 150), MaxTokens: generated}
	want := alone(t, q, change)
	store := filled(t, q, change)
	for index := range 9 {
		e := newEngine(t, change)
		f := newFake(t, e, store)
		f.tamper = func(rank int, b fakeBlock, data []byte) []byte {
			if b.Index != index {
				return data
			}
			s, _ := f.manifest.Shard(1-rank, b.Group)
			return store.get(storeName(b.Key, s))
		}
		if r := run(t, e, q)[0]; slices.Equal(r.Tokens, want) {
			t.Errorf("block %d: tokens are the same", index)
		}
	}
}

func TestPlaceholdersStandForTheirContent(t *testing.T) {
	image := func(id string) Request {
		q := Request{ID: id, Prompt: prompt(8, 150), MaxTokens: generated}
		for i := 20; i < 60; i++ {
			q.Prompt[i] = 0
		}
		q.Spans = []connector.Span{{Start: 20, End: 60, ID: []byte(id)}}
		return q
	}
	cat, dog := image("cat"), image("dog")
	tokens := alone(t, cat)
	if slices.Equal(tokens, alone(t, dog)) {
		t.Fatal("other content, same tokens")
	}
	store := filled(t, cat)
	e := newEngine(t, func(o *Options) { o.PrefixCaching = true })
	newFake(t, e, store)
	r := run(t, e, cat)[0]
	check(t, r, tokens)
	if r.CachedTokens != 144 {
		t.Errorf("same content: %d tokens loaded, want 144", r.CachedTokens)
	}
	r = run(t, e, dog)[0]
	check(t, r, alone(t, dog))
	if r.CachedTokens+r.LocalCachedTokens != 16 {
		t.Errorf("other content: %d tokens loaded, %d local, want the 16 before", r.CachedTokens, r.LocalCachedTokens)
	}
	// A connector that takes no notice of the content.
	liar := newEngine(t)
	f := newFake(t, liar, store)
	for i, k := range liar.chainOf(dog) {
		f.store.put(storeName(k, 0), store.get(storeName(liar.chainOf(cat)[i], 0)))
	}
	if r := run(t, liar, dog)[0]; slices.Equal(r.Tokens, alone(t, dog)) || r.CachedTokens != 144 {
		t.Errorf("KV of other content (%d tokens loaded) gives the same tokens", r.CachedTokens)
	}
}

func TestAdapterChangesTheTokensAndSaltDoesNot(t *testing.T) {
	q := Request{ID: "a", Prompt: prompt(8, 150), MaxTokens: generated}
	want := alone(t, q)
	seen := [][]uint32{want}
	for i, scope := range []connector.Scope{{LoRA: "x"}, {LoRA: "y"}, {Salt: "x"}} {
		q := q
		q.Scope = scope
		got := alone(t, q)
		if known := slices.ContainsFunc(seen, func(s []uint32) bool { return slices.Equal(s, got) }); known != (scope.LoRA == "") {
			t.Errorf("scope %d: tokens as before: %t", i, known)
		}
		seen = append(seen, got)
	}
}

func TestEndlessConversationNeedsNoMoreBlocksThanItsWindows(t *testing.T) {
	windows := func(o *Options) { o.Model = model.Tiny(3); o.Model.Windows = []int{32, 48} }
	q := Request{ID: "a", Prompt: prompt(3, 40), MaxTokens: 300}
	e := newEngine(t, windows)
	if err := e.Submit(q); err != nil {
		t.Fatal(err)
	}
	most := 0
	var ended []Result
	for e.Busy() {
		ended = append(ended, step(t, e)...)
		most = max(most, e.opts.Blocks-1-e.pool.free)
	}
	check(t, ended[0], alone(t, q, windows))
	if most > 8 {
		t.Errorf("%d blocks are held at once, want at most 8", most)
	}
	if free := fmt.Sprint(e.pool.free); free != fmt.Sprint(e.opts.Blocks-1) {
		t.Errorf("%s blocks are free at the end", free)
	}
}
