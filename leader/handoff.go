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

// handoffPrefix is what the host tier holds for the engine to copy, from a request's block first
// on.
type handoffPrefix struct {
	first  int
	shards []handoffShard
}

// handoffShard is the part of one shard.
type handoffShard struct {
	shard  connector.Shard
	blocks []connector.HandoffBlock
	// releases let go of them.
	releases []func()
}

// end is the block up to which all shards are there.
func (p *handoffPrefix) end() int {
	n := len(p.shards[0].blocks)
	for i := range p.shards {
		n = min(n, len(p.shards[i].blocks))
	}
	return p.first + n
}

// offer says where the blocks up to a boundary lie.
func (p *handoffPrefix) offer(boundary int) *connector.HandoffOffer {
	o := &connector.HandoffOffer{First: p.first}
	for i := range p.shards {
		s := &p.shards[i]
		o.Shards = append(o.Shards, connector.HandoffShard{Shard: s.shard, Blocks: s.blocks[:boundary-p.first]})
	}
	return o
}

// release gives the memory back.
func (p *handoffPrefix) release() {
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

// handOff reads r's blocks [first, end) of all shards into the host tier and returns the boundary
// up to which all are verified and pinned. Blocks that earlier matches have read count. The lock
// is held before and after, not during the reads: a request that is forgotten or gets other
// tokens meanwhile has another generation then, and is offered nothing.
func (l *Leader) handOff(ctx context.Context, r *request, first, end int) int {
	if r.handoff != nil && r.handoff.first != first {
		r.handoff.release()
		r.handoff = nil
	}
	if first == end {
		return first
	}
	p, parent, blocks := l.planHandoff(r, first, end)
	generation := r.generation
	r.handoff, r.waiting = nil, true
	l.mu.Unlock()
	p.fill(ctx, l, parent, blocks)
	l.mu.Lock()
	if r.generation != generation {
		p.release()
		return first
	}
	r.handoff, r.waiting = p, false
	// The host tier holds the bytes: the records may go.
	l.release(&r.hit)
	boundary := min(p.end(), end)
	if (boundary-first)*l.bs < l.opts.MinOfferTokens {
		boundary = first
	}
	r.offered = boundary
	return boundary
}

// planHandoff copies what the reads need, so that the request may change meanwhile.
func (l *Leader) planHandoff(r *request, first, end int) (p *handoffPrefix, parent connector.Key, blocks []connector.PlanBlock) {
	if p = r.handoff; p == nil {
		p = &handoffPrefix{first: first, shards: make([]handoffShard, len(l.prefix))}
		for i, shard := range l.prefix {
			p.shards[i].shard = shard
		}
	}
	l.hash.proofs(r, end)
	blocks = make([]connector.PlanBlock, end-first)
	for i := range blocks {
		blocks[i] = r.planBlock(first+i, 0)
	}
	return p, r.parent(first), blocks
}

// fill reads the blocks that are missing, all shards at once.
func (p *handoffPrefix) fill(ctx context.Context, l *Leader, parent connector.Key, blocks []connector.PlanBlock) {
	ctx, cancel := context.WithTimeout(ctx, l.opts.HandoffTimeout)
	defer cancel()
	var all sync.WaitGroup
	for i := range p.shards {
		s := &p.shards[i]
		missing, parent := blocks[min(len(s.blocks), len(blocks)):], parent
		if len(missing) == 0 {
			continue
		}
		if n := len(s.blocks); n > 0 {
			parent = blocks[n-1].Key
		}
		all.Go(func() { s.fill(ctx, l, parent, missing) })
	}
	all.Wait()
}

func (s *handoffShard) fill(ctx context.Context, l *Leader, parent connector.Key, blocks []connector.PlanBlock) {
	read, release := l.opts.Handoff.Handoff(ctx, l.opts.Namespace, s.shard, parent, blocks)
	if release != nil {
		s.releases = append(s.releases, release)
	}
	s.blocks = append(s.blocks, read[:min(len(read), len(blocks))]...)
}

// retired is a load that will not be reported, or not soon: its request has ended, was preempted
// or was matched again. Workers may read its memory for a little longer: until the load is
// reported or some steps have passed, since a worker runs steps in sequence.
type retired struct {
	request xxh3.Uint128
	step    uint64
	handoff *handoffPrefix
}

// maxStepsInFlight is more than the steps that an engine has under way at once.
const maxStepsInFlight = 8

// retire ends a load that was not reported.
func (l *Leader) retire(r *request, d *load) {
	handoff := d.handoff
	d.handoff = nil
	l.endLoad(d)
	l.retired = append(l.retired, retired{request: r.hash, step: l.steps, handoff: handoff})
}

// unretire takes in that the oldest retired load of a request was reported.
func (l *Leader) unretire(id string) bool {
	if len(l.retired) == 0 {
		return false
	}
	hash := xxh3.HashString128(id)
	for i := range l.retired {
		if d := &l.retired[i]; d.request == hash {
			d.handoff.release()
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
		l.retired[n].handoff.release()
		n++
	}
	l.retired = slices.Delete(l.retired, 0, n)
}
