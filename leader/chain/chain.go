// Package chain computes the chains of keys and proofs of prompts, from where a scope begins.
package chain

import (
	"slices"
	"strings"
	"unsafe"

	"github.com/kvconn/kvconn/connector"
)

// Roots are where the chains of a scope begin. They are not to be changed.
type Roots struct {
	Scope  connector.Scope
	Digest connector.ScopeDigest
	Key    connector.Key
	Proof  connector.Proof
}

// Hasher computes keys and proofs of one namespace. Its work space is used again, so it is for one goroutine at a time.
type Hasher struct {
	namespace connector.NamespaceDigest
	blockSize int
	// plain hashes blocks without spans.
	plain   connector.KeyHasher
	scratch []byte
	block   []byte
	roots   map[connector.Scope]*Roots
}

// New returns a hasher for blocks of that many tokens.
func New(namespace connector.NamespaceDigest, blockSize int) Hasher {
	return Hasher{namespace: namespace, blockSize: blockSize, roots: make(map[connector.Scope]*Roots)}
}

// maxRoots bounds the scopes whose roots are remembered.
const maxRoots = 1024

// Roots returns the roots of a scope. The scope's strings are not kept.
func (h *Hasher) Roots(s connector.Scope) *Roots {
	if r := h.roots[s]; r != nil {
		return r
	}
	if len(h.roots) >= maxRoots {
		clear(h.roots)
	}
	s = connector.Scope{Salt: strings.Clone(s.Salt), LoRA: strings.Clone(s.LoRA)}
	r := &Roots{Scope: s, Digest: s.Digest(), Key: connector.RootKey(h.blockSize, s), Proof: connector.RootProof(h.namespace, h.blockSize, s)}
	h.roots[s] = r
	return r
}

// Keys appends to the keys of a prompt's first blocks those up to n blocks, if there are fewer.
func (h *Hasher) Keys(keys []connector.Key, root *Roots, tokens []uint32, spans []connector.Span, n int) []connector.Key {
	first := len(keys)
	if first >= n {
		return keys
	}
	parent := root.Key
	if first > 0 {
		parent = keys[first-1]
	}
	keys = slices.Grow(keys, n-first)[:n]
	if len(spans) == 0 {
		return h.plain.Append(keys[:first], parent, tokens[first*h.blockSize:n*h.blockSize], h.blockSize)
	}
	scratch := h.scratch
	at := spanCursor{spans: spans}
	for i := first; i < n; i++ {
		parent, scratch = connector.NextKey(parent, h.bytes(tokens, i, &at), scratch)
		keys[i] = parent
	}
	h.scratch = scratch
	return keys
}

// Proofs appends to the proofs of a prompt's first blocks those up to n blocks, if there are fewer.
func (h *Hasher) Proofs(proofs []connector.Proof, root *Roots, tokens []uint32, spans []connector.Span, n int) []connector.Proof {
	if len(proofs) >= n {
		return proofs
	}
	parent := root.Proof
	if i := len(proofs); i > 0 {
		parent = proofs[i-1]
	}
	at := spanCursor{spans: spans}
	for i := len(proofs); i < n; i++ {
		parent, h.scratch = connector.NextProof(parent, h.bytes(tokens, i, &at), h.scratch)
		proofs = append(proofs, parent)
	}
	return proofs
}

// bytes is what the chains hash of block i: its tokens, and what the spans add. The result is valid
// until the next call.
func (h *Hasher) bytes(tokens []uint32, i int, at *spanCursor) []byte {
	start, end := i*h.blockSize, (i+1)*h.blockSize
	spans := at.within(start, end)
	if littleEndian && len(spans) == 0 {
		return unsafe.Slice((*byte)(unsafe.Pointer(&tokens[start])), 4*h.blockSize)
	}
	h.block = connector.AppendTokens(h.block[:0], tokens[start:end])
	h.block = connector.AppendExtra(h.block, spans, start, end)
	return h.block
}

// littleEndian says that tokens lie in memory as chains hash them.
var littleEndian = func() bool {
	one := uint32(1)
	return *(*byte)(unsafe.Pointer(&one)) == 1
}()

// spanCursor goes over the spans of a prompt from block to block, so that a prompt of many
// images is not searched for each block.
type spanCursor struct {
	spans []connector.Span
}

// within returns spans that include all that reach into [start, end). Each call begins after the
// one before.
func (c *spanCursor) within(start, end int) []connector.Span {
	for len(c.spans) > 0 && c.spans[0].End <= start {
		c.spans = c.spans[1:]
	}
	n := 0
	for n < len(c.spans) && c.spans[n].Start < end {
		n++
	}
	return c.spans[:n]
}
