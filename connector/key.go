package connector

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"

	"github.com/zeebo/xxh3"
)

// KeySize is the length of a [Key] in bytes.
const KeySize = 16

// ProofSize is the length of a [Proof] in bytes.
const ProofSize = 32

// Key is a block key: the 128-bit XXH3 chained over a prompt's token blocks. It
// identifies one token block and everything before it. It is made of tokens, block
// size and scope only, so that leader, store and every router compute the same key.
// The zero Key is the parent of a chain's first block and names no block.
type Key [KeySize]byte

// String returns the key in lower-case hexadecimal.
func (k Key) String() string { return hex.EncodeToString(k[:]) }

// Proof is a prefix proof: the SHA-256 chained like the block key, with the namespace
// in its root. It is stored with the bytes and compared at load: the key finds, the
// proof proves.
type Proof [ProofSize]byte

// String returns the proof in lower-case hexadecimal.
func (p Proof) String() string { return hex.EncodeToString(p[:]) }

// EngineKey is the key of a block whose engine names it by a cryptographic hash of its
// whole prefix: the first 128 bits of the hash, which is its own proof.
func EngineKey(hash Proof) Key { return Key(hash[:KeySize]) }

// Shard numbers the parts of a block that different readers own: the KV bytes of one
// block held by one rank and layer group. See [Manifest.Shard].
type Shard uint16

// NamespaceDigest is the identity of a namespace: the SHA-256 of its canonical manifest.
type NamespaceDigest [32]byte

// String returns the digest in lower-case hexadecimal.
func (d NamespaceDigest) String() string { return hex.EncodeToString(d[:]) }

// Scope is what must separate equal tokens. It is mixed into key and proof.
type Scope struct {
	// Salt separates tenants (vLLM: cache_salt).
	Salt string
	// LoRA identifies the adapter by its content, empty for the base model.
	LoRA string
}

// ScopeDigest tells the records of one scope from those of others where the scope itself is
// not kept: bytes 0 to 7 are of the tenant (the salt), bytes 8 to 15 of the adapter. An empty
// part of the scope is zero, so the digest of the empty scope is zero. It serves to list,
// count and clear; key and proof separate scopes, not this.
type ScopeDigest [16]byte

// UnknownScope stands in records that were written before scopes were kept (format 1).
var UnknownScope = ScopeDigest{
	0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff,
}

// Digest is SHA-256("kvconn/tenant/1", salt) and SHA-256("kvconn/adapter/1", LoRA), the
// first 8 bytes of each.
func (s Scope) Digest() ScopeDigest {
	var d ScopeDigest
	if s.Salt != "" {
		h := sha256.Sum256(append([]byte("kvconn/tenant/1"), s.Salt...))
		copy(d[:8], h[:])
	}
	if s.LoRA != "" {
		h := sha256.Sum256(append([]byte("kvconn/adapter/1"), s.LoRA...))
		copy(d[8:], h[:])
	}
	return d
}

// AppendTokens appends the little-endian 32-bit form of tokens to b, the form that
// chains hash and frames carry.
func AppendTokens(b []byte, tokens []uint32) []byte {
	for _, t := range tokens {
		b = binary.LittleEndian.AppendUint32(b, t)
	}
	return b
}

// appendScope appends the scope, each part after its length, so that no two scopes
// have the same form.
func appendScope(b []byte, s Scope) []byte {
	for _, part := range [...]string{s.Salt, s.LoRA} {
		b = binary.LittleEndian.AppendUint32(b, uint32(len(part)))
		b = append(b, part...)
	}
	return b
}

// Span says that the tokens [Start, End) of a prompt stand for other content, such as an
// image's embeddings: placeholder tokens are equal whatever they stand for.
type Span struct {
	Start, End int
	// ID identifies the content (vLLM: mm_hash).
	ID []byte
}

// AppendExtra appends what the spans add to the block of tokens [start, end): for each
// that reaches into it, in order, the length of its id and the id, where it begins as seen
// from the block, and its length, all numbers as little-endian 32-bit. A block's chain
// hashes its tokens followed by these bytes; tokens have a fixed length, so that no two
// blocks have the same form.
func AppendExtra(b []byte, spans []Span, start, end int) []byte {
	for i := range spans {
		s := &spans[i]
		if s.Start >= end || s.End <= start {
			continue
		}
		b = binary.LittleEndian.AppendUint32(b, uint32(len(s.ID)))
		b = append(b, s.ID...)
		b = binary.LittleEndian.AppendUint32(b, uint32(int32(s.Start-start)))
		b = binary.LittleEndian.AppendUint32(b, uint32(s.End-s.Start))
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

// NextKey is the key of the block that holds tokens (little-endian, see [AppendTokens], and
// what [AppendExtra] adds) and follows parent: XXH3-128(parent, tokens). scratch is work
// space; it is returned grown, so that a chain is hashed without allocation.
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
