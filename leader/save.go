package leader

import (
	"slices"
	"time"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/leader/pricing"
)

// planSaves adds the blocks that this step completes and the tiers do not have. r is nil if the
// request is not known.
func (l *Leader) planSaves(saves []connector.Transfer, r *request, s *connector.Scheduled) []connector.Transfer {
	if r == nil {
		return saves
	}
	l.requests.touch(r)
	l.unpin(r) // an offer that was not taken is of no more use
	l.settle(r)
	r.extend(s)
	if len(s.NewTokens) > 0 && !r.tell(l.bs, s.From, s.NewTokens) {
		r.noSave = true // tokens are missing: no block after them has a key
	}
	l.requests.count(r)
	if r.noSave || !r.placed || l.notReady.Load() {
		return saves
	}
	// A forward pass in the step of a load that fails computes on bytes that never came: the blocks
	// that it fills are saved once the load was reported. Handoffs cannot fail.
	if len(r.loads) > 0 && l.opts.Handoff == nil {
		return saves
	}
	end := min((s.Computed+s.Count)/l.bs, r.fullBlocks(l.bs))
	if l.opts.PromptsOnly {
		end = min(end, r.prompt/l.bs)
	}
	computed := s.Computed
	if computed >= r.prompt && s.Count > 1 {
		computed += s.Count - 1 // decodes, which may have taken as many steps: see Leader.learn
	}
	for g := range l.groups {
		saves = l.planGroup(saves, r, &l.groups[g], computed, end)
	}
	return saves
}

// extend applies the step's change of the block tables. A table whose beginning was never told, or
// was taken away, stays unknown until the engine tells all of it.
func (r *request) extend(s *connector.Scheduled) {
	if s.Reset {
		r.unplace()
		r.placed = true
		clear(r.saved) // a save that was dropped gets another chance
	}
	if !r.placed {
		return
	}
	for g := range s.NewBlocks {
		r.tables[g] = append(r.tables[g], s.NewBlocks[g]...)
	}
}

// planGroup adds the blocks of a layer group below end until the plan has no more room: the
// request's next step goes on there. computed is the number of tokens before the newest step.
func (l *Leader) planGroup(saves []connector.Transfer, r *request, g *pricing.Group, computed, end int) []connector.Transfer {
	table := r.tables[g.Index]
	end = min(end, len(table))
	// What has left the window before this step may be another request's by now.
	begin := max(r.saved[g.Index], g.FirstBlock(computed, l.bs))
	if begin >= end {
		return saves
	}
	l.hash.keys(r, end)
	l.at = slices.Grow(l.at[:0], end-begin)[:end-begin]
	l.have.Blocks(g.Shards, r.keys[begin:end], l.at)
	first := begin
	for i := begin; i < end; i++ {
		if table[i] != connector.NoBlock && l.wanted(g, r, i, l.at[i-begin]) {
			if l.room.takeSave(i == first) {
				l.planned.add(plannedBlock{g.Index, r.keys[i]}, l.at[i-begin])
				continue
			}
			end = i
			break
		}
		saves = l.appendSaves(saves, r, g, first, i)
		first = i + 1
	}
	r.saved[g.Index] = end
	return l.appendSaves(saves, r, g, first, end)
}

// wanted reports whether block i is to be saved: it is neither stored, with all its shards, nor
// planned. A block that was lost counts as not stored; the workers leave out what they have.
func (l *Leader) wanted(g *pricing.Group, r *request, i int, stored bool) bool {
	if l.planned.has(plannedBlock{g.Index, r.keys[i]}, stored) {
		return false
	}
	_, lost := slices.BinarySearch(r.lost, i)
	return lost || !stored
}

func (l *Leader) appendSaves(saves []connector.Transfer, r *request, g *pricing.Group, first, end int) []connector.Transfer {
	if first >= end {
		return saves
	}
	l.hash.proofs(r, end)
	l.stats.SaveBlocks += uint64(end - first)
	l.tellSaves(r, g, first, end)
	t := connector.Transfer{Group: g.Index, Parent: r.parent(first), Scope: r.roots.Digest, Blocks: make([]connector.PlanBlock, end-first)}
	for i := range t.Blocks {
		t.Blocks[i] = r.planBlock(first+i, r.tables[g.Index][first+i])
	}
	return append(saves, t)
}

// plannedBlock is a block of a layer group.
type plannedBlock struct {
	group int
	key   connector.Key
}

// planned are the blocks whose save was planned lately: several steps are under way at once, and a
// block is in the store only some time after its save was planned. Entries last for one to two
// times the time to live, in two generations. Each notes whether the block was stored when its save
// was planned: a read that a failed load gave up may still find damage.
type planned struct {
	ttl           time.Duration
	turn          time.Time // when the young generation began
	young, former map[plannedBlock]bool
}

// maxPlanned bounds a generation: 128 thousand blocks are 2 million tokens.
const maxPlanned = 128 << 10

func (p *planned) init(ttl time.Duration, now time.Time) {
	*p = planned{ttl: ttl, turn: now, young: make(map[plannedBlock]bool), former: make(map[plannedBlock]bool)}
}

// advance lets entries grow old.
func (p *planned) advance(now time.Time) {
	age := now.Sub(p.turn)
	if age < p.ttl && len(p.young) < maxPlanned {
		return
	}
	p.young, p.former, p.turn = p.former, p.young, now
	clear(p.young)
	if age >= 2*p.ttl {
		clear(p.former)
	}
}

// has reports whether a planned save stands. It does not if the block was stored then and is not
// now: the workers may have left it out, and have dropped the record since.
func (p *planned) has(b plannedBlock, stored bool) bool {
	was, ok := p.young[b]
	if !ok {
		was, ok = p.former[b]
	}
	return ok && (stored || !was)
}

func (p *planned) add(b plannedBlock, stored bool) { p.young[b] = stored }

func (p *planned) remove(b plannedBlock) {
	delete(p.young, b)
	delete(p.former, b)
}
