package leader

import (
	"bytes"
	"slices"

	"github.com/zeebo/xxh3"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/store"
)

// request is what the leader knows of one request of the engine. Tokens only ever grow
// or are replaced; keys and proofs are hashed as far as somebody has needed them.
// Requests are used again for others: nothing may keep what they refer to.
type request struct {
	hash  xxh3.Uint128
	id    []byte
	roots *roots
	// spans and the bytes of their ids.
	spans   []connector.Span
	spanIDs []byte

	// counted is the size with which the request counts among all.
	counted int

	tokens []uint32
	keys   []connector.Key
	proofs []connector.Proof
	// prompt is the number of tokens of the prompt.
	prompt int

	// tables are the engine's block tables, one for each layer group. They mean nothing
	// unless placed is set: the engine has told the whole of them.
	tables [][]uint32
	placed bool
	// saved counts, for each layer group, the leading blocks that are stored, or were
	// planned to be.
	saved []int

	// leases pin what is offered up to block offered, staged holds it in staging memory.
	leases  []store.LeaseID
	offered int
	staged  *stagedPrefix
	// promised are the bytes of the plan that the offer would take, if it was made in step
	// promisedAt.
	promised   int
	promisedAt uint64
	// loads were planned and are not reported, the oldest first.
	loads []*load

	// failed is set once a load went wrong: the request is not offered anything again,
	// since an engine that asks again after a failure would fail and ask for ever.
	failed bool
	// lost are the blocks that failed then, in order. They are saved again also where this
	// node's store has them: the rank that has not may live on another node.
	lost           []int
	noLoad, noSave bool
	// decided is set once the request counts among the decisions.
	decided bool
	// step is the last step that computed the request, as far as the leader was told, and
	// computed the tokens that were there behind it.
	step     uint64
	computed int
	// waiting is set while a match waits for staging memory with the leader unlocked. gone
	// and changed tell it that the request was forgotten, or got other tokens, meanwhile.
	waiting, gone, changed bool

	prev, next *request
}

// reset makes r the request of an id that the leader was not told of.
func (r *request) reset(groups int) {
	r.roots, r.staged, r.prev, r.next = nil, nil, nil, nil
	r.spans, r.spanIDs = r.spans[:0], r.spanIDs[:0]
	r.tokens, r.keys, r.proofs, r.prompt = r.tokens[:0], r.keys[:0], r.proofs[:0], 0
	if len(r.saved) != groups {
		r.tables, r.saved = make([][]uint32, groups), make([]int, groups)
	}
	r.unplace()
	clear(r.saved)
	r.leases, r.offered, r.lost = r.leases[:0], 0, r.lost[:0]
	clear(r.loads)
	r.loads = r.loads[:0]
	r.failed, r.noLoad, r.noSave, r.decided, r.waiting, r.gone = false, false, false, false, false, false
	r.step, r.computed, r.counted = 0, 0, 0
	r.promised, r.promisedAt = 0, 0
}

// tell takes over that the tokens from index from on are these, whatever was known
// there before. It reports false where tokens before from are missing. The caller has
// checked that there are not too many.
func (r *request) tell(blockSize, from int, tokens []uint32) bool {
	if from > len(r.tokens) {
		return false
	}
	known := r.tokens[from:]
	n := min(len(known), len(tokens))
	at := 0
	for at < n && known[at] == tokens[at] {
		at++
	}
	if at < len(known) {
		r.truncate(blockSize, from+at)
	}
	r.tokens = append(r.tokens, tokens[at:]...)
	return true
}

// truncate forgets the tokens from index n on, and what was hashed from them.
func (r *request) truncate(blockSize, n int) {
	r.tokens = r.tokens[:n]
	blocks := n / blockSize
	r.keys = r.keys[:min(len(r.keys), blocks)]
	r.proofs = r.proofs[:min(len(r.proofs), blocks)]
	r.unsave(blocks)
	if r.staged != nil && r.staged.end() > blocks {
		r.staged.release()
		r.staged = nil
	}
	r.changed = true
}

// unsave says that blocks from n on are to be saved again.
func (r *request) unsave(n int) {
	for g := range r.saved {
		r.saved[g] = min(r.saved[g], n)
	}
}

// setSpans takes over copies of spans.
func (r *request) setSpans(spans []connector.Span) {
	r.spanIDs = r.spanIDs[:0]
	for i := range spans {
		r.spanIDs = append(r.spanIDs, spans[i].ID...)
	}
	r.spans = append(r.spans[:0], spans...)
	at := 0
	for i := range r.spans {
		s := &r.spans[i]
		n := len(s.ID)
		s.ID = r.spanIDs[at : at+n : at+n]
		at += n
	}
}

// sameSpans reports whether the request was told of these spans.
func (r *request) sameSpans(spans []connector.Span) bool {
	return slices.EqualFunc(r.spans, spans, func(a, b connector.Span) bool {
		return a.Start == b.Start && a.End == b.End && bytes.Equal(a.ID, b.ID)
	})
}

// unplace says that the engine holds no blocks for the request, or nobody knows which.
func (r *request) unplace() {
	r.placed = false
	for g := range r.tables {
		r.tables[g] = r.tables[g][:0]
	}
}

// size is how much the request holds of what the engine tells, in numbers of 32 bits.
func (r *request) size() int {
	const span, loading = 10, 4 // of one connector.Span, of one loadBlock
	n := len(r.tokens) + span*len(r.spans) + len(r.spanIDs)/4
	for g := range r.tables {
		n += len(r.tables[g])
	}
	for _, d := range r.loads {
		n += loading * len(d.blocks)
	}
	return n
}

// kept is how much memory the request keeps when it is reset, in numbers of 32 bits.
func (r *request) kept() int {
	n := cap(r.tokens) + cap(r.spanIDs)/4
	for g := range r.tables {
		n += cap(r.tables[g])
	}
	return n
}

// fullBlocks is the number of blocks whose tokens are all known.
func (r *request) fullBlocks(blockSize int) int { return len(r.tokens) / blockSize }

// parent is the key in front of block i.
func (r *request) parent(i int) connector.Key {
	if i > 0 {
		return r.keys[i-1]
	}
	return r.roots.key
}

// planBlock names block i, which lies in slot. Blocks beyond what the leader knows get the
// zero key, which no record has: they fail as missing.
func (r *request) planBlock(i int, slot uint32) connector.PlanBlock {
	b := connector.PlanBlock{Slot: slot}
	if i < len(r.keys) && i < len(r.proofs) {
		b.Key, b.Proof = r.keys[i], r.proofs[i]
	}
	return b
}
