package bench

import (
	"encoding/json"
	"testing"
)

// Figures are compared by these names.
func TestBenchRouterNamesItsFigures(t *testing.T) {
	b, err := json.Marshal(routerResult{DecideFromTokensSeconds: 7})
	if err != nil {
		t.Fatal(err)
	}
	var got map[string]any
	if err := json.Unmarshal(b, &got); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{
		"walk_all_hold_s", "walk_one_holds_s", "walk_forked_s", "decide_from_tokens_s", "allocs_per_decision", "walk_ingest_p99_ratio",
		"ingest_blocks_per_s", "bytes_per_block_1_rank", "bytes_per_block_64_ranks",
	} {
		if _, ok := got[name]; !ok {
			t.Errorf("%s is missing", name)
		}
	}
	if got["decide_from_tokens_s"] != 7.0 {
		t.Errorf("%v is not the whole decision", got["decide_from_tokens_s"])
	}
}
