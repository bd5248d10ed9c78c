package worker

import (
	"context"
	"errors"
	"fmt"
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
		w.begin(w.newLoad(mem, call, l.Request, planned(mem, l.Transfers), l.Lost))
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
		old.expire()
	}
	l.start()
}

// finish files the report of a load that has ended, unless it was replaced or cancelled.
func (w *Worker) finish(l *load) {
	w.counters.loads.Add(1)
	w.counters.loadNanos.Add(uint64(time.Since(l.began)))
	w.mu.Lock()
	wanted := w.loads.finish(l)
	w.mu.Unlock()
	switch {
	case !wanted:
		w.counters.loadsCancelled.Add(1)
	case len(l.failed) > 0:
		w.counters.loadsFailed.Add(1)
		w.opts.Logger.Warn("load failed in part or whole, the engine recomputes", "request", l.request,
			"failed_blocks", len(l.failed), "blocks", l.size(), "took", time.Since(l.began), "first_cause", l.cause, "remedy", remedy(l.cause))
	}
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

// Poll returns the loads that ended since the last call, in no order.
func (w *Worker) Poll(context.Context) ([]connector.FinishedLoad, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.loads.poll(), nil
}

// Cancel ends a request's load, if it has one, without a report. When it returns, nothing is written
// to the load's blocks any more.
func (w *Worker) Cancel(_ context.Context, request string) error {
	w.mu.Lock()
	l := w.loads.take(request)
	w.mu.Unlock()
	if l != nil {
		l.expire()
	}
	return nil
}
