package model

import (
	"fmt"
	"math/rand/v2"
	"testing"
)

func BenchmarkPrefill(b *testing.B) {
	for _, x := range []struct {
		config Config
		tokens int
	}{{Tiny(1), 200}, {Demo(1), 1500}} {
		b.Run(fmt.Sprintf("%s/%d", x.config.Name, x.tokens), func(b *testing.B) {
			m := New(x.config)
			blocks := x.tokens/testBlockSize + 1
			r := rand.New(rand.NewPCG(5, 5))
			s := newSequence(r, shuffled(r, 0, blocks), x.tokens)
			kv := newKV(x.config, blocks)
			for b.Loop() {
				m.Forward(kv, []Chunk{s.chunk(0, x.tokens)})
			}
		})
	}
}

func BenchmarkDecode(b *testing.B) {
	for _, c := range []Config{Tiny(1), Demo(1)} {
		b.Run(c.Name, func(b *testing.B) {
			m := New(c)
			r := rand.New(rand.NewPCG(5, 5))
			s := newSequence(r, shuffled(r, 0, 20), 300)
			kv := newKV(c, 20)
			m.Forward(kv, []Chunk{s.chunk(0, 299)})
			for b.Loop() {
				m.Forward(kv, []Chunk{s.chunk(299, 300)})
			}
		})
	}
}
