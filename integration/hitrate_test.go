package integration

import (
	"fmt"
	"testing"

	"github.com/kvconn/kvconn/internal/engine"
)

// The hit rate is the one that vLLM counts, external_prefix_cache_hits by external_prefix_cache_queries: of the tokens that the
// engine had not computed itself, those that it got from the connector. And the sources add up to all prompt tokens.
func TestHitRateIsTheEngines(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.start()
	e := newInstance(t, n, func(o *engine.Options) { o.Blocks, o.PrefixCaching = 48, true }) // too few to keep all prompts
	var queries, hits, prompted, own uint64
	for round := range 3 {
		for i, p := range append(prompts(40, 6), prompts(41+round, 2)...) {
			r := e.run(fmt.Sprint(round, " ", i), [][]uint32{p})[0]
			if r.Preemptions > 0 || r.RecomputedTokens > 0 {
				t.Fatalf("a request was computed twice: %+v", r)
			}
			prompted += uint64(len(p))
			own += uint64(r.LocalCachedTokens)
			queries += uint64(len(p) - r.LocalCachedTokens)
			hits += uint64(r.CachedTokens)
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
