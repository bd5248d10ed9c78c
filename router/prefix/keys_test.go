package prefix

import (
	"math/rand/v2"
)

// randomTokens are n tokens of a vocabulary that uses all 32 bits.
func randomTokens(rng *rand.Rand, n int) []uint32 {
	tokens := make([]uint32, n)
	for i := range tokens {
		tokens[i] = rng.Uint32()
	}
	return tokens
}
