package routerbench

import (
	"context"
	"encoding/json"
	"errors"
	"testing"
)

func TestIndexBenchRuns(t *testing.T) {
	r, err := Index(t.Context(), Options{Blocks: 500, Ranks: 4, Background: 5000, Forks: 9, Rounds: 2, Walks: 200})
	if err != nil {
		t.Fatal(err)
	}
	if r.WalkAllHoldSeconds <= 0 || r.WalkOneHoldsSeconds <= 0 || r.WalkForkedSeconds <= 0 ||
		r.DecideFromTokensSeconds <= 0 || r.WalkIngestP99Ratio <= 0 || r.BytesPerBlock1Rank <= 0 || r.BytesPerBlock64Ranks <= 0 {
		t.Errorf("%+v", r)
	}
}

func TestIndexBenchStopsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Index(ctx, Options{Background: 5000}); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
	if _, err := Index(t.Context(), Options{Ranks: -1}); err == nil {
		t.Error("a negative number of ranks was taken")
	}
}

func TestAShortPromptHasFewForks(t *testing.T) {
	o := Options{Blocks: 5}
	o.EnsureDefaults()
	if err := o.Validate(); err != nil || o.Forks != 5 {
		t.Errorf("%d forks, %v", o.Forks, err)
	}
}

// BenchmarkIndex runs the whole measurement at its full size.
func BenchmarkIndex(b *testing.B) {
	for b.Loop() {
		r, err := Index(b.Context(), Options{})
		if err != nil {
			b.Fatal(err)
		}
		text, _ := json.MarshalIndent(r, "", "  ")
		b.Log(string(text))
	}
}
