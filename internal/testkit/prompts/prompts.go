// Package prompts makes the prompts of tests.
package prompts

import "math/rand/v2"

// Of returns the prompt with a number: n tokens of the built-in engine's vocabulary. The first
// tokens of a longer one are the same.
func Of(number uint64, n int) []uint32 {
	r := rand.New(rand.NewPCG(number, 11))
	tokens := make([]uint32, n)
	for i := range tokens {
		tokens[i] = uint32(r.IntN(256))
	}
	return tokens
}

// Random returns n tokens of a vocabulary that uses all 32 bits.
func Random(r *rand.Rand, n int) []uint32 {
	tokens := make([]uint32, n)
	for i := range tokens {
		tokens[i] = r.Uint32()
	}
	return tokens
}
