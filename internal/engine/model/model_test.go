package model

import (
	"math"
	"math/rand/v2"
	"runtime"
	"slices"
	"testing"
)

const testBlockSize = 16

// sequence is a prompt with a cache of its own, whose blocks lie in no particular order.
type sequence struct {
	tokens []uint32
	blocks [][]uint32
}

func newSequence(r *rand.Rand, kvBlocks []uint32, tokens int) sequence {
	s := sequence{tokens: make([]uint32, tokens), blocks: [][]uint32{kvBlocks, kvBlocks, kvBlocks}}
	for i := range s.tokens {
		s.tokens[i] = uint32(r.IntN(256))
	}
	return s
}

// shuffled returns the ids of n blocks from the given one on.
func shuffled(r *rand.Rand, from, n int) []uint32 {
	blocks := make([]uint32, n)
	for i := range blocks {
		blocks[i] = uint32(from + i)
	}
	r.Shuffle(n, func(i, j int) { blocks[i], blocks[j] = blocks[j], blocks[i] })
	return blocks
}

// newKV makes a cache whose layer groups have the same slots for blocks, as their tables
// are the same in these tests.
func newKV(c Config, blocks int) *KV { return newKVCopies(c, blocks, 1) }

func newKVCopies(c Config, blocks, copies int) *KV {
	page := c.PlaneFloats(testBlockSize)
	kv := &KV{BlockSize: testBlockSize, Copies: copies, Planes: make([][]Plane, c.Layers)}
	for layer := range kv.Planes {
		for range c.KVHeads * copies {
			data := make([]float32, blocks*page)
			for i := range data {
				data[i] = float32(math.NaN())
			}
			kv.Planes[layer] = append(kv.Planes[layer], Plane{Data: data, BlockStride: page})
		}
	}
	return kv
}

func kvBits(kv *KV) []uint32 {
	var all []uint32
	for _, planes := range kv.Planes {
		for _, p := range planes {
			all = append(all, bits(p.Data)...)
		}
	}
	return all
}

func (s *sequence) chunk(start, end int) Chunk {
	return Chunk{Tokens: s.tokens[start:end], Start: start, Blocks: s.blocks}
}

func bits(logits []float32) []uint32 {
	b := make([]uint32, len(logits))
	for i, x := range logits {
		b[i] = math.Float32bits(x)
	}
	return b
}

// generate returns n greedy tokens after s, whose KV before start is in kv.
func generate(m *Model, kv *KV, s sequence, start, n int) []uint32 {
	logits := m.Forward(kv, []Chunk{s.chunk(start, len(s.tokens))})[0]
	var out []uint32
	for pos := len(s.tokens); ; pos++ {
		next := uint32(slices.Index(logits, slices.Max(logits)))
		if out = append(out, next); len(out) == n {
			return out
		}
		logits = m.Forward(kv, []Chunk{{Tokens: []uint32{next}, Start: pos, Blocks: s.blocks}})[0]
	}
}

func TestLogitsAreBitEqualWhereverThePromptIsSplit(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 1))
	odd := Config{Name: "odd", Vocab: 256, Dim: 22, Hidden: 13, Layers: 2, Heads: 6, KVHeads: 2, HeadDim: 6, MaxContext: 256, Seed: 3}
	for _, c := range []Config{Tiny(1), odd, TinyHybrid(1)} {
		m := New(c)
		const tokens = 75
		s := newSequence(r, shuffled(r, 0, 8), tokens)
		want := bits(m.Forward(newKV(c, 8), []Chunk{s.chunk(0, tokens)})[0])
		for split := 1; split < tokens; split++ {
			kv := newKV(c, 8)
			m.Forward(kv, []Chunk{s.chunk(0, split)})
			if got := bits(m.Forward(kv, []Chunk{s.chunk(split, tokens)})[0]); !slices.Equal(got, want) {
				t.Fatalf("%s: logits differ when the prompt is split at %d", c.Name, split)
			}
		}
		kv := newKV(c, 8)
		for i := range tokens - 1 {
			m.Forward(kv, []Chunk{s.chunk(i, i+1)})
		}
		if got := bits(m.Forward(kv, []Chunk{s.chunk(tokens-1, tokens)})[0]); !slices.Equal(got, want) {
			t.Fatalf("%s: logits differ when the prompt is computed token by token", c.Name)
		}
	}
}

func TestLogitsAndKVAreBitEqualWhateverTheBatchAndTheProcessors(t *testing.T) {
	r := rand.New(rand.NewPCG(2, 2))
	c := TinyHybrid(2)
	m := New(c)
	lengths := []int{1, 150, 37, 200, 16}
	var all []sequence
	var want [][]uint32
	const each = 13
	alone := newKV(c, each*len(lengths))
	for i, n := range lengths {
		s := newSequence(r, shuffled(r, i*each, each), n)
		all = append(all, s)
		want = append(want, bits(m.Forward(alone, []Chunk{s.chunk(0, n)})[0]))
	}
	for _, processors := range []int{1, 2, 5} {
		defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(processors))
		kv := newKV(c, each*len(lengths))
		var batch []Chunk
		for _, s := range all {
			batch = append(batch, s.chunk(0, len(s.tokens)))
		}
		for i, logits := range m.Forward(kv, batch) {
			if !slices.Equal(bits(logits), want[i]) {
				t.Errorf("%d processors: logits of sequence %d depend on the batch", processors, i)
			}
		}
		if !slices.Equal(kvBits(kv), kvBits(alone)) {
			t.Errorf("%d processors: KV depends on the batch", processors)
		}
	}
}

func TestChangingOneTokenChangesTheTokensThatFollow(t *testing.T) {
	const tokens, generated = 200, 24
	for seed := range uint64(4) {
		r := rand.New(rand.NewPCG(seed, 3))
		c := Tiny(seed)
		m := New(c)
		s := newSequence(r, shuffled(r, 0, 15), tokens)
		want := generate(m, newKV(c, 15), s, 0, generated)
		for _, pos := range []int{0, 1, 20, 100, 150, 199} {
			changed := sequence{tokens: slices.Clone(s.tokens), blocks: s.blocks}
			changed.tokens[pos] ^= 1
			if got := generate(m, newKV(c, 15), changed, 0, generated); slices.Equal(got, want) {
				t.Errorf("seed %d: changing token %d of %d changes none of %d tokens", seed, pos, tokens, generated)
			}
		}
	}
}

func TestExchangingAnyTwoBlocksChangesTheTokens(t *testing.T) {
	const tokens, generated = 200, 24
	const full = tokens / testBlockSize
	for seed := range uint64(3) {
		r := rand.New(rand.NewPCG(seed, 4))
		c := Tiny(seed)
		m := New(c)
		s := newSequence(r, shuffled(r, 0, 15), tokens)
		kv := newKV(c, 15)
		want := generate(m, kv, s, 0, generated)
		for i := range full {
			table := slices.Clone(s.blocks[0])
			j := (i + 1 + r.IntN(full-1)) % full
			table[i], table[j] = table[j], table[i]
			other := sequence{tokens: s.tokens, blocks: [][]uint32{table}}
			if got := generate(m, kv, other, full*testBlockSize, generated); slices.Equal(got, want) {
				t.Errorf("seed %d: exchanging blocks %d and %d of %d changes none of %d tokens", seed, i, j, full, generated)
			}
		}
	}
}

func TestSeedAndShapeDecideTheFingerprint(t *testing.T) {
	base := New(Tiny(1)).Fingerprint()
	if again := New(Tiny(1)).Fingerprint(); again != base {
		t.Errorf("equal models have fingerprints %s and %s", base, again)
	}
	if other := New(Tiny(2)).Fingerprint(); other == base {
		t.Error("models of different seeds have the same fingerprint")
	}
}

func TestConfigThatMakesNoModelIsRefused(t *testing.T) {
	for name, change := range map[string]func(*Config){
		"no name":        func(c *Config) { c.Name = "" },
		"no layers":      func(c *Config) { c.Layers = 0 },
		"huge context":   func(c *Config) { c.MaxContext = 1 << 30 },
		"odd head":       func(c *Config) { c.HeadDim = 7 },
		"uneven sharing": func(c *Config) { c.KVHeads = 3 },
	} {
		c := Tiny(1)
		change(&c)
		if c.Validate() == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}

func TestExpIsCloseToE(t *testing.T) {
	for x := float32(-87); x < 88; x += 0.0137 {
		want := math.Exp(float64(x))
		if got := float64(exp(x)); math.Abs(got-want) > 4e-7*want {
			t.Fatalf("exp(%v) = %v, want %v", x, got, want)
		}
	}
	if exp(-1000) != 0 || math.IsInf(float64(exp(1000)), 0) || exp(0) != 1 {
		t.Errorf("exp(-1000) = %v, exp(1000) = %v, exp(0) = %v", exp(-1000), exp(1000), exp(0))
	}
}
