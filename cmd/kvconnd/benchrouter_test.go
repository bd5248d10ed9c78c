package main

import (
	"encoding/json"
	"strings"
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

func TestBenchRouterUsageErrorsNameTheFlag(t *testing.T) {
	for want, args := range map[string][]string{
		"--blocks is 0":      {"bench", "router", "--blocks", "0"},
		"--ranks is -1":      {"bench", "router", "--ranks=-1"},
		"--background is 0":  {"bench", "router", "--background", "0"},
		"Ranks 5000: 1 to 4": {"bench", "router", "--ranks", "5000"},
	} {
		if status, out, errs := kvconnd(args...); status == 0 || out != "" || !strings.Contains(errs, want) {
			t.Errorf("%v: status %d, %q, %q; want %q", args, status, out, errs, want)
		}
	}
}
