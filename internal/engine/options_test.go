package engine

import (
	"testing"

	"github.com/kvconn/kvconn/connector"
)

func TestDeclaredLayoutsAndManifestAreValid(t *testing.T) {
	eachVariant(t, func(t *testing.T, change func(*Options)) {
		e := newEngine(t, change)
		manifest := e.Manifest()
		if err := manifest.Validate(); err != nil {
			t.Error(err)
		}
		if len(e.memories) != manifest.Ranks() {
			t.Errorf("%d ranks, the manifest says %d", len(e.memories), manifest.Ranks())
		}
		for rank := range e.memories {
			info, err := e.File(rank).Stat()
			if err != nil {
				t.Fatal(err)
			}
			layout := e.Layout(rank)
			if err := layout.Validate([]int64{info.Size()}); err != nil {
				t.Error(err)
			}
			largest := 0
			for g := range layout.Groups {
				largest = max(largest, layout.Groups[g].BlockBytes())
				if _, has := manifest.Shard(rank, g); has != (layout.Groups[g].BlockBytes() > 0) {
					t.Errorf("rank %d, group %d: the manifest says that it has a shard: %t", rank, g, has)
				}
			}
			if want := info.Size() / int64(e.opts.Blocks); int64(largest) != want {
				t.Errorf("rank %d: the largest block has %d bytes, a slot %d", rank, largest, want)
			}
		}
	})
}

func TestRequestThatCannotBeServedIsRefused(t *testing.T) {
	e := newEngine(t, func(o *Options) { o.Blocks = 11 })
	for name, q := range map[string]Request{
		"no id":           {Prompt: []uint32{1}, MaxTokens: 1},
		"no prompt":       {ID: "a", MaxTokens: 1},
		"no tokens":       {ID: "a", Prompt: []uint32{1}},
		"strange token":   {ID: "a", Prompt: []uint32{256}, MaxTokens: 1},
		"stray span":      {ID: "a", Prompt: prompt(1, 10), MaxTokens: 1, Spans: []connector.Span{{Start: 5, End: 11, ID: []byte("x")}}},
		"too many tokens": {ID: "a", Prompt: prompt(1, 150), MaxTokens: 11},
	} {
		if e.Submit(q) == nil {
			t.Errorf("%s: accepted", name)
		}
	}
	if err := e.Submit(Request{ID: "a", Prompt: prompt(1, 150), MaxTokens: 10}); err != nil {
		t.Error(err)
	}
	if e.Submit(Request{ID: "a", Prompt: prompt(1, 1), MaxTokens: 1}) == nil {
		t.Error("same id: accepted")
	}
}

func TestOptionsThatCannotWorkAreRefused(t *testing.T) {
	for name, change := range map[string]func(*Options){
		"block size": func(o *Options) { o.BlockSize = -1 },
		"blocks":     func(o *Options) { o.Blocks = 1 },
		"budget":     func(o *Options) { o.MaxBatchedTokens = -1 },
		"sequences":  func(o *Options) { o.MaxSeqs = -1 },
		"model":      func(o *Options) { o.Model.Layers = 0 },
		"heads":      func(o *Options) { o.TensorParallel = 3 },
		"stages":     func(o *Options) { o.PipelineParallel = 6 },
		"order":      func(o *Options) { o.Order = 2 },
		"reuse":      func(o *Options) { o.PartialReuse = true },
		"dropping":   func(o *Options) { o.Overlap, o.TensorRT.DropBatch = true, func(int) bool { return false } },
		"patience":   func(o *Options) { o.RankTimeout = -1 },
	} {
		o := Options{Model: newEngine(t, nil).opts.Model}
		change(&o)
		if _, err := New(o); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}
