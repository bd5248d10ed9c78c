package worker

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/gpu"
	"github.com/kvconn/kvconn/store"
	"github.com/kvconn/kvconn/store/host"
)

// savesAtOnce is how many blocks' bookkeeping is allocated at once: a plan may name far more
// than there is memory for.
const savesAtOnce = 64

// saveBatch is the blocks that one call saves.
type saveBatch struct {
	saves  []*host.Save
	copies []blockCopy // one of each
	result connector.SaveResult
	// revoked is the engine's count of revocations at its call; revocable is set if what is revoked after them must not be
	// kept.
	revoked   uint64
	revocable bool
	// ctx is the call's, for the values that the observer finds in it.
	ctx context.Context
}

// Save copies the blocks that the plan saves out of engine memory and returns; they are written
// afterwards. Blocks for which there is no memory are dropped.
func (w *Worker) Save(ctx context.Context, metadata []byte) (connector.SaveResult, error) {
	mem, call := w.call()
	plan, err := w.parse(metadata)
	if err != nil {
		return connector.SaveResult{}, err
	}
	if mem == nil {
		return connector.SaveResult{}, connector.ErrNotRegistered
	}
	b := saveBatch{ctx: ctx}
	for i := range plan.Saves {
		t := &plan.Saves[i]
		if g := mem.group(t.Group); g != nil && g.writes {
			n, full := w.gather(&b, stretch{group: g, parent: t.Parent, blocks: t.Blocks, scope: t.Scope})
			b.result.Dropped += len(t.Blocks) - n
			if full {
				w.opts.Account.RefuseSave()
			}
		}
	}
	return w.write(ctx, mem, call, &b), nil
}

// gather takes memory for the leading blocks of a stretch that there is memory for, and returns
// their number: what follows in a prompt is of no use without the block before it. full says that
// it stopped for want of memory.
func (w *Worker) gather(b *saveBatch, s stretch) (n int, full bool) {
	var saves []host.Save
	for i := range s.blocks {
		if len(saves) == 0 {
			saves = make([]host.Save, min(savesAtOnce, len(s.blocks)-i))
		}
		save, slot := &saves[0], s.blocks[i].Slot
		if slot >= s.group.layout.Blocks {
			return i, false
		}
		if !w.opts.Account.ReserveSave(&save.Slot, s.group.blockBytes) {
			return i, true
		}
		saves = saves[1:]
		save.WriteOp = store.WriteOp{Record: s.record(w.opts.Namespace, i), Scope: s.scope}
		b.saves = append(b.saves, save)
		b.copies = append(b.copies, blockCopy{group: s.group, slot: slot, buf: save.Slot.Bytes()})
	}
	return len(s.blocks), false
}

// write copies the blocks of a batch out of engine memory and hands them to the cache.
func (w *Worker) write(ctx context.Context, mem *memory, call uint64, b *saveBatch) connector.SaveResult {
	timed, saved := timedSave{w: w, ctx: b.ctx, report: Save{Began: time.Now()}}, w.saved
	if len(b.saves) > 0 {
		// A device may never come to the call: its engine has died in the step before.
		ctx, cancel := context.WithTimeout(ctx, w.opts.LoadTimeout)
		err := copyAll(ctx, mem, call, b.copies)
		cancel()
		if err != nil {
			level := slog.LevelWarn
			if errors.Is(err, context.Canceled) { // the engine gives its memory back
				level = slog.LevelDebug
			}
			w.opts.Logger.Log(ctx, level, "blocks not saved: they could not be copied out of engine memory", "blocks", len(b.saves), "err", err,
				"remedy", "none if it is rare; if the engine gives its calls up again and again, raise their timeout on its side")
			b.dropFrom(0)
		} else if b.revocable {
			b.dropFrom(mem.kept(b.revoked, len(b.copies), func(i int) uint32 { return b.copies[i].slot }))
		}
	}
	n := len(b.saves)
	w.moves.Add(int64(n))
	w.saving.Add(int64(n))
	if w.opts.Observer != nil && n > 0 {
		timed.left.Store(int64(n))
		timed.report.Blocks = n
		saved = timed.saved
	}
	taken, err := w.opts.Cache.Save(b.saves, saved)
	if w.opts.Observer != nil && taken < n {
		timed.failed.Add(int64(n - taken))
		timed.done(n - taken)
	}
	if err != nil {
		w.opts.Logger.Debug("saves dropped", "blocks", n-taken, "err", err)
	}
	w.moves.Add(-int64(n - taken))
	w.saving.Add(-int64(n - taken))
	b.result.Taken += taken
	b.result.Dropped += n - taken
	w.counters.droppedBlocks.Add(uint64(b.result.Dropped))
	return b.result
}

// dropFrom lets go of the blocks from number i on.
func (b *saveBatch) dropFrom(i int) {
	for _, s := range b.saves[i:] {
		s.Slot.Release()
	}
	b.result.Dropped += len(b.saves) - i
	b.saves = b.saves[:i]
}

// copyAll copies blocks out of engine memory, side by side as the driver likes it. They
// are good together or not at all.
func copyAll(ctx context.Context, mem *memory, call uint64, blocks []blockCopy) error {
	per := 1
	if n := len(blocks[0].buf); n < mem.shape.BatchBytes {
		per = mem.shape.BatchBytes / n
	}
	if len(blocks) <= per {
		_, err := mem.copy(ctx, gpu.Save, call, blocks)
		return err
	}
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(mem.shape.Calls)
	for batch := range slices.Chunk(blocks, per) {
		g.Go(func() error {
			_, err := mem.copy(ctx, gpu.Save, call, batch)
			return err
		})
	}
	return g.Wait()
}

// saved is called for every save that was taken.
func (w *Worker) saved(s *host.Save) {
	if s.Err != nil {
		w.counters.droppedBlocks.Add(1)
		w.opts.Logger.Debug("block not saved", "key", s.ID.Key, "err", s.Err)
	} else {
		w.counters.savedBlocks.Add(1)
		w.counters.savedBytes.Add(uint64(len(s.Payload)))
	}
	w.saving.Add(-1)
	select {
	case w.saveEnded <- struct{}{}:
	default:
	}
	w.moves.Add(-1)
}
