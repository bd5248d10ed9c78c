package model

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"
)

func TestLayerGroupsFollowTheWindows(t *testing.T) {
	c := TinyHybrid(1)
	want := []Group{{40, []int{0, 3}}, {24, []int{1, 4}}, {0, []int{2, 5}}}
	got := c.Groups()
	if !slices.EqualFunc(got, want, func(a, b Group) bool { return a.Window == b.Window && slices.Equal(a.Layers, b.Layers) }) {
		t.Errorf("groups %v, want %v", got, want)
	}
	c = Tiny(1)
	if got := c.Groups(); len(got) != 1 || len(got[0].Layers) != c.Layers {
		t.Errorf("groups of a model without windows: %v", got)
	}
}

// TestOnlyBlocksInsideOfTheWindowAreRead takes them away, which would show as NaN, then
// the first one inside, where it must.
func TestOnlyBlocksInsideOfTheWindowAreRead(t *testing.T) {
	r := rand.New(rand.NewPCG(6, 6))
	c := TinyHybrid(6)
	m := New(c)
	const tokens = 150
	s := newSequence(r, shuffled(r, 0, 12), tokens)
	kv := newKV(c, 12)
	want := bits(m.Forward(kv, []Chunk{s.chunk(0, tokens)})[0])
	for _, split := range []int{1, 15, 16, 39, 40, 48, 64, 71, 80, 112, 144} {
		for g, group := range c.Groups() {
			kv := newKV(c, 12)
			m.Forward(kv, []Chunk{s.chunk(0, split)})
			first := 0
			if group.Window > 0 {
				first = max(0, split+1-group.Window) / testBlockSize
			}
			for i := range first {
				wipe(kv, group.Layers, s.blocks[g][i])
			}
			if got := bits(m.Forward(kv, []Chunk{s.chunk(split, tokens)})[0]); !slices.Equal(got, want) {
				t.Fatalf("split at %d, window %d: a block outside of it is read", split, group.Window)
			}
			if split < testBlockSize {
				continue
			}
			kv = newKV(c, 12)
			m.Forward(kv, []Chunk{s.chunk(0, split)})
			wipe(kv, group.Layers, s.blocks[g][first])
			if got := m.Forward(kv, []Chunk{s.chunk(split, tokens)})[0]; !math.IsNaN(float64(got[0])) && split%testBlockSize == 0 {
				t.Fatalf("split at %d, window %d: its first block is not read", split, group.Window)
			}
		}
	}
}

func wipe(kv *KV, layers []int, block uint32) {
	for _, layer := range layers {
		for _, p := range kv.Planes[layer] {
			page := p.Data[int(block)*p.BlockStride:][:p.BlockStride]
			for i := range page {
				page[i] = float32(math.NaN())
			}
		}
	}
}

func TestReplicatedHeadsGiveTheSameLogitsAndEveryCopyCounts(t *testing.T) {
	r := rand.New(rand.NewPCG(8, 8))
	c := Tiny(8)
	m := New(c)
	s := newSequence(r, shuffled(r, 0, 6), 90)
	want := bits(m.Forward(newKV(c, 6), []Chunk{s.chunk(0, 90)})[0])
	for bad := -1; bad < 2*c.KVHeads; bad++ {
		kv := newKVCopies(c, 6, 2)
		m.Forward(kv, []Chunk{s.chunk(0, 80)})
		if bad >= 0 {
			p := kv.Planes[2][bad]
			p.Data[int(s.blocks[0][1])*p.BlockStride] = 1e3
		}
		got := bits(m.Forward(kv, []Chunk{s.chunk(80, 90)})[0])
		if same := slices.Equal(got, want); same != (bad < 0) {
			t.Errorf("wrong copy %d: logits are the same: %t", bad, same)
		}
	}
}

func TestAdapterAndContentChangeTheTokens(t *testing.T) {
	r := rand.New(rand.NewPCG(9, 9))
	c := Tiny(9)
	m := New(c)
	s := newSequence(r, shuffled(r, 0, 6), 90)
	logits := func(change func(*Chunk)) []uint32 {
		chunk := s.chunk(0, 90)
		change(&chunk)
		return bits(m.Forward(newKV(c, 6), []Chunk{chunk})[0])
	}
	content := func(pos int, id uint64) func(*Chunk) {
		return func(c *Chunk) {
			c.Content = make([]uint64, 90)
			c.Content[pos] = id
		}
	}
	variants := [][]uint32{
		logits(func(*Chunk) {}),
		logits(func(c *Chunk) { c.Adapter = 1 }), logits(func(c *Chunk) { c.Adapter = 2 }),
		logits(content(5, 1)), logits(content(5, 2)), logits(content(6, 1)),
	}
	for i := range variants {
		for j := range i {
			if slices.Equal(variants[i], variants[j]) {
				t.Errorf("variants %d and %d have the same logits", j, i)
			}
		}
	}
}
