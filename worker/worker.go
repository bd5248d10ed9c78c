// Package worker moves one rank's blocks between engine memory and the store: it
// executes the leader's plans on its own shards, verifies what it loads before the engine
// may see it, and reports every load, failed or not, in time. It knows nothing of tokens
// or policy.
package worker

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/store"
	"github.com/kvconn/kvconn/store/host"
)

// Store is what a worker needs of the record store.
type Store interface {
	Read(ctx context.Context, ops []*store.ReadOp, done func(*store.ReadOp))
	Write(ops []*store.WriteOp, done func(*store.WriteOp)) (accepted int, err error)
	Has(id store.RecordID) bool
}

// Worker serves one rank. It is safe for concurrent use.
type Worker struct {
	opts  Options
	store Store

	// ctx ends with the session.
	ctx    context.Context
	cancel context.CancelFunc

	mu       sync.Mutex
	mem      *memory // nil while no memory is registered
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
// loads fail. fencePage is the descriptor of the page by which the engine takes the
// memory back. All descriptors are closed. It returns the bytes of a block of each layer
// group.
func (w *Worker) Register(_ context.Context, l *connector.Layout, regions []*os.File, fencePage *os.File) ([]int, error) {
	defer func() {
		for _, f := range append(regions[:len(regions):len(regions)], fencePage) {
			_ = f.Close()
		}
	}()
	mem, err := openMemory(&w.opts, l, regions, fencePage)
	if err == nil {
		err = w.checkFits(mem)
	}
	if err != nil {
		return nil, fmt.Errorf("register KV memory: %w: %w", connector.ErrBadRequest, err)
	}
	w.release()
	w.mu.Lock()
	w.mem = mem
	w.mu.Unlock()
	w.opts.Logger.Info("KV memory registered", "block_bytes", mem.blockBytes())
	return mem.blockBytes(), nil
}

// checkFits closes the memory again where the host tier can never hold one of its blocks.
func (w *Worker) checkFits(mem *memory) error {
	for _, n := range mem.blockBytes() {
		if n == 0 {
			continue
		}
		var s host.Slot
		err := w.opts.Account.Reserve(w.ctx, &s, n, false)
		s.Release()
		if err != nil && !errors.Is(err, host.ErrFull) {
			return errors.Join(fmt.Errorf("blocks of %d bytes: %w", n, err), mem.close())
		}
	}
	return nil
}

// Unregister gives engine memory back. When it returns, the memory is not touched any
// more, and what was being loaded has failed.
func (w *Worker) Unregister(context.Context) error {
	w.release()
	return nil
}

// BlockBytes is the payload size of a block of each layer group, nil while no memory is
// registered.
func (w *Worker) BlockBytes() []int {
	if mem := w.memory(); mem != nil {
		return mem.blockBytes()
	}
	return nil
}

func (w *Worker) memory() *memory {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.mem
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

// Load starts the loads of a plan and returns their number. Each is reported by Poll
// exactly once. A request that is being loaded already is started anew.
func (w *Worker) Load(_ context.Context, metadata []byte) (int, error) {
	plan, err := w.parse(metadata)
	if err != nil {
		return 0, err
	}
	mem := w.memory()
	if mem == nil {
		return 0, connector.ErrNotRegistered
	}
	for i := range plan.Loads {
		w.begin(w.newLoad(mem, plan.Loads[i].Request, planned(mem, plan.Loads[i].Transfers)))
	}
	return len(plan.Loads), nil
}

// planned lists the blocks of this rank's shards.
func planned(mem *memory, transfers []connector.Transfer) []loadBlock {
	var blocks []loadBlock
	for i := range transfers {
		t := &transfers[i]
		g := mem.group(t.Group)
		if g == nil {
			continue
		}
		parent := t.Parent
		for j := range t.Blocks {
			b := &t.Blocks[j]
			blocks = append(blocks, loadBlock{group: g, slot: b.Slot, parent: parent, key: b.Key, proof: b.Proof})
			parent = b.Key
		}
	}
	return blocks
}

// begin starts a load in place of one of the same request.
func (w *Worker) begin(l *load) {
	l.request = strings.Clone(l.request)
	w.mu.Lock()
	old := w.loads[l.request]
	w.loads[l.request] = l
	w.mu.Unlock()
	if old != nil {
		old.expire()
	}
	l.start()
}

// finish takes in a load that has ended. One that was replaced or cancelled is not
// reported.
func (w *Worker) finish(l *load) {
	w.counters.loads.Add(1)
	w.counters.loadNanos.Add(uint64(time.Since(l.began)))
	w.mu.Lock()
	wanted := w.loads[l.request] == l
	if wanted {
		delete(w.loads, l.request)
		w.finished = append(w.finished, connector.FinishedLoad{Request: l.request, FailedBlocks: l.failed})
	}
	w.mu.Unlock()
	if wanted && len(l.failed) > 0 {
		w.counters.loadsFailed.Add(1)
		w.opts.Logger.Warn("load failed in part or whole, the engine recomputes", "request", l.request,
			"failed_blocks", len(l.failed), "blocks", len(l.blocks), "took", time.Since(l.began))
	}
}

// countBlock counts one loaded or failed block.
func (w *Worker) countBlock(l *load, index int, err error) {
	if err == nil {
		w.counters.loadedBlocks.Add(1)
		w.counters.loadedBytes.Add(uint64(l.blocks[index].group.blockBytes))
		return
	}
	w.counters.failedBlocks.Add(1)
	// The store has said so already where a record was corrupt.
	if !errors.Is(err, store.ErrCorrupt) {
		w.opts.Logger.Debug("block not loaded", "key", l.blocks[index].key, "err", err)
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

// Cancel ends a request's load, if it has one, without a report. When it returns nothing
// is written to the load's blocks any more.
func (w *Worker) Cancel(_ context.Context, request string) error {
	w.mu.Lock()
	l := w.loads[request]
	delete(w.loads, request)
	for i := range w.finished {
		if w.finished[i].Request == request {
			w.finished = append(w.finished[:i], w.finished[i+1:]...)
			break
		}
	}
	w.mu.Unlock()
	if l != nil {
		w.counters.loadsCancelled.Add(1)
		l.expire()
	}
	return nil
}

// release ends the loads on the registered memory and gives it back.
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
	if mem == nil {
		return
	}
	if err := mem.close(); err != nil {
		w.opts.Logger.Error("engine memory could not be unmapped", "err", err)
	}
}

// Close ends the session. When it returns, engine memory is not touched any more and no
// longer mapped. Saves that were taken are still written.
func (w *Worker) Close() {
	w.cancel()
	w.release()
	w.opts.Account.Close()
}

// Drained reports whether nothing is under way any more. After Close it stays true once
// it is.
func (w *Worker) Drained() bool { return w.moves.Load() == 0 }
