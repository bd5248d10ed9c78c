package leader

import (
	"slices"
	"strings"
	"unsafe"

	"github.com/kvconn/kvconn/connector"
)

// roots are where the chains of a scope begin.
type roots struct {
	scope  connector.Scope
	digest connector.ScopeDigest
	key    connector.Key
	proof  connector.Proof
}

// hasher computes keys and proofs. Its work space is used again.
type hasher struct {
	digest    connector.NamespaceDigest
	blockSize int
	// plain hashes blocks without spans.
	plain   connector.KeyHasher
	scratch []byte
	block   []byte
	roots   map[connector.Scope]*roots
}

// maxRoots bounds the scopes whose roots are remembered.
const maxRoots = 1024

// rootsOf returns the roots of a scope. The scope's strings are not kept.
func (h *hasher) rootsOf(s connector.Scope) *roots {
	if r := h.roots[s]; r != nil {
		return r
	}
	if len(h.roots) >= maxRoots {
		clear(h.roots)
	}
	s = connector.Scope{Salt: strings.Clone(s.Salt), LoRA: strings.Clone(s.LoRA)}
	r := &roots{scope: s, digest: s.Digest(), key: connector.RootKey(h.blockSize, s), proof: connector.RootProof(h.digest, h.blockSize, s)}
	h.roots[s] = r
	return r
}

// keys makes sure that r has the keys of its first n blocks.
func (h *hasher) keys(r *request, n int) {
	if len(r.keys) >= n {
		return
	}
	parent := r.parent(len(r.keys))
	first := len(r.keys)
	r.keys = slices.Grow(r.keys, n-first)[:n]
	if len(r.spans) == 0 {
		r.keys = h.plain.Append(r.keys[:first], parent, r.tokens[first*h.blockSize:n*h.blockSize], h.blockSize)
		return
	}
	scratch := h.scratch
	at := spanCursor{spans: r.spans}
	for i := first; i < n; i++ {
		parent, scratch = connector.NextKey(parent, h.bytes(r, i, &at), scratch)
		r.keys[i] = parent
	}
	h.scratch = scratch
}

// proofs makes sure that r has the proofs of its first n blocks.
func (h *hasher) proofs(r *request, n int) {
	if len(r.proofs) >= n {
		return
	}
	parent := r.roots.proof
	if i := len(r.proofs); i > 0 {
		parent = r.proofs[i-1]
	}
	at := spanCursor{spans: r.spans}
	for i := len(r.proofs); i < n; i++ {
		parent, h.scratch = connector.NextProof(parent, h.bytes(r, i, &at), h.scratch)
		r.proofs = append(r.proofs, parent)
	}
}

// bytes is what the chains hash of block i: its tokens, and what the spans add. The result is valid
// until the next call.
func (h *hasher) bytes(r *request, i int, at *spanCursor) []byte {
	start, end := i*h.blockSize, (i+1)*h.blockSize
	spans := at.within(start, end)
	if littleEndian && len(spans) == 0 {
		return unsafe.Slice((*byte)(unsafe.Pointer(&r.tokens[start])), 4*h.blockSize)
	}
	h.block = connector.AppendTokens(h.block[:0], r.tokens[start:end])
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
