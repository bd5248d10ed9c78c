package workerbench

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"strconv"
	"testing"

	"github.com/kvconn/kvconn/connector"
)

func TestLoadBenchRuns(t *testing.T) {
	r, err := Load(context.Background(), LoadOptions{
		Dir: t.TempDir(), LayerBytes: 8 << 10, Layers: 4, TotalBytes: 8 << 20, HostBytes: 2 << 20, Rounds: 1,
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range []Figures{r.Figures, r.Contiguous} {
		if f.DiskRatio <= 0 || f.HostRatio <= 0 || f.LoadCPUSPerGiB <= 0 {
			t.Errorf("%+v", f)
		}
	}
}

func TestWrongBytesAreNoticed(t *testing.T) {
	b := &loadBench{o: LoadOptions{LayerBytes: 4096, Layers: 2, TotalBytes: 64 << 10, HostBytes: 8 << 10}, blockBytes: 8192}
	b.makeBlocks()
	if err := b.makeMemory(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := b.close(); err != nil {
			t.Error(err)
		}
	}()
	l := b.layered()
	for n, blk := range b.blocks {
		b.mark(b.content, n)
		at := 0
		b.eachPiece(&l, blk.Slot, func(p []byte) { at += copy(p, b.content[at:]) })
	}
	if err := b.verify(&l, b.blocks); err != nil {
		t.Fatal(err)
	}
	b.memory[5000]++
	if err := b.verify(&l, b.blocks); !errors.Is(err, errWrongBytes) {
		t.Errorf("%v, want errWrongBytes", err)
	}
	b.poison(&l)
	if err := b.verify(&l, []connector.PlanBlock{b.blocks[0]}); !errors.Is(err, errWrongBytes) {
		t.Errorf("%v after poison, want errWrongBytes", err)
	}
}

// BenchmarkLoad runs the whole measurement, of KVCONN_BENCH_BYTES bytes.
func BenchmarkLoad(b *testing.B) {
	n, _ := strconv.ParseInt(os.Getenv("KVCONN_BENCH_BYTES"), 10, 64)
	rounds, _ := strconv.Atoi(os.Getenv("KVCONN_BENCH_ROUNDS"))
	for b.Loop() {
		r, err := Load(context.Background(), LoadOptions{Dir: b.TempDir(), TotalBytes: n, Rounds: rounds})
		if err != nil {
			b.Fatal(err)
		}
		text, _ := json.Marshal(r)
		b.Log(string(text))
	}
}
