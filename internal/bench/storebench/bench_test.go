package storebench

import (
	"context"
	"encoding/json"
	"os"
	"strconv"
	"testing"
)

func TestIndexBenchRuns(t *testing.T) {
	r, err := Index(context.Background(), IndexOptions{Dir: t.TempDir(), Records: 20_000, Chain: 1000})
	if err != nil {
		t.Fatal(err)
	}
	if r.LookupSeconds <= 0 || r.BytesPerRecord <= 0 || r.OpenCleanSeconds <= 0 || r.OpenKilledSeconds <= 0 {
		t.Errorf("%+v", r)
	}
	if x := r.Table; x.InsertsPerS <= 0 || x.WorstBytesPerRecord < x.BytesPerRecord || x.ChoiceMaxSeconds <= 0 || x.VictimsPerChoice <= 0 || x.ControlMaxSeconds <= 0 {
		t.Errorf("%+v", x)
	}
	if x := r.Table; x.Growing.Lookups+x.Filling.Lookups != x.Still.Lookups || x.Still.Lookups > 0 && x.Still.MaxSeconds < x.Still.MedianSeconds-lookupStep.Seconds() {
		t.Errorf("%+v", x)
	}
}

// BenchmarkIndex runs the whole measurement with KVCONN_BENCH_RECORDS records.
func BenchmarkIndex(b *testing.B) {
	n, _ := strconv.Atoi(os.Getenv("KVCONN_BENCH_RECORDS"))
	if n == 0 {
		n = 100_000
	}
	for b.Loop() {
		r, err := Index(context.Background(), IndexOptions{Dir: b.TempDir(), Records: n})
		if err != nil {
			b.Fatal(err)
		}
		text, _ := json.Marshal(r)
		b.Log(string(text))
	}
}

func TestStoreBenchRuns(t *testing.T) {
	r, err := Store(context.Background(), StoreOptions{Dir: t.TempDir(), PayloadBytes: 64 << 10, TotalBytes: 4 << 20, Rounds: 2})
	if err != nil {
		t.Fatal(err)
	}
	if r.ReadRatio <= 0 || r.WriteRatio <= 0 || r.ChurnWriteRatio <= 0 || r.ChurnReadP99Ratio <= 0 {
		t.Errorf("%+v", r)
	}
}

func BenchmarkStore(b *testing.B) {
	for b.Loop() {
		r, err := Store(context.Background(), StoreOptions{Dir: b.TempDir()})
		if err != nil {
			b.Fatal(err)
		}
		text, _ := json.Marshal(r)
		b.Log(string(text))
	}
}
