package worker

import (
	"context"
	"fmt"
	"time"

	"github.com/kvconn/kvconn/connector"
)

// Bounds of the saves by key that one rank may have under way or not polled, and of the blocks of
// those that wait. They keep the answer to a poll within a frame.
const (
	maxPuts      = 4096
	maxPutBlocks = 1 << 18
)

// put is one save by key, or one by a plan that is reported later. The engine keeps its slots until the report, or until it
// revokes them.
type put struct {
	mem       *memory
	call      uint64 // number of the engine's call on mem
	stretches []stretch
	blocks    int
	// revocable is set if the engine may take blocks back, and revoked is its count of revocations at its call.
	revocable bool
	revoked   uint64
	// patient saves wait for memory.
	patient  bool
	began    time.Time
	deadline time.Time
	report   connector.StoredPut
	// ctx is the call's, for the values that the observer finds in it.
	ctx context.Context
	// good marks the blocks that are stored or on their way, and over is closed at the end; both are nil
	// unless a call waits for the save. Poll does not report it then.
	good []bool
	over chan struct{}
}

// mark notes that blocks [from, to) of a stretch are stored or on their way.
func (p *put) mark(s *stretch, from, to int) {
	if p.good == nil {
		return
	}
	for i := from; i < to; i++ {
		p.good[s.first+i] = true
	}
}

// puts are a rank's saves by key. The worker's mutex guards them.
type puts struct {
	// waiting are not copied yet, in order, and blocks the number of their blocks.
	waiting []*put
	blocks  int
	// running is being copied, nil if none is; stop ends it.
	running *put
	stop    context.CancelFunc
	// copying is set while there is a goroutine that copies.
	copying bool
	// stored are the reports that Poll has not taken.
	stored []connector.StoredPut
}

// queue adds a put, and sees to it that it is run.
func (w *Worker) queue(p *put) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	q := &w.puts
	if w.mem != p.mem {
		return connector.ErrNotRegistered
	}
	if n := len(q.waiting) + len(q.stored); n >= maxPuts {
		return fmt.Errorf("%w: %d saves are under way or not polled, at most %d", connector.ErrBadRequest, n, maxPuts)
	}
	if q.blocks+p.blocks > maxPutBlocks && len(q.waiting) > 0 || p.blocks == 0 {
		w.dropPut(p, p.blocks)
		q.report(p)
		return nil
	}
	p.began = time.Now()
	q.waiting = append(q.waiting, p)
	q.blocks += p.blocks
	if !q.copying {
		q.copying = true
		w.moves.Add(1)
		go w.runPuts()
	}
	return nil
}

// runPuts copies what is queued, one put after the other, until nothing is.
func (w *Worker) runPuts() {
	defer w.moves.Add(-1)
	for {
		p, ctx := w.nextPut()
		if p == nil {
			return
		}
		w.copyPut(ctx, p)
		w.endPut(p)
	}
}

func (w *Worker) nextPut() (*put, context.Context) {
	w.mu.Lock()
	defer w.mu.Unlock()
	q := &w.puts
	if len(q.waiting) == 0 {
		q.copying, q.waiting = false, nil
		return nil, nil
	}
	p := q.waiting[0]
	q.waiting[0] = nil
	q.waiting = q.waiting[1:]
	q.blocks -= p.blocks
	ctx, stop := context.WithDeadlineCause(w.ctx, p.deadline, errLate)
	q.running, q.stop = p, stop
	if w.opts.Observer != nil {
		w.opts.Observer.SaveStarted(time.Since(p.began))
	}
	return p, ctx
}

// endPut files the report of a put, unless its memory was given back.
func (w *Worker) endPut(p *put) {
	w.mu.Lock()
	defer w.mu.Unlock()
	q := &w.puts
	q.stop()
	if q.running == p {
		q.running = nil
		q.report(p)
	} else if p.over != nil {
		close(p.over) // only now is its memory left alone
	}
}

// report files the report of a put that has ended.
func (q *puts) report(p *put) {
	if p.over != nil {
		close(p.over)
		return
	}
	q.stored = append(q.stored, p.report)
}

// abandon ends all puts without a report. The copy that is under way ends with its memory.
func (q *puts) abandon() {
	if q.running != nil {
		q.stop()
		q.running = nil
	}
	for _, p := range q.waiting {
		if p.over != nil {
			p.report.Dropped = p.blocks
			close(p.over)
		}
	}
	q.waiting, q.blocks, q.stored = nil, 0, nil
}

// copyPut copies what is not stored yet out of engine memory, and counts what became of it.
func (w *Worker) copyPut(ctx context.Context, p *put) {
	for i := range p.stretches {
		s := &p.stretches[i]
		if !s.group.writes {
			p.report.Present += len(s.blocks)
			p.mark(s, 0, len(s.blocks))
			continue
		}
		w.copyStretch(ctx, p, s)
	}
}

// copyStretch copies the missing blocks of a stretch. Nothing is saved after a block that cannot be:
// it would be of no use without those before it.
func (w *Worker) copyStretch(ctx context.Context, p *put, s *stretch) {
	there := w.present(s)
	most := min(savesAtOnce, max(1, p.mem.shape.BatchBytes/s.group.blockBytes))
	dropping := false
	for i := 0; i < len(there); {
		if there[i] {
			p.report.Present++
			p.mark(s, i, i+1)
			i++
			continue
		}
		to := i + 1
		for to < len(there) && to-i < most && !there[to] {
			to++
		}
		if !dropping {
			dropping = !w.copyBlocks(ctx, p, s.part(i, to))
		} else {
			w.dropPut(p, to-i)
		}
		i = to
	}
}

// copyBlocks copies blocks, and reports whether all are on their way to the store. Where there is
// no memory it waits for that of the worker's earlier saves. Copies of loads and saves take turns.
func (w *Worker) copyBlocks(ctx context.Context, p *put, s stretch) bool {
	full := false
	for len(s.blocks) > 0 && ctx.Err() == nil {
		// What is revoked already need not be copied.
		kept := len(s.blocks)
		if p.revocable {
			kept = p.mem.kept(p.revoked, kept, func(i int) uint32 { return s.blocks[i].Slot })
		}
		if kept == 0 {
			full = false
			break
		}
		b := saveBatch{revoked: p.revoked, revocable: p.revocable, ctx: p.ctx}
		var n int
		saving := w.saving.Load()
		n, full = w.gather(&b, s.part(0, kept))
		if n == 0 {
			if full && p.patient && w.awaitSave(ctx, saving) {
				continue
			}
			break
		}
		select {
		case p.mem.turns <- struct{}{}:
		case <-ctx.Done():
			for _, save := range b.saves {
				save.Slot.Release()
			}
			continue
		}
		r := w.write(ctx, p.mem, p.call, &b)
		<-p.mem.turns
		p.report.Taken += r.Taken
		p.mark(&s, 0, r.Taken)
		p.report.Dropped += r.Dropped
		s = s.part(n, len(s.blocks))
		if r.Dropped > 0 {
			w.dropPut(p, len(s.blocks))
			return false
		}
	}
	w.dropPut(p, len(s.blocks))
	if full {
		w.opts.Account.RefuseSave() // once, however often it was tried
	}
	return len(s.blocks) == 0
}

func (w *Worker) dropPut(p *put, blocks int) {
	p.report.Dropped += blocks
	w.counters.droppedBlocks.Add(uint64(blocks))
}

// awaitSave waits for the end of a save of the worker, where saving is how many were under way before
// memory was asked for. It reports false if there were none, or ctx has ended.
func (w *Worker) awaitSave(ctx context.Context, saving int64) bool {
	if saving == 0 || ctx.Err() != nil {
		return false
	}
	if w.saving.Load() == 0 {
		return true
	}
	select {
	case <-w.saveEnded:
		return true
	case <-ctx.Done():
		return false
	}
}
