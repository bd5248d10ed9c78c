package worker

import (
	"context"
	"slices"

	"golang.org/x/sync/errgroup"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/gpu"
	"github.com/kvconn/kvconn/store"
	"github.com/kvconn/kvconn/store/host"
)

// blockSave is one block on its way from engine memory to the store.
type blockSave struct {
	store.WriteOp
	slot host.Slot
}

// savesAtOnce is how many blocks' bookkeeping is allocated at once: a plan may name far more
// than there is memory for.
const savesAtOnce = 64

// staged is one call's worth of blocks to save.
type staged struct {
	// scope is that of the blocks that are staged next.
	scope  connector.ScopeDigest
	blocks []*blockSave
	copies []blockCopy
	result connector.SaveResult
}

// Save copies the blocks that the plan saves out of engine memory and returns; the
// writes go on behind. Blocks for which there is no memory are dropped.
func (w *Worker) Save(ctx context.Context, metadata []byte) (connector.SaveResult, error) {
	mem, call := w.call()
	plan, err := w.parse(metadata)
	if err != nil {
		return connector.SaveResult{}, err
	}
	if mem == nil {
		return connector.SaveResult{}, connector.ErrNotRegistered
	}
	var s staged
	for i := range plan.Saves {
		t := &plan.Saves[i]
		if g := mem.group(t.Group); g != nil && g.writes {
			s.scope = t.Scope
			w.stage(&s, g, t.Parent, t.Blocks)
		}
	}
	return w.write(ctx, mem, call, &s), nil
}

// stage takes memory for the blocks of one stretch, as far as there is any: what follows
// in a prompt is of no use without the block before it.
func (w *Worker) stage(s *staged, g *groupMemory, parent connector.Key, blocks []connector.PlanBlock) {
	var ops []blockSave
	for i := range blocks {
		if len(ops) == 0 {
			ops = make([]blockSave, min(savesAtOnce, len(blocks)-i))
		}
		b, op := &blocks[i], &ops[0]
		if b.Slot >= g.layout.Blocks || !w.opts.Account.ReserveSave(&op.slot, g.blockBytes) {
			s.result.Dropped += len(blocks) - i
			return
		}
		ops = ops[1:]
		op.WriteOp = store.WriteOp{
			Record: store.Record{ID: store.RecordID{Namespace: w.opts.Namespace, Shard: g.shard, Key: b.Key},
				Parent: parent, Proof: b.Proof}, Scope: s.scope, Payload: op.slot.Bytes(),
		}
		s.blocks = append(s.blocks, op)
		s.copies = append(s.copies, blockCopy{group: g, slot: b.Slot, buf: op.Payload})
		parent = b.Key
	}
}

// write copies the staged blocks out of engine memory and hands them to the store.
func (w *Worker) write(ctx context.Context, mem *memory, call uint64, s *staged) connector.SaveResult {
	if len(s.blocks) > 0 {
		// A device may never come to the call: its engine has died in the step in front.
		ctx, cancel := context.WithTimeout(ctx, w.opts.LoadTimeout)
		err := copyAll(ctx, mem, call, s.copies)
		cancel()
		if err != nil {
			w.opts.Logger.Warn("blocks not saved: they could not be copied out of engine memory", "blocks", len(s.blocks), "err", err,
				"remedy", "none if it is rare; if the engine gives its calls up again and again, raise their timeout on its side")
			s.drop(s.blocks)
			s.blocks = nil
		}
	}
	ops := make([]*store.WriteOp, len(s.blocks))
	bySlot := make(map[*store.WriteOp]*blockSave, len(s.blocks))
	for i, b := range s.blocks {
		ops[i] = &b.WriteOp
		bySlot[ops[i]] = b
	}
	w.moves.Add(int64(len(ops)))
	accepted, err := w.store.Write(ops, func(op *store.WriteOp) { w.saved(bySlot[op]) })
	if err != nil {
		w.opts.Logger.Debug("saves dropped", "blocks", len(ops)-accepted, "err", err)
	}
	w.moves.Add(-int64(len(ops) - accepted))
	s.drop(s.blocks[accepted:])
	s.result.Taken += accepted
	w.counters.droppedBlocks.Add(uint64(s.result.Dropped))
	return s.result
}

// copyAll copies blocks out of engine memory, side by side as the driver likes it. They
// are good together or not at all.
func copyAll(ctx context.Context, mem *memory, call uint64, blocks []blockCopy) error {
	per := 1
	if n := len(blocks[0].buf); n < mem.shape.BatchBytes {
		per = mem.shape.BatchBytes / n
	}
	if len(blocks) <= per {
		return mem.copy(ctx, gpu.Save, call, blocks)
	}
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(mem.shape.Calls)
	for batch := range slices.Chunk(blocks, per) {
		g.Go(func() error { return mem.copy(ctx, gpu.Save, call, batch) })
	}
	return g.Wait()
}

// drop gives the memory of blocks back that are not saved.
func (s *staged) drop(blocks []*blockSave) {
	for _, b := range blocks {
		b.slot.Release()
	}
	s.result.Dropped += len(blocks)
}

// saved is called by the store for every accepted write. What was written stays in the
// host tier.
func (w *Worker) saved(b *blockSave) {
	if b.Err != nil {
		w.counters.droppedBlocks.Add(1)
		w.opts.Logger.Debug("block not saved", "key", b.ID.Key, "err", b.Err)
	} else {
		w.counters.savedBlocks.Add(1)
		w.counters.savedBytes.Add(uint64(len(b.Payload)))
		b.slot.Publish(b.Record)
	}
	b.slot.Release()
	w.moves.Add(-1)
}
