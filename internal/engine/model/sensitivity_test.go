package model

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/kvconn/kvconn/internal/testkit/docs"
)

// Each token of a long prompt makes a difference, and so does wrong KV.
func TestEveryTokenTurnsTheLogits(t *testing.T) {
	if testing.Short() {
		t.Skip("a measurement for a document")
	}
	const tokens = 200
	c := Tiny(1)
	m, r := New(c), rand.New(rand.NewPCG(1, 1))
	s := newSequence(r, shuffled(r, 0, tokens/testBlockSize+1), tokens)
	logits := func() []float32 {
		return m.Forward(newKV(c, tokens/testBlockSize+1), []Chunk{s.chunk(0, tokens)})[0]
	}
	want := slices.Clone(logits()) // the model uses its memory again
	mean, least := 0.0, math.Inf(1)
	const changes = 40
	for i := range changes {
		at := i * tokens / changes
		s.tokens[at] ^= 0x55
		turned, length := 0.0, 0.0
		for k, x := range logits() {
			turned += float64((x - want[k]) * (x - want[k]))
			length += float64(want[k] * want[k])
		}
		s.tokens[at] ^= 0x55
		part := math.Sqrt(turned / length)
		mean, least = mean+part/changes, min(least, part)
	}
	docs.Says(t, "adr/0004-built-in-engine.md", fmt.Sprintf(
		"turn the logits by %.2f of their length on average, at least by %.3f, when one of %d prompt tokens changes", mean, least, tokens))
}
