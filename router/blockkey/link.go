package blockkey

import (
	"crypto/sha256"
	"encoding/binary"

	"github.com/kvconn/kvconn/connector"
)

// Link is a place in a chain of blocks: after a block, or the root of prompts. The key of the block that follows is
// computed from it. Equal links are the same place.
type Link struct {
	scheme Scheme
	// size is how many bytes of hash the next block's hash covers: 0 at SGLang's plain root.
	size uint8
	hash connector.Proof
}

// Tail is what a [Link] has beyond the key of its block. It is zero for [Tokens].
type Tail [connector.ProofSize - connector.KeySize]byte

// At is the place after the block with a key and a tail.
func (s Scheme) At(key connector.Key, tail Tail) Link {
	if s == Tokens {
		return keyLink(key)
	}
	l := Link{scheme: s, size: connector.ProofSize}
	copy(l.hash[:], key[:])
	copy(l.hash[connector.KeySize:], tail[:])
	return l
}

func keyLink(key connector.Key) Link {
	l := Link{size: connector.KeySize}
	copy(l.hash[:], key[:])
	return l
}

// Key is the key of the block, for [Tokens] also that of the root.
func (l Link) Key() connector.Key { return connector.EngineKey(l.hash) }

// Tail is what [Scheme.At] needs beside the key.
func (l Link) Tail() Tail { return Tail(l.hash[connector.KeySize:]) }

// Name is SGLang's name of the block in its events.
func (l Link) Name() uint64 { return binary.BigEndian.Uint64(l.hash[:8]) }

// Next is the place after the block that follows l and has these tokens, 4 bytes each, little endian, and whatever else
// its key is to cover. scratch is work space; it is returned grown.
func (l Link) Next(tokens, scratch []byte) (Link, []byte) {
	if l.scheme == Tokens {
		key, scratch := connector.NextKey(l.Key(), tokens, scratch)
		return keyLink(key), scratch
	}
	scratch = append(append(scratch[:0], l.hash[:l.size]...), tokens...)
	return Link{scheme: l.scheme, size: connector.ProofSize, hash: sha256.Sum256(scratch)}, scratch
}

// Hasher computes the keys of one prompt after another, each from its beginning up to the last block that is asked for. The
// zero Hasher is ready for Begin. It is not safe for concurrent use.
type Hasher struct {
	at      Link
	keys    connector.KeyHasher
	tokens  []byte
	scratch []byte
}

// Begin begins a prompt at root.
func (h *Hasher) Begin(root Link) { h.at = root }

// Append appends the keys of the prompt's next blocks to keys, those of tokens. A block that is not full at the end has
// no key, and the prompt ends there. It allocates only what keys and its work space grow by.
func (h *Hasher) Append(keys []connector.Key, tokens []uint32, blockSize int) []connector.Key {
	if h.at.scheme == Tokens {
		had := len(keys)
		if keys = h.keys.Append(keys, h.at.Key(), tokens, blockSize); len(keys) > had {
			h.at = keyLink(keys[len(keys)-1])
		}
		return keys
	}
	for blockSize > 0 && len(tokens) >= blockSize {
		h.tokens = connector.AppendTokens(h.tokens[:0], tokens[:blockSize])
		h.at, h.scratch = h.at.Next(h.tokens, h.scratch)
		keys, tokens = append(keys, h.at.Key()), tokens[blockSize:]
	}
	return keys
}
