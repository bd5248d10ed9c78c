package leader

import (
	"encoding/binary"
	"time"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/store"
)

// request is what the leader knows of one request of the engine. Tokens only ever grow;
// keys and proofs are hashed as far as somebody has needed them.
type request struct {
	id    string
	scope connector.Scope
	// tokens in the form that chains hash, four bytes each.
	tokens []byte
	keys   []connector.Key
	proofs []connector.Proof
	// slots is the engine's block table.
	slots []uint32
	// saved counts the leading blocks that are stored, or were planned to be.
	saved int
	// loadFirst and loadCount are the blocks of the table that a load is filling.
	loadFirst, loadCount int
	lease                store.LeaseID
	// failed is set once a load went wrong: the request is not offered anything again,
	// since an engine that asks again after a failure would fail and ask for ever.
	failed         bool
	noLoad, noSave bool
	touched        time.Time
}

// tell takes over that the tokens from index from on are these, whatever was known
// there before. It reports false where tokens before from are missing. The caller has
// checked that there are not too many.
func (r *request) tell(blockSize, from int, tokens []uint32) bool {
	if from > len(r.tokens)/4 {
		return false
	}
	at := from
	for at-from < len(tokens) && at < len(r.tokens)/4 && binary.LittleEndian.Uint32(r.tokens[4*at:]) == tokens[at-from] {
		at++
	}
	r.truncate(blockSize, at)
	r.tokens = connector.AppendTokens(r.tokens, tokens[at-from:])
	return true
}

// truncate forgets the tokens from index n on, and what was hashed from them.
func (r *request) truncate(blockSize, n int) {
	r.tokens = r.tokens[:4*n]
	blocks := n / blockSize
	r.keys = r.keys[:min(len(r.keys), blocks)]
	r.proofs = r.proofs[:min(len(r.proofs), blocks)]
	r.saved = min(r.saved, blocks)
}

// fullBlocks is the number of blocks whose tokens are all known.
func (r *request) fullBlocks(blockSize int) int { return len(r.tokens) / (4 * blockSize) }

// hashKeys makes sure that the keys of the first n blocks are there.
func (r *request) hashKeys(blockSize, n int, scratch []byte) []byte {
	for len(r.keys) < n {
		parent := r.parent(blockSize, len(r.keys))
		var k connector.Key
		k, scratch = connector.NextKey(parent, r.blockTokens(blockSize, len(r.keys)), scratch)
		r.keys = append(r.keys, k)
	}
	return scratch
}

// hashProofs makes sure that the proofs of the first n blocks are there.
func (r *request) hashProofs(ns connector.NamespaceDigest, blockSize, n int, scratch []byte) []byte {
	for len(r.proofs) < n {
		parent := connector.Proof{}
		if i := len(r.proofs); i > 0 {
			parent = r.proofs[i-1]
		} else {
			parent = connector.RootProof(ns, blockSize, r.scope)
		}
		var p connector.Proof
		p, scratch = connector.NextProof(parent, r.blockTokens(blockSize, len(r.proofs)), scratch)
		r.proofs = append(r.proofs, p)
	}
	return scratch
}

// parent is the key in front of block i.
func (r *request) parent(blockSize, i int) connector.Key {
	if i > 0 {
		return r.keys[i-1]
	}
	return connector.RootKey(blockSize, r.scope)
}

func (r *request) blockTokens(blockSize, i int) []byte {
	return r.tokens[4*blockSize*i : 4*blockSize*(i+1)]
}

// transfer is the move of blocks [first, end) of r's table. Blocks beyond what the
// leader knows get the zero key, which no record has: they fail as missing.
func (r *request) transfer(blockSize, first, end int) connector.Transfer {
	t := connector.Transfer{Blocks: make([]connector.PlanBlock, 0, end-first)}
	if first <= len(r.keys) {
		t.Parent = r.parent(blockSize, first)
	}
	for i := first; i < end; i++ {
		b := connector.PlanBlock{Slot: r.slots[i]}
		if i < len(r.keys) && i < len(r.proofs) {
			b.Key, b.Proof = r.keys[i], r.proofs[i]
		}
		t.Blocks = append(t.Blocks, b)
	}
	return t
}
