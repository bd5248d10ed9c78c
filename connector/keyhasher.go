package connector

import (
	"encoding/binary"
	"math/bits"
	"slices"
)

// KeyHasher computes the keys of prompts; it keeps the work space of hashing. The zero
// value is ready to use. It is not safe for concurrent use.
type KeyHasher struct{ block, scratch []byte }

// Append appends the block keys of tokens that follow parent (a prompt's root key, see
// [RootKey], or the key of the block before) to keys. A block that is not full at the end
// has no key. The keys are those of [NextKey]; blocks of 16 tokens, what engines use most,
// are hashed two to four times as fast. It allocates only what keys grows by.
func (h *KeyHasher) Append(keys []Key, parent Key, tokens []uint32, blockSize int) []Key {
	if blockSize <= 0 {
		return keys
	}
	if blockSize == 16 {
		return appendKeys16(keys, parent, tokens)
	}
	for len(tokens) >= blockSize {
		h.block = AppendTokens(h.block[:0], tokens[:blockSize])
		parent, h.scratch = NextKey(parent, h.block, h.scratch)
		keys = append(keys, parent)
		tokens = tokens[blockSize:]
	}
	return keys
}

// The constants of XXH3-128 for inputs of 65 to 96 bytes: the first twelve words of its
// secret and the primes of its finish.
const (
	secret0  = 0xbe4ba423396cfeb8
	secret1  = 0x1cad21f72c81017c
	secret2  = 0xdb979083e96dd4de
	secret3  = 0x1f67b3b7a4a44072
	secret4  = 0x78e5c0cc4ee679cb
	secret5  = 0x2172ffcc7dd05a82
	secret6  = 0x8e2443f7744608b8
	secret7  = 0x4c263a81e69035e0
	secret8  = 0xcb00c391bb52283c
	secret9  = 0xa32e531b8b65d088
	secret10 = 0x4ef90da297486471
	secret11 = 0xd8acdea946ef1938

	prime1 = 11400714785074694791
	prime2 = 14029467366897019727
	prime4 = 9650029242287828579

	// chainLen is the length of a hashed block: the parent's key and 16 tokens.
	chainLen = KeySize + 64
)

// appendKeys16 is XXH3-128 (Collet, xxHash 0.8) of parent and 16 tokens, unrolled for that
// length. Only the last product depends on the parent, so that the processor works on the
// next block's tokens while it waits for this block's key. The loop makes no call: append would
// grow the slice in the middle, and around a call nothing stays in a register.
func appendKeys16(keys []Key, parent Key, tokens []uint32) []Key {
	p0 := binary.LittleEndian.Uint64(parent[:8])
	p1 := binary.LittleEndian.Uint64(parent[8:])
	had, n := len(keys), len(tokens)/16
	keys = slices.Grow(keys, n)[:had+n]
	out := keys[had:]
	for i := range out {
		t := (*[16]uint32)(tokens[16*i:])
		w2, w3 := pair(t[0], t[1]), pair(t[2], t[3])
		w4, w5 := pair(t[4], t[5]), pair(t[6], t[7])
		w6, w7 := pair(t[8], t[9]), pair(t[10], t[11])
		w8, w9 := pair(t[12], t[13]), pair(t[14], t[15])

		hi := mulFold(w4^secret10, w5^secret11) ^ (w4 + w5)
		hi = (hi + mulFold(w6^secret6, w7^secret7)) ^ (w2 + w3)
		hi += mulFold(w8^secret2, w9^secret3)
		var lo uint64 = chainLen * prime1 & (1<<64 - 1)
		lo = (lo + mulFold(w4^secret8, w5^secret9)) ^ (w4 + w5)
		lo = (lo + mulFold(w2^secret4, w3^secret5)) ^ (w6 + w7)

		hi ^= p0 + p1
		lo = (lo + mulFold(p0^secret0, p1^secret1)) ^ (w8 + w9)
		h := -avalanche(lo*prime1 + hi*prime4 + chainLen*prime2&(1<<64-1))
		l := avalanche(hi + lo)

		// A key is the hash in big-endian form, and is hashed in turn as little-endian words.
		p0, p1 = bits.ReverseBytes64(h), bits.ReverseBytes64(l)
		binary.LittleEndian.PutUint64(out[i][:8], p0)
		binary.LittleEndian.PutUint64(out[i][8:], p1)
	}
	return keys
}

func pair(a, b uint32) uint64 { return uint64(a) | uint64(b)<<32 }

func mulFold(a, b uint64) uint64 {
	hi, lo := bits.Mul64(a, b)
	return hi ^ lo
}

func avalanche(x uint64) uint64 {
	x ^= x >> 37
	x *= 0x165667919e3779f9
	return x ^ x>>32
}
