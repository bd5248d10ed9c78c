package leader

import (
	"context"
	"fmt"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/store"
)

// Step plans what the workers do in one engine step: the loads of what was allocated,
// and the saves of every block that the step's forward pass fills.
func (l *Leader) Step(_ context.Context, m *connector.StepRequest) (connector.StepReply, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	plan := connector.Plan{Namespace: l.opts.Digest}
	var reply connector.StepReply
	if err := l.check(m); err != nil {
		return reply, err
	}
	clear(l.planned)
	for _, id := range m.Preempted {
		if r := l.requests[id]; r != nil {
			r.slots, r.loadCount = nil, 0
		}
	}
	for i := range m.Allocs {
		if t, ok := l.planLoad(&m.Allocs[i]); ok {
			plan.Loads = append(plan.Loads, connector.RequestLoad{Request: m.Allocs[i].Request, Transfers: []connector.Transfer{t}})
			reply.Loads = append(reply.Loads, plannedLoad(m.Allocs[i].Request, &t))
		}
	}
	for i := range m.Scheduled {
		plan.Saves = l.planSaves(plan.Saves, &m.Scheduled[i])
	}
	for _, id := range m.Finished {
		if r := l.requests[id]; r != nil {
			l.forget(r)
		}
	}
	if !plan.Empty() {
		reply.Metadata = plan.Append(nil)
	}
	return reply, nil
}

// check refuses a step that contradicts itself, before anything of it is taken over.
func (l *Leader) check(m *connector.StepRequest) error {
	bs := l.opts.Manifest.BlockSize
	for i := range m.Allocs {
		a := &m.Allocs[i]
		if _, end := a.LoadRange(&l.opts.Manifest.Groups[0], 0, bs); a.External > 0 && (a.Computed%bs != 0 || (len(a.Blocks) != 1 || len(a.Blocks[0]) < end)) {
			return fmt.Errorf("%w: request %q has %d blocks for %d tokens computed and %d to load", connector.ErrBadRequest,
				a.Request, len(a.Blocks), a.Computed, a.External)
		}
	}
	for i := range m.Scheduled {
		s := &m.Scheduled[i]
		have := 0
		if r := l.requests[s.Request]; r != nil && !s.Reset {
			have = len(r.slots)
		}
		if have+len(first(s.NewBlocks)) > connector.MaxTokens || s.From+len(s.NewTokens) > connector.MaxTokens {
			return fmt.Errorf("%w: request %q has more than %d blocks or tokens", connector.ErrBadRequest, s.Request, connector.MaxTokens)
		}
	}
	return nil
}

func first(tables [][]uint32) []uint32 {
	if len(tables) == 0 {
		return nil
	}
	return tables[0]
}

func plannedLoad(request string, t *connector.Transfer) connector.PlannedLoad {
	p := connector.PlannedLoad{Request: request, Blocks: make([]uint32, len(t.Blocks))}
	for i := range t.Blocks {
		p.Blocks[i] = t.Blocks[i].Slot
	}
	return p
}

// planLoad plans the load that the engine has allocated blocks for. A request that this
// leader does not know, because it matched before a restart, gets a load that fails:
// the engine waits for one.
func (l *Leader) planLoad(a *connector.Alloc) (connector.Transfer, bool) {
	bs := l.opts.Manifest.BlockSize
	begin, end := a.LoadRange(&l.opts.Manifest.Groups[0], 0, bs)
	r := l.requests[a.Request]
	if a.External <= 0 {
		if r != nil {
			l.unpin(r) // the offer was not taken
		}
		return connector.Transfer{}, false
	}
	if r == nil {
		r = &request{id: a.Request}
	}
	r.touched = l.opts.Now()
	r.slots = append(r.slots[:0], a.Blocks[0]...)
	r.loadFirst, r.loadCount = begin, end-begin
	known := min(end, r.fullBlocks(bs))
	l.scratch = r.hashKeys(bs, known, l.scratch)
	l.scratch = r.hashProofs(l.opts.Digest, bs, known, l.scratch)
	l.index.Renew(r.lease, l.opts.LoadTTL)
	l.stats.LoadTokens += uint64(a.External)
	return r.transfer(bs, begin, end), true
}

// planSaves adds the blocks that this step completes and the store has not.
func (l *Leader) planSaves(saves []connector.Transfer, s *connector.Scheduled) []connector.Transfer {
	r := l.requests[s.Request]
	if r == nil {
		return saves
	}
	r.touched = l.opts.Now()
	if s.Reset {
		r.slots = r.slots[:0]
	}
	r.slots = append(r.slots, first(s.NewBlocks)...)
	if len(s.NewTokens) > 0 && !l.tell(r, s.From, s.NewTokens) {
		r.noSave = true // tokens are missing: nothing behind them has a name
	}
	if r.noSave {
		return saves
	}
	bs := l.opts.Manifest.BlockSize
	end := min((s.Computed+s.Count)/bs, r.fullBlocks(bs), len(r.slots))
	if end <= r.saved {
		return saves
	}
	l.scratch = r.hashKeys(bs, end, l.scratch)
	first := r.saved
	for i := r.saved; i < end; i++ {
		if l.wanted(r.keys[i]) {
			continue
		}
		saves = l.appendSaves(saves, r, first, i)
		first = i + 1
	}
	r.saved = end
	return l.appendSaves(saves, r, first, end)
}

// wanted reports whether the block is neither stored nor planned, and notes it as
// planned.
func (l *Leader) wanted(k connector.Key) bool {
	if _, planned := l.planned[k]; planned {
		return false
	}
	for _, shard := range l.shards {
		if !l.index.Has(store.RecordID{Namespace: l.opts.Namespace, Shard: shard, Key: k}) {
			l.planned[k] = struct{}{}
			return true
		}
	}
	return false
}

func (l *Leader) appendSaves(saves []connector.Transfer, r *request, first, end int) []connector.Transfer {
	if first >= end {
		return saves
	}
	l.scratch = r.hashProofs(l.opts.Digest, l.opts.Manifest.BlockSize, end, l.scratch)
	l.stats.SaveBlocks += uint64(end - first)
	return append(saves, r.transfer(l.opts.Manifest.BlockSize, first, end))
}
