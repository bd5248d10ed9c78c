package leader

import (
	"bytes"
	"slices"

	"github.com/zeebo/xxh3"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/leader/chain"
)

// request is what the leader knows of one request of the engine. Tokens are only added or
// replaced; keys and proofs are hashed up to where they were needed. Requests are used again for
// others: nothing may keep what they refer to.
type request struct {
	hash  xxh3.Uint128
	id    []byte
	trace []byte
	roots *chain.Roots
	// spans and the bytes of their ids.
	spans   []connector.Span
	spanIDs []byte

	// counted is the size with which the request counts among all.
	counted int

	tokens []uint32
	hit
	proofs []connector.Proof
	// prompt is the number of tokens of the prompt.
	prompt int

	// tables are the engine's block tables, one for each layer group. They mean nothing unless
	// placed is set: then the engine has told all of them.
	tables [][]uint32
	placed bool
	// saved counts, for each layer group, the leading blocks that are stored, or whose save was
	// planned.
	saved []int

	// offered is the end of what is offered; handoff pins it in the host tier.
	offered int
	handoff *handoffPrefix
	// ahead is the block up to which the offered blocks are read before their load.
	ahead int
	// promised are the bytes of the plan that the offer would take, if it was made in step
	// promisedAt.
	promised   int
	promisedAt uint64
	// loads were planned and are not reported, the oldest first.
	loads []*load

	// failed is set once a load went wrong. The request is not offered anything again: an engine
	// that asks again after a failure would fail and ask without end.
	failed bool
	// lost are the blocks that failed then, in order. They are saved again even if this node has
	// them: the rank that does not may live on another node.
	lost           []int
	noLoad, noSave bool
	// step is the last step that the leader knows to have computed the request, and computed the
	// tokens that there were after it.
	step     uint64
	computed int
	arrival  uint64 // what [Options.Arrived] returned
	// waiting is set while a match waits for reads with the leader unlocked. The generation says
	// whether the request is still what it was then: see [request.changed].
	waiting    bool
	generation uint64

	prev, next *request
}

// reset makes r a request that the leader knows nothing of.
func (r *request) reset(groups int) {
	r.roots, r.handoff, r.prev, r.next = nil, nil, nil, nil
	r.spans, r.spanIDs, r.trace = r.spans[:0], r.spanIDs[:0], r.trace[:0]
	r.tokens, r.keys, r.proofs, r.prompt = r.tokens[:0], r.keys[:0], r.proofs[:0], 0
	if len(r.saved) != groups {
		r.tables, r.saved = make([][]uint32, groups), make([]int, groups)
	}
	r.unplace()
	clear(r.saved)
	r.leases, r.offered, r.ahead, r.lost = r.leases[:0], 0, 0, r.lost[:0]
	clear(r.loads)
	r.loads = r.loads[:0]
	r.failed, r.noLoad, r.noSave, r.decided = false, false, false, false
	r.step, r.computed, r.counted, r.arrival = 0, 0, 0, 0
	r.promised, r.promisedAt = 0, 0
}

// tell replaces the tokens from index from on. It reports false if tokens before from are missing.
// The caller has checked that there are not too many.
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

// truncate forgets the tokens from index n on, and their keys and proofs.
func (r *request) truncate(blockSize, n int) {
	r.tokens = r.tokens[:n]
	blocks := n / blockSize
	r.keys = r.keys[:min(len(r.keys), blocks)]
	r.proofs = r.proofs[:min(len(r.proofs), blocks)]
	r.ahead = min(r.ahead, blocks)
	r.unsave(blocks)
	if r.handoff != nil && r.handoff.end() > blocks {
		r.handoff.release()
		r.handoff = nil
	}
	r.changed()
}

// changed makes a match that waits give up: the request was forgotten, or has other tokens.
func (r *request) changed() {
	r.generation++
	r.waiting = false
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

// unplace says that the engine holds no blocks for the request, or that it is not known which.
func (r *request) unplace() {
	r.placed = false
	for g := range r.tables {
		r.tables[g] = r.tables[g][:0]
	}
}

// size is how much the request holds, in numbers of 32 bits.
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

// parent is the key before block i.
func (r *request) parent(i int) connector.Key {
	if i > 0 {
		return r.keys[i-1]
	}
	return r.roots.Key
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
