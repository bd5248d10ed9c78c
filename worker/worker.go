// Package worker moves one rank's blocks between engine memory and the store: it
// executes the leader's plans on its own shard, verifies what it loads before the engine
// may see it, and reports every load, failed or not, in time. It knows nothing of tokens
// or policy.
package worker

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/connector/fence"
	"github.com/kvconn/kvconn/store"
)

// Store is what a worker needs of the record store.
type Store interface {
	Read(ctx context.Context, ops []*store.ReadOp, done func(*store.ReadOp))
	Write(ops []*store.WriteOp, done func(*store.WriteOp)) (accepted int, err error)
}

// Worker serves one rank. It is safe for concurrent use.
type Worker struct {
	opts  Options
	store Store

	// ctx ends with the session.
	ctx    context.Context
	cancel context.CancelFunc

	mu       sync.Mutex
	mem      *memory // nil until registered and after Close
	loads    map[string]*load
	finished []connector.FinishedLoad
	counters counters
	// moves counts loads and saves that are under way, those on closed memory included.
	moves atomic.Int64
}

// New returns a worker whose memory is not registered yet.
func New(o Options, s Store) (*Worker, error) {
	o.EnsureDefaults()
	if err := o.Validate(); err != nil {
		return nil, err
	}
	w := &Worker{opts: o, store: s, loads: make(map[string]*load)}
	w.ctx, w.cancel = context.WithCancel(context.Background())
	return w, nil
}

// Register opens the engine's memory; it replaces what was registered before, whose
// loads fail. It closes files.
func (w *Worker) Register(_ context.Context, l *connector.Layout, files []*os.File, fenceFile *os.File) (int, error) {
	defer func() {
		for _, f := range append(files, fenceFile) {
			_ = f.Close()
		}
	}()
	page, err := fence.Open(fenceFile)
	if err != nil {
		return 0, fmt.Errorf("register KV memory: %w: %w", connector.ErrBadRequest, err)
	}
	mem, err := newMemory(&w.opts, l, page, files)
	if err != nil {
		return 0, fmt.Errorf("register KV memory: %w", err)
	}
	w.release()
	w.mu.Lock()
	w.mem = mem
	w.mu.Unlock()
	w.opts.Logger.Info("KV memory registered", "blocks", mem.layout.Blocks, "block_bytes", mem.blockBytes)
	return mem.blockBytes, nil
}

// BlockBytes is the payload size of a block, 0 while no memory is registered.
func (w *Worker) BlockBytes() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.mem == nil {
		return 0
	}
	return w.mem.blockBytes
}

// parse decodes metadata and checks that it is of this engine.
func (w *Worker) parse(metadata []byte) (*connector.Plan, error) {
	plan, err := connector.ParsePlan(metadata)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", connector.ErrBadRequest, err)
	}
	if plan.Namespace != w.opts.Digest {
		return nil, fmt.Errorf("%w: metadata is of another namespace", connector.ErrBadRequest)
	}
	return plan, nil
}

// hold returns the memory with a user counted in, or nil.
func (w *Worker) hold() *memory {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.mem != nil {
		w.mem.users.Add(1)
	}
	return w.mem
}

// Load starts the loads of a plan and returns their number. Each is reported by Poll
// exactly once. A request that is being loaded already is started anew.
func (w *Worker) Load(_ context.Context, metadata []byte) (int, error) {
	plan, err := w.parse(metadata)
	if err != nil {
		return 0, err
	}
	mem := w.hold()
	if mem == nil {
		return 0, connector.ErrNotRegistered
	}
	defer mem.users.Done()
	for i := range plan.Loads {
		l := &load{w: w, mem: mem, request: plan.Loads[i].Request, t: plan.Loads[i].Transfers[0], began: time.Now()}
		l.ctx, l.cancel = context.WithTimeout(w.ctx, w.opts.LoadTimeout)
		w.mu.Lock()
		old := w.loads[l.request]
		w.loads[l.request] = l
		w.mu.Unlock()
		if old != nil {
			old.expire()
		}
		l.start()
	}
	return len(plan.Loads), nil
}

// finish takes in a load that has ended. One that was replaced is not reported.
func (w *Worker) finish(l *load) {
	w.counters.loads.Add(1)
	w.counters.loadNanos.Add(uint64(time.Since(l.began)))
	if len(l.failed) > 0 {
		w.counters.loadsFailed.Add(1)
		w.opts.Logger.Warn("load failed in part or whole, the engine recomputes", "request", l.request,
			"failed_blocks", len(l.failed), "blocks", len(l.t.Blocks), "took", time.Since(l.began))
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.loads[l.request] != l {
		return
	}
	delete(w.loads, l.request)
	w.finished = append(w.finished, connector.FinishedLoad{Request: l.request, FailedBlocks: l.failed})
}

// countBlock counts one loaded or failed block.
func (w *Worker) countBlock(l *load, index int, err error) {
	if err == nil {
		w.counters.loadedBlocks.Add(1)
		w.counters.loadedBytes.Add(uint64(l.mem.blockBytes))
		return
	}
	w.counters.failedBlocks.Add(1)
	if errors.Is(err, store.ErrCorrupt) {
		w.opts.Logger.Warn("corrupt record dropped", "key", l.t.Blocks[index].Key, "err", err)
	} else {
		w.opts.Logger.Debug("block not loaded", "key", l.t.Blocks[index].Key, "err", err)
	}
}

// Poll returns the loads that ended since the last call.
func (w *Worker) Poll(context.Context) ([]connector.FinishedLoad, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	done := w.finished
	w.finished = nil
	return done, nil
}

// release fences the registered memory and ends its loads.
func (w *Worker) release() {
	w.mu.Lock()
	mem := w.mem
	w.mem = nil
	loads := make([]*load, 0, len(w.loads))
	for _, l := range w.loads {
		loads = append(loads, l)
	}
	w.mu.Unlock()
	for _, l := range loads {
		l.expire()
	}
	if mem != nil {
		mem.fence()
	}
}

// Close ends the session. When it returns, engine memory is not touched any more and no
// longer mapped. Saves that were taken are still written.
func (w *Worker) Close() {
	w.cancel()
	w.release()
}

// Drained reports whether nothing is under way any more. After Close it stays true once
// it is.
func (w *Worker) Drained() bool { return w.moves.Load() == 0 }

// Stats returns the counters.
func (w *Worker) Stats() Stats {
	w.mu.Lock()
	inFlight := len(w.loads)
	w.mu.Unlock()
	c := &w.counters
	return Stats{
		Loads: c.loads.Load(), LoadsFailed: c.loadsFailed.Load(), LoadsInFlight: inFlight,
		LoadedBlocks: c.loadedBlocks.Load(), LoadedBytes: c.loadedBytes.Load(), FailedBlocks: c.failedBlocks.Load(),
		LoadSeconds: time.Duration(c.loadNanos.Load()).Seconds(),
		SavedBlocks: c.savedBlocks.Load(), SavedBytes: c.savedBytes.Load(), DroppedBlocks: c.droppedBlocks.Load(),
	}
}
