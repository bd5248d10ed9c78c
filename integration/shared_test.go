package integration

import (
	"fmt"
	"testing"

	"github.com/kvconn/kvconn/internal/engine"
	"github.com/kvconn/kvconn/internal/engine/model"
)

// together runs prompts on engines at the same time, and compares each engine's answers.
func together(t *testing.T, name string, engines []*instance, ps [][]uint32, want [][]engine.Result) [][]engine.Result {
	t.Helper()
	type outcome struct {
		results []engine.Result
		err     error
	}
	done := make([]chan outcome, len(engines))
	for k, e := range engines {
		done[k] = make(chan outcome, 1)
		go func() {
			r, err := e.Run(t.Context(), requestsOf(name, ps))
			done[k] <- outcome{r, err}
		}()
	}
	got := make([][]engine.Result, len(engines))
	outcomes := make([]outcome, len(engines))
	for k := range engines { // all: an engine must not be closed while it runs
		outcomes[k] = <-done[k]
	}
	for k, o := range outcomes {
		if o.err != nil {
			t.Fatalf("%s: engine %d: %v", name, k, o.err)
		}
		same(t, fmt.Sprintf("%s: engine %d", name, k), o.results, want[k])
		got[k] = o.results
	}
	return got
}

// Engines of the same and of other models save and load the same prompts at once.
func TestEnginesOfSeveralModelsSaveAndLoadTheSamePromptsAtOnce(t *testing.T) {
	t.Parallel()
	n := newMemoryNode(t)
	n.start()
	ps := prompts(70, 4)
	kinds := []variant{
		{"plain", nil},
		{"plain, a second instance", nil},
		{"plain, in TensorRT-LLM's order", tensorRT},
		{"hybrid", hybrid},
		{"hybrid, a second instance", func(o *engine.Options) { hybrid(o); o.MaxBatchedTokens = 50 }},
		{"other weights", func(o *engine.Options) { o.Model = model.Tiny(5) }},
		{"two ranks", func(o *engine.Options) { o.TensorParallel = 2 }},
	}
	var engines []*instance
	var want [][]engine.Result
	for _, k := range kinds {
		engines = append(engines, newInstance(t, n, k.change))
		want = append(want, reference(t, k.change, ps))
	}
	for round := range rounds(3, 20) {
		together(t, fmt.Sprintf("round %d", round), engines, ps, want)
	}
	n.saved()
	for k, results := range together(t, "last round", engines, ps, want) {
		for i, r := range results {
			if all := whole(ps[i], 8); r.CachedTokens != all || r.RecomputedTokens > 0 {
				t.Errorf("%s: prompt %d: %d tokens from the cache, want %d", kinds[k].name, i, r.CachedTokens, all)
			}
		}
	}
	// The three plain instances share one namespace: every block is there once.
	if s := n.status(); len(s.Engines) != len(kinds) || s.Store.Namespaces != 4 {
		t.Errorf("%d engines in %d namespaces, want %d in 4", len(s.Engines), s.Store.Namespaces, len(kinds))
	}
	for _, e := range engines {
		e.close()
	}
	n.waitLetGo()
}
