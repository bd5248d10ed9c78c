package connector

import (
	"crypto/sha256"
	"encoding/binary"

	"github.com/zeebo/xxh3"
)

// Scope is what must separate equal tokens. It is mixed into key and proof.
type Scope struct {
	// Salt separates tenants (vLLM: cache_salt).
	Salt string
	// LoRA identifies the adapter, empty for the base model.
	LoRA string
}

// AppendTokens appends the little-endian 32-bit form of tokens to b, the form that
// chains hash and frames carry.
func AppendTokens(b []byte, tokens []uint32) []byte {
	for _, t := range tokens {
		b = binary.LittleEndian.AppendUint32(b, t)
	}
	return b
}

// appendScope appends the scope, each part behind its length, so that no two scopes
// have the same form.
func appendScope(b []byte, s Scope) []byte {
	for _, part := range [...]string{s.Salt, s.LoRA} {
		b = binary.LittleEndian.AppendUint32(b, uint32(len(part)))
		b = append(b, part...)
	}
	return b
}

// RootKey is the parent of a prompt's first block key:
// XXH3-128("kvconn/key/1", block size u32 LE, scope). It names no block.
func RootKey(blockSize int, s Scope) Key {
	b := binary.LittleEndian.AppendUint32([]byte("kvconn/key/1"), uint32(blockSize))
	h := xxh3.Hash128(appendScope(b, s))
	return Key(h.Bytes())
}

// NextKey is the key of the block that holds tokens (little-endian, see [AppendTokens])
// and follows parent: XXH3-128(parent, tokens). scratch is used as work space and
// returned grown, so that a chain is hashed without allocation.
func NextKey(parent Key, tokens []byte, scratch []byte) (Key, []byte) {
	scratch = append(append(scratch[:0], parent[:]...), tokens...)
	return Key(xxh3.Hash128(scratch).Bytes()), scratch
}

// RootProof is the parent of a prompt's first proof:
// SHA-256("kvconn/proof/1", namespace digest, block size u32 LE, scope).
func RootProof(ns NamespaceDigest, blockSize int, s Scope) Proof {
	b := append([]byte("kvconn/proof/1"), ns[:]...)
	b = binary.LittleEndian.AppendUint32(b, uint32(blockSize))
	return sha256.Sum256(appendScope(b, s))
}

// NextProof is SHA-256(parent, tokens), the proof of the block that holds tokens and
// follows parent. scratch is as for [NextKey].
func NextProof(parent Proof, tokens []byte, scratch []byte) (Proof, []byte) {
	scratch = append(append(scratch[:0], parent[:]...), tokens...)
	return sha256.Sum256(scratch), scratch
}
