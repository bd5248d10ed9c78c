package integration

import (
	"testing"

	"github.com/kvconn/kvconn/internal/engine"
)

// The hit rate is the one that vLLM counts, external_prefix_cache_hits by external_prefix_cache_queries: of the tokens that the
// engine had not computed itself, those that it got from the connector. And the sources add up to all prompt tokens.
func TestHitRateIsTheEngines(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.start()
	e := newInstance(t, n, func(o *engine.Options) { o.Blocks = 48 }) // too few to keep all prompts
	var queries, hits, prompted, own uint64
	for round, name := range []string{"first", "second", "third"} {
		for i, p := range prompts(40, 6) {
			r := e.run(name, append([][]uint32{p}, prompts(40+round, 1+i%2)...))
			for k, q := range append([][]uint32{p}, prompts(40+round, 1+i%2)...) {
				if r[k].Preemptions > 0 || r[k].RecomputedTokens > 0 {
					t.Skip("the machine is so slow that requests were computed twice")
				}
				prompted += uint64(len(q))
				own += uint64(r[k].LocalCachedTokens)
				queries += uint64(len(q) - r[k].LocalCachedTokens)
				hits += uint64(r[k].CachedTokens)
			}
		}
		n.saved()
	}
	s := n.status().Totals.Requests
	if hits == 0 || own == 0 {
		t.Fatalf("the engine had %d tokens and got %d: this tests nothing", own, hits)
	}
	if s.QueriedTokens != queries || s.OfferedTokens != hits {
		t.Errorf("%d of %d tokens, the engine counts %d of %d", s.OfferedTokens, s.QueriedTokens, hits, queries)
	}
	if sum := s.EngineTokens + s.HostTokens + s.DiskTokens + s.ObjectTokens + s.ComputedTokens; sum != prompted || s.EngineTokens != own || s.HostTokens+s.DiskTokens != hits {
		t.Errorf("sources add up to %d of %d prompt tokens: %+v", sum, prompted, s)
	}
}
