package prefix

import (
	"math/rand/v2"
	"runtime"
	"testing"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/internal/testkit/prompts"
)

// prompt is a prompt in blocks of 16 random tokens.
type prompt struct {
	tokens []uint32
	keys   []connector.Key
	ids    []uint64
}

func randomPrompt(rng *rand.Rand, blocks int) prompt {
	p := prompt{tokens: prompts.Random(rng, 16*blocks)}
	p.keys = new(connector.KeyHasher).Append(nil, connector.Key{}, p.tokens, 16)
	for _, k := range p.keys {
		p.ids = append(p.ids, KeyID(k)*3)
	}
	return p
}

// report stores a part of a prompt as events of a number of blocks each.
func (p *prompt) report(tb testing.TB, x *Index, h Holder, from, to, event int) {
	for ; from < to; from += event {
		var parent uint64
		if from > 0 {
			parent = p.ids[from-1]
		}
		end := min(from+event, to)
		if err := x.Stored(h, parent, from > 0, p.ids[from:end], p.keys[from:end]); err != nil {
			tb.Fatal(err)
		}
	}
}

// gpuRanks registers ranks of one domain that have a GPU and nothing else.
func gpuRanks(tb testing.TB, x *Index, n int) ([]Holder, *Ranks) {
	var holders []Holder
	var ranks []Rank
	for range n {
		h, err := x.AddHolder("engine")
		if err != nil {
			tb.Fatal(err)
		}
		holders = append(holders, h)
		ranks = append(ranks, Rank{GPU: h, HasGPU: true})
	}
	v, err := NewRanks(ranks)
	if err != nil {
		tb.Fatal(err)
	}
	return holders, v
}

func newIndex(tb testing.TB) *Index {
	x, err := New(Options{})
	if err != nil {
		tb.Fatal(err)
	}
	return x
}

func BenchmarkWalk(b *testing.B) {
	for _, c := range []struct {
		name           string
		ranks, blocks  int
		staggered, few bool
	}{
		{name: "8000 blocks, 64 of 64", ranks: 64, blocks: 8000},
		{name: "8000 blocks, 1 of 64", ranks: 64, blocks: 8000, few: true},
		{name: "125 blocks, 64 of 64", ranks: 64, blocks: 125},
		{name: "8000 blocks, 64 staggered", ranks: 64, blocks: 8000, staggered: true},
		{name: "8000 blocks, 1000 of 1000", ranks: 1000, blocks: 8000},
		{name: "8000 blocks, 1000 staggered", ranks: 1000, blocks: 8000, staggered: true},
	} {
		b.Run(c.name, func(b *testing.B) {
			x := newIndex(b)
			holders, view := gpuRanks(b, x, c.ranks)
			p := randomPrompt(rand.New(rand.NewPCG(1, 1)), c.blocks)
			for i, h := range holders {
				to := c.blocks
				if c.staggered {
					to = (i + 1) * c.blocks / c.ranks
				}
				if !c.few || i == 0 {
					p.report(b, x, h, 0, to, 32)
				}
			}
			out := make([]Result, c.ranks)
			b.ReportAllocs()
			for b.Loop() {
				x.Walk(view, p.keys, out)
			}
		})
	}
}

// BenchmarkWalkTiers walks a prompt: every rank's GPU has another part of it, with holes, its
// node's disk more, and a bucket all.
func BenchmarkWalkTiers(b *testing.B) {
	const ranks, blocks = 64, 8000
	x := newIndex(b)
	p := randomPrompt(rand.New(rand.NewPCG(1, 1)), blocks)
	add := func(to int) Holder {
		h, err := x.AddHolder("engine")
		if err != nil {
			b.Fatal(err)
		}
		p.report(b, x, h, 0, to, 32)
		return h
	}
	objects := []Holder{add(blocks)}
	var disks []Holder
	for i := range 8 {
		disks = append(disks, add(4000+i*500))
	}
	var list []Rank
	for i := range ranks {
		h := add((i + 1) * 100)
		x.Removed(h, p.ids[i:i+1])
		list = append(list, Rank{GPU: h, HasGPU: true, Disks: disks[i/8 : i/8+1], Objects: objects})
	}
	view, err := NewRanks(list)
	if err != nil {
		b.Fatal(err)
	}
	out := make([]Result, ranks)
	b.ReportAllocs()
	for b.Loop() {
		x.Walk(view, p.keys, out)
	}
}

func BenchmarkStored(b *testing.B) {
	for _, c := range []struct {
		name          string
		ranks, length int
		event         int
		shared        bool
	}{
		{"32-block events, chains of 1000", 1, 1000, 32, false},
		{"32-block events, chains of 32", 1, 32, 32, false},
		{"1-block events, chains of 1000", 1, 1000, 1, false},
		{"32-block events, 64 ranks the same", 64, 1000, 32, true},
	} {
		b.Run(c.name, func(b *testing.B) {
			const blocks = 256_000
			rng := rand.New(rand.NewPCG(1, 1))
			var prompts []prompt
			for range blocks / c.length {
				prompts = append(prompts, randomPrompt(rng, c.length))
			}
			if c.shared {
				prompts = prompts[:blocks/c.length/c.ranks]
			}
			var before, after runtime.MemStats
			for b.Loop() {
				b.StopTimer()
				runtime.GC()
				x := newIndex(b)
				holders, _ := gpuRanks(b, x, c.ranks)
				runtime.ReadMemStats(&before)
				b.StartTimer()
				for i := range prompts {
					for _, h := range holders {
						prompts[i].report(b, x, h, 0, c.length, c.event)
					}
				}
				b.StopTimer()
				runtime.GC()
				runtime.ReadMemStats(&after)
				b.ReportMetric(float64(after.HeapAlloc-before.HeapAlloc)/float64(x.Stats().Blocks), "B/block")
				b.ReportMetric(float64(x.Stats().Bytes)/float64(x.Stats().Blocks), "counted-B/block")
				b.StartTimer()
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(len(prompts)*c.length*c.ranks), "ns/block")
		})
	}
}

func BenchmarkRemoved(b *testing.B) {
	const length, chains = 1000, 256
	rng := rand.New(rand.NewPCG(1, 1))
	var prompts []prompt
	for range chains {
		prompts = append(prompts, randomPrompt(rng, length))
	}
	for _, c := range []struct {
		name    string
		reverse bool
	}{{"from the tail", true}, {"from the head", false}} {
		b.Run(c.name, func(b *testing.B) {
			for b.Loop() {
				b.StopTimer()
				x := newIndex(b)
				holders, _ := gpuRanks(b, x, 1)
				for i := range prompts {
					prompts[i].report(b, x, holders[0], 0, length, 32)
				}
				b.StartTimer()
				for i := range prompts {
					for j := range length {
						if c.reverse {
							j = length - 1 - j
						}
						x.Removed(holders[0], prompts[i].ids[j:j+1])
					}
				}
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/(length*chains), "ns/block")
		})
	}
}
