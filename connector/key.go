package connector

import "encoding/hex"

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
