package leader

import (
	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/leader/pricing"
)

// room bounds the size of a step's answer: the plan, and beside it the blocks of its loads. An offer
// is a promise: the next step may take all offers made since the last, so that they must fit into
// one plan together. Saves get the room that loads leave, and go on in later steps.
type room struct {
	limit int
	// promised are the bytes of the offers made since step number step.
	promised int
	step     uint64
	// left are the bytes left of the step that is being planned.
	left int
}

// frameHeadroom is what an answer takes beside loads and saves: less than this.
const frameHeadroom = 4096

// Bytes of an answer beside its blocks.
const (
	// plannedBlockBytes is what a block of a load takes: its place in the plan, and its slot
	// in the list of blocks that a load fills.
	plannedBlockBytes = connector.PlanBlockBytes + 4
	// lostBlockBytes is that of a block that is not loaded.
	lostBlockBytes = 4 + 4
	// loadBytes is what a load takes beside its blocks, its transfers and twice its id.
	loadBytes = connector.MaxLoadBytes + 16
)

// offerBytes bounds what the load of r's blocks [first, boundary) takes, whatever the tables are
// like: a block left out of a table cuts the load in two, and the head of the second part takes
// less than the block would.
func (l *Leader) offerBytes(r *request, first, boundary int) int {
	n := loadBytes + 2*len(r.id)
	for g := range l.groups {
		n += l.groupBytes(&l.groups[g], boundary-first)
	}
	return n
}

// groupBytes is a group's part of a load of that many blocks.
func (l *Leader) groupBytes(g *pricing.Group, blocks int) int {
	if l.opts.Handoff != nil { // no plan has the load, but the answer to match has its blocks' places
		return len(g.Shards) * (connector.HandoffShardBytes + blocks*connector.HandoffBlockBytes)
	}
	if g.Window > 0 {
		blocks = min(blocks, g.Window/l.bs+2) // both ends may be cut
	}
	return blocks*plannedBlockBytes + connector.MaxTransferBytes
}

// fits returns the largest boundary up to end with which the load of r's blocks from first
// on fits beside the offers made since the last step.
func (l *Leader) fits(r *request, first, end int) int {
	left := l.room.limit - l.room.others(r, l.steps)
	if l.offerBytes(r, first, end) <= left {
		return end
	}
	// Invariant: low fits, or is first; high does not.
	low, high := first, end
	for high-low > 1 {
		if mid := low + (high-low)/2; l.offerBytes(r, first, mid) <= left {
			low = mid
		} else {
			high = mid
		}
	}
	return low
}

// others are the bytes promised to other requests since the last step.
func (m *room) others(r *request, step uint64) int {
	switch {
	case m.step != step:
		return 0
	case r.promisedAt != step:
		return m.promised
	}
	return m.promised - r.promised
}

// promise notes that r is offered a load of that many bytes, in place of what it was offered since
// the last step.
func (m *room) promise(r *request, step uint64, bytes int) {
	others := m.others(r, step)
	m.promised, m.step = others+bytes, step
	r.promised, r.promisedAt = bytes, step
}

// begin starts the plan of a step.
func (m *room) begin() { m.left = m.limit }

// takeLoad takes room for a load, and gives the load up if there is none: an engine may take an
// offer steps after it was made, or one that another leader made. A load that was given up still
// takes some room: its slots are in the answer.
func (l *Leader) takeLoad(out *connector.RequestLoad) {
	n := loadBytes + 2*len(out.Request)
	for i := range out.Transfers {
		n += connector.MaxTransferBytes + plannedBlockBytes*len(out.Transfers[i].Blocks)
	}
	if n += lostBlockBytes * len(out.Lost); n <= l.room.left {
		l.room.left -= n
		return
	}
	out.Lose()
	l.stats.LostLoads++
	l.room.left -= loadBytes + 2*len(out.Request) + lostBlockBytes*len(out.Lost)
}

// takeSave takes room for a block to save, the first of a transfer or not, and reports
// whether there was any.
func (m *room) takeSave(first bool) bool {
	n := connector.PlanBlockBytes
	if first {
		n += connector.MaxTransferBytes
	}
	if n > m.left {
		return false
	}
	m.left -= n
	return true
}
