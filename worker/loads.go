package worker

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/store"
)

// Load starts the loads of a plan and returns their number. Each is reported by Poll
// exactly once, unless it is cancelled, its memory given back, or its request loaded again
// before. An error means that nothing was started.
func (w *Worker) Load(_ context.Context, metadata []byte) (int, error) {
	mem, call := w.call()
	plan, err := w.parse(metadata)
	if err != nil {
		return 0, err
	}
	if mem == nil {
		return 0, connector.ErrNotRegistered
	}
	if err := w.admit(plan.Loads); err != nil {
		return 0, err
	}
	for i := range plan.Loads {
		l := &plan.Loads[i]
		w.begin(w.newLoad(mem, call, l.Request, planned(mem, l.Transfers), l.Lost, w.opts.LoadTimeout))
	}
	return len(plan.Loads), nil
}

// admit refuses loads that no leader plans, and loads that are too many beside those under way.
// connector.ParsePlan has bounded their number and ids.
func (w *Worker) admit(loads []connector.RequestLoad) error {
	blocks := 0
	seen := make(map[string]struct{}, len(loads))
	for i := range loads {
		l := &loads[i]
		// The second would replace the first, and its report would pass for both.
		if _, twice := seen[l.Request]; twice {
			return fmt.Errorf("%w: request %q is loaded twice in one step", connector.ErrBadRequest, l.Request)
		}
		seen[l.Request] = struct{}{}
		blocks += len(l.Lost)
		for j := range l.Transfers {
			blocks += len(l.Transfers[j].Blocks)
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.loads.admits(len(loads), blocks)
}

// begin starts a load, which replaces one of the same request.
func (w *Worker) begin(l *load) {
	l.request = strings.Clone(l.request)
	w.mu.Lock()
	old := w.loads.put(l)
	w.mu.Unlock()
	if old != nil {
		old.cancel()
		old.expire()
	}
	l.start()
}

// finish files the report of a load that has ended, unless it was replaced or cancelled.
func (w *Worker) finish(l *load) {
	took := time.Since(l.began)
	w.counters.loads.Add(1)
	w.counters.loadNanos.Add(uint64(took))
	w.mu.Lock()
	wanted := w.loads.finish(l, took)
	w.mu.Unlock()
	l.mu.Lock()
	l.unwanted = l.unwanted || !wanted
	wanted = !l.unwanted
	l.mu.Unlock()
	if wanted {
		w.observe(l, took)
	}
	switch {
	case !wanted:
		w.counters.loadsCancelled.Add(1)
	case len(l.failed) > 0:
		w.counters.loadsFailed.Add(1)
		w.opts.Logger.Warn("load failed in part or whole, the engine recomputes", "request", l.request,
			"failed_blocks", len(l.failed), "blocks", l.size(), "took", took, "first_cause", l.cause, "remedy", remedy(l.cause), w.trace(l))
	case took > w.opts.LoadTimeout/slowShare:
		w.opts.Logger.Warn("load was slow", "request", l.request, "blocks", l.size(), "took", took, "tiers", l.tiers,
			"remedy", "none if it is rare; else see the queues in kvconnd status: the disk, or the engine's device, is slow", w.trace(l))
	}
}

// slowShare is the part of the load timeout from which on a load that did not fail is worth a line.
const slowShare = 2

// trace is the log attribute that names a load's trace, empty if it has none.
func (w *Worker) trace(l *load) slog.Attr {
	if w.opts.Trace == nil {
		return slog.Attr{}
	}
	if trace := w.opts.Trace(l.request); trace != "" {
		return slog.String("traceparent", trace)
	}
	return slog.Attr{}
}

// countBlock counts block i of a stretch as loaded or failed.
func (w *Worker) countBlock(s *stretch, i int, err error) {
	if err == nil {
		w.counters.loadedBlocks.Add(1)
		w.counters.loadedBytes.Add(uint64(s.group.blockBytes))
		return
	}
	w.counters.failedBlocks.Add(1)
	// The tier has logged a corrupt record already.
	if !errors.Is(err, store.ErrCorrupt) {
		w.opts.Logger.Debug("block not loaded", "key", s.blocks[i].Key, "err", err)
	}
}

// Poll returns the loads and the saves by key that ended since the last call, in no order.
func (w *Worker) Poll(context.Context) (connector.Polled, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	p := connector.Polled{Finished: w.loads.poll(), Stored: w.puts.stored}
	w.puts.stored = nil
	return p, nil
}

// Cancel ends a request's load, if it has one, without a report. When it returns, nothing is written
// to the load's blocks any more.
func (w *Worker) Cancel(_ context.Context, request string) error {
	w.mu.Lock()
	l := w.loads.giveUp(request)
	w.mu.Unlock()
	if l != nil {
		w.forget(l)
	}
	return nil
}

// Bounds of what one rank may have under way: loads that run or wait to be polled, and the
// blocks of the first and the failed blocks of the others. They are far above what an engine
// has memory for, and keep the answer to a poll within a frame.
const (
	maxLoads      = connector.MaxStepRequests
	maxLoadBlocks = 1 << 20
)

// loadTable holds a rank's loads by request. The worker's mutex guards them.
type loadTable struct {
	running map[string]*load
	// finished are the loads that Poll has not reported yet.
	finished map[string]connector.FinishedLoad
	// blocks counts the blocks of running and finished.
	blocks int
}

func newLoadTable() loadTable {
	return loadTable{running: make(map[string]*load), finished: make(map[string]connector.FinishedLoad)}
}

// admits returns an error if n more loads of that many blocks are too many.
func (t *loadTable) admits(n, blocks int) error {
	if have := len(t.running) + len(t.finished); have+n > maxLoads || t.blocks+blocks > maxLoadBlocks {
		return fmt.Errorf("%w: %d loads of %d blocks with %d of %d under way or not polled, at most %d of %d",
			connector.ErrBadRequest, n, blocks, have, t.blocks, maxLoads, maxLoadBlocks)
	}
	return nil
}

// put adds a load. It returns the one of the same request that it replaces, nil if none is
// running.
func (t *loadTable) put(l *load) *load {
	old := t.take(l.request)
	t.running[l.request] = l
	t.blocks += l.size()
	return old
}

// take forgets a request: its load, which it returns if it is running, and its report.
func (t *loadTable) take(request string) *load {
	t.blocks -= len(t.finished[request].FailedBlocks)
	delete(t.finished, request)
	l := t.running[request]
	if l != nil {
		t.blocks -= l.size()
		delete(t.running, request)
	}
	return l
}

// giveUp is take for a load that is not wanted any more. One that a call waits for keeps its id until that call
// has told of its end: see [Fetching.Close].
func (t *loadTable) giveUp(request string) *load {
	if l := t.running[request]; l != nil && l.over != nil {
		return l
	}
	return t.take(request)
}

// giveUpAll gives everything up and returns the running loads.
func (t *loadTable) giveUpAll() []*load {
	all := make([]*load, 0, len(t.running))
	for _, l := range t.running {
		all = append(all, l)
	}
	*t = newLoadTable()
	for _, l := range all {
		if l.over != nil {
			t.put(l)
		}
	}
	return all
}

// finish turns a load into a report, and reports whether it was still wanted.
func (t *loadTable) finish(l *load, took time.Duration) bool {
	if t.running[l.request] != l {
		return false
	}
	if l.over != nil {
		return true // its own call answers, and frees the id
	}
	t.take(l.request)
	t.finished[l.request] = connector.FinishedLoad{Request: l.request, FailedBlocks: l.failed, Tiers: l.tiers, Took: took}
	t.blocks += len(l.failed)
	return true
}

// has reports whether a request has a load, or a report that was not polled.
func (t *loadTable) has(request string) bool {
	_, finished := t.finished[request]
	return finished || t.running[request] != nil
}

func (t *loadTable) poll() []connector.FinishedLoad {
	if len(t.finished) == 0 {
		return nil
	}
	out := make([]connector.FinishedLoad, 0, len(t.finished))
	for _, l := range t.finished {
		out = append(out, l)
		t.blocks -= len(l.FailedBlocks)
	}
	clear(t.finished)
	return out
}
