package routerbench

import (
	"context"
	"errors"
	"testing"
)

func TestIngestTakesInEveryEvent(t *testing.T) {
	r, err := Ingest(t.Context(), IngestOptions{Blocks: 4096, PromptBlocks: 256, Background: 4096, Rounds: 1})
	if err != nil || r.BlocksPerSecond <= 0 || r.DecodeBlocksPerSecond <= 0 || r.ChurnBlocksPerSecond <= 0 {
		t.Errorf("%+v %v", r, err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Ingest(ctx, IngestOptions{Blocks: 4096, Background: 1, Rounds: 1}); !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
	if _, err := Ingest(t.Context(), IngestOptions{PromptBlocks: 33}); err == nil {
		t.Error("prompts of part of an event were accepted")
	}
}

func BenchmarkIngest(b *testing.B) {
	for b.Loop() {
		r, err := Ingest(b.Context(), IngestOptions{})
		if err != nil {
			b.Fatal(err)
		}
		b.ReportMetric(r.BlocksPerSecond/1e6, "Mblocks/s")
		b.ReportMetric(r.DecodeBlocksPerSecond/1e6, "Mdecoded/s")
		b.ReportMetric(r.ChurnBlocksPerSecond/1e6, "Mchurned/s")
	}
}
