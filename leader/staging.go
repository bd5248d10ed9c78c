package leader

import (
	"context"
	"slices"
	"sync"

	"github.com/zeebo/xxh3"

	"github.com/kvconn/kvconn/connector"
)

// Handoff reads records into the host tier for an engine that copies them out itself. Its
// method may be called from several goroutines, and must not call the leader.
type Handoff interface {
	// Handoff starts to read the blocks' records and waits until all are there or ctx ends,
	// whichever is first. It returns the leading blocks that are verified, and a function that
	// lets go of them: they stay where they are until it is called, which happens exactly once
	// and must not wait for anything. Both are nil if there are no such blocks. Reads that
	// ctx leaves behind should go on, since the next match asks for the same blocks. A shard
	// that this node cannot read has none. blocks are valid during the call only; their slots
	// mean nothing.
	Handoff(ctx context.Context, ns connector.NamespaceDigest, shard connector.Shard, parent connector.Key, blocks []connector.PlanBlock) ([]connector.HandoffBlock, func())
}

// stagedPrefix is what of a request is in staging memory, from block first on.
type stagedPrefix struct {
	first  int
	shards []stagedShard
}

// stagedShard are the staged blocks of one shard.
type stagedShard struct {
	shard  connector.Shard
	blocks []connector.HandoffBlock
	// releases let go of them.
	releases []func()
}

// end is the block up to which all shards are staged.
func (p *stagedPrefix) end() int {
	n := len(p.shards[0].blocks)
	for i := range p.shards {
		n = min(n, len(p.shards[i].blocks))
	}
	return p.first + n
}

// stagedOffer tells where a request's offer lies.
func (l *Leader) stagedOffer(m *connector.MatchRequest) *connector.HandoffOffer {
	r := l.requests.find(m.Request)
	if r == nil || r.staged == nil {
		return nil
	}
	n := r.offered - r.staged.first
	o := &connector.HandoffOffer{First: r.staged.first}
	for i := range r.staged.shards {
		s := &r.staged.shards[i]
		o.Shards = append(o.Shards, connector.HandoffShard{Shard: s.shard, Blocks: s.blocks[:n]})
	}
	return o
}

// release gives the memory back.
func (p *stagedPrefix) release() {
	if p == nil {
		return
	}
	for i := range p.shards {
		for _, release := range p.shards[i].releases {
			release()
		}
	}
	p.shards = nil
}

// stage reads r's blocks [first, end) of all shards into staging memory and returns the
// boundary up to which all are verified and pinned. What earlier matches staged counts.
// The lock is held before and after, not while it waits.
func (l *Leader) stage(ctx context.Context, r *request, first, end int) int {
	if r.staged != nil && r.staged.first != first {
		r.staged.release()
		r.staged = nil
	}
	if first == end {
		return first
	}
	p := r.staged
	if p == nil {
		p = &stagedPrefix{first: first, shards: make([]stagedShard, len(l.prefix))}
		for i, shard := range l.prefix {
			p.shards[i].shard = shard
		}
	}
	l.hash.proofs(r, end)
	parent := r.parent(first)
	blocks := make([]connector.PlanBlock, end-first)
	for i := range blocks {
		blocks[i] = r.planBlock(first+i, 0)
	}
	r.staged, r.waiting, r.changed = nil, true, false
	l.mu.Unlock()
	p.fill(ctx, l, parent, blocks)
	l.mu.Lock()
	r.waiting = false
	if r.gone {
		p.release()
		l.requests.recycle(r)
		return first
	}
	if r.changed {
		p.release()
		return first
	}
	r.staged = p
	// Staging memory holds the bytes: the records may go.
	for _, id := range r.leases {
		l.index.Release(id)
	}
	r.leases = r.leases[:0]
	boundary := min(p.end(), end)
	if (boundary-first)*l.bs < l.opts.MinOfferTokens {
		boundary = first
	}
	r.offered = boundary
	return boundary
}

// fill stages what is missing of blocks, all shards at once.
func (p *stagedPrefix) fill(ctx context.Context, l *Leader, parent connector.Key, blocks []connector.PlanBlock) {
	ctx, cancel := context.WithTimeout(ctx, l.opts.StageTimeout)
	defer cancel()
	var all sync.WaitGroup
	for i := range p.shards {
		s := &p.shards[i]
		have := len(s.blocks)
		if have >= len(blocks) {
			continue
		}
		if have > 0 {
			parent := blocks[have-1].Key
			all.Go(func() { s.fill(ctx, l, parent, blocks[have:]) })
			continue
		}
		all.Go(func() { s.fill(ctx, l, parent, blocks) })
	}
	all.Wait()
}

func (s *stagedShard) fill(ctx context.Context, l *Leader, parent connector.Key, blocks []connector.PlanBlock) {
	staged, release := l.opts.Handoff.Handoff(ctx, l.opts.Namespace, s.shard, parent, blocks)
	if release != nil {
		s.releases = append(s.releases, release)
	}
	s.blocks = append(s.blocks, staged[:min(len(staged), len(blocks))]...)
}

// retired is a load of which nobody will hear any more, or not soon: its request has
// ended, was preempted or was matched again. Staging memory may be read by workers for a
// little longer: until the load is reported or some steps have passed, since a worker runs
// steps in order.
type retired struct {
	request xxh3.Uint128
	step    uint64
	staged  *stagedPrefix
}

// maxStepsInFlight is more than the steps of an engine that are under way at once.
const maxStepsInFlight = 8

// retire ends a load that was not reported.
func (l *Leader) retire(r *request, d *load) {
	staged := d.staged
	d.staged = nil
	l.endLoad(d)
	l.retired = append(l.retired, retired{request: r.hash, step: l.steps, staged: staged})
}

// unretire takes in that the oldest retired load of a request was reported.
func (l *Leader) unretire(id string) bool {
	if len(l.retired) == 0 {
		return false
	}
	hash := xxh3.HashString128(id)
	for i := range l.retired {
		if d := &l.retired[i]; d.request == hash {
			d.staged.release()
			l.retired = slices.Delete(l.retired, i, i+1)
			return true
		}
	}
	return false
}

// releaseRetired ends the loads that no step in flight can belong to.
func (l *Leader) releaseRetired() {
	n := 0
	for n < len(l.retired) && l.steps > l.retired[n].step+maxStepsInFlight {
		l.retired[n].staged.release()
		n++
	}
	l.retired = slices.Delete(l.retired, 0, n)
}
