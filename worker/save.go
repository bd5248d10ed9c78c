package worker

import (
	"context"
	"errors"
	"runtime"
	"sync"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/store"
)

// maxCopiers bounds the goroutines that copy one step's saves out of engine memory: two
// cores copy nearly twice as fast as one, and more find memory bandwidth used up.
const maxCopiers = 4

// errGivenUp means that the engine hung up during a save.
var errGivenUp = errors.New("the engine did not wait for the copy")

// blockSave is one block on its way from engine memory to the store.
type blockSave struct {
	store.WriteOp
	slot uint32
	err  error
}

// Save copies the blocks that the plan saves out of engine memory and returns; the
// writes go on behind. Blocks for which there is no staging slot are dropped.
func (w *Worker) Save(ctx context.Context, metadata []byte) (connector.SaveResult, error) {
	var r connector.SaveResult
	plan, err := w.parse(metadata)
	if err != nil {
		return r, err
	}
	mem := w.hold()
	if mem == nil {
		return r, connector.ErrNotRegistered
	}
	defer mem.users.Done()
	saves, dropped := w.stage(mem, plan.Saves)
	r.Dropped = dropped
	copyAll(ctx, mem, saves)
	if mem.fencePage.Fenced() {
		// The engine did not wait for the copies to end: they may hold the bytes of other
		// tokens.
		for _, s := range saves {
			s.err = errGivenUp
		}
	}
	ops := make([]*store.WriteOp, 0, len(saves))
	for _, s := range saves {
		if s.err != nil {
			w.opts.Logger.Warn("block not saved", "err", s.err)
			mem.putSave(s.Payload)
			r.Dropped++
			continue
		}
		ops = append(ops, &s.WriteOp)
	}
	w.moves.Add(int64(len(ops)))
	accepted, err := w.store.Write(ops, func(op *store.WriteOp) { w.saved(mem, op) })
	if err != nil {
		w.opts.Logger.Debug("saves dropped", "blocks", len(ops)-accepted, "err", err)
	}
	for _, op := range ops[accepted:] {
		w.moves.Add(-1)
		mem.putSave(op.Payload)
	}
	r.Taken = accepted
	r.Dropped += len(ops) - accepted
	w.counters.droppedBlocks.Add(uint64(r.Dropped))
	return r, nil
}

// stage takes a staging slot for every block to save, as far as there are any.
func (w *Worker) stage(mem *memory, transfers []connector.Transfer) (saves []*blockSave, dropped int) {
	for i := range transfers {
		t := &transfers[i]
		parent := t.Parent
		for j := range t.Blocks {
			b := &t.Blocks[j]
			buf := []byte(nil)
			if b.Slot < mem.layout.Blocks {
				buf = mem.takeSave()
			}
			if buf == nil {
				// What follows in this prompt is of no use without this block.
				dropped += len(t.Blocks) - j
				break
			}
			saves = append(saves, &blockSave{slot: b.Slot, WriteOp: store.WriteOp{
				ID:     store.RecordID{Namespace: w.opts.Namespace, Shard: w.opts.Shard, Key: b.Key},
				Parent: parent, Proof: b.Proof, Payload: buf,
			}})
			parent = b.Key
		}
	}
	return saves, dropped
}

// copyAll copies the blocks on as many cores as help.
func copyAll(ctx context.Context, mem *memory, saves []*blockSave) {
	copiers := min(maxCopiers, runtime.GOMAXPROCS(0), len(saves))
	var wg sync.WaitGroup
	for c := range copiers {
		wg.Go(func() {
			for i := c; i < len(saves); i += copiers {
				s := saves[i]
				s.err = mem.move(ctx, s.slot, s.Payload, mem.driver.CopyOut)
			}
		})
	}
	wg.Wait()
}

// saved is called by the store for every accepted write.
func (w *Worker) saved(mem *memory, op *store.WriteOp) {
	if op.Err != nil {
		w.counters.droppedBlocks.Add(1)
		w.opts.Logger.Debug("block not saved", "key", op.ID.Key, "err", op.Err)
	} else {
		w.counters.savedBlocks.Add(1)
		w.counters.savedBytes.Add(uint64(len(op.Payload)))
	}
	mem.putSave(op.Payload)
	w.moves.Add(-1)
}
