package engine

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/kvconn/kvconn/connector"
)

// maxFailedLoads bounds how often a request may go back to waiting because all of its
// load failed. A connector that offers the same blocks again and again would keep the
// engine busy without end (as it does vLLM).
const maxFailedLoads = 8

// ErrLoadFailed ends an engine that has no way to recompute what a load did not bring.
var ErrLoadFailed = errors.New("engine cannot go on after a failed load")

func loadError(l *connector.FinishedLoad) error {
	return fmt.Errorf("%w: request %q, %d blocks", ErrLoadFailed, l.Request, len(l.FailedBlocks))
}

// finishLoads lets the requests of ended loads go on, failed ones from their first bad
// block, and reports to the scheduler's side.
func (e *Engine) finishLoads(ctx context.Context, loads []connector.FinishedLoad) error {
	var report connector.LoadedReport
	for _, l := range loads {
		r := e.inFlight[l.Request]
		if r == nil {
			return fmt.Errorf("engine: connector reports a load of request %q, which has none in flight", l.Request)
		}
		delete(e.inFlight, l.Request)
		report.Done = append(report.Done, l.Request)
		report.InvalidBlocks = append(report.InvalidBlocks, l.FailedBlocks...)
		if err := e.finishLoad(r, &l); err != nil {
			return err
		}
	}
	if len(report.Done) > 0 {
		e.scheduler.Loaded(ctx, &report)
	}
	return nil
}

func (e *Engine) finishLoad(r *request, ended *connector.FinishedLoad) error {
	l := r.load
	good, err := e.good(r, ended)
	if err != nil {
		return err
	}
	r.load = nil
	if r.ended || r.restart {
		e.drop(r)
		return nil
	}
	discard := e.opts.Order == TensorRTLLM && e.opts.TensorRT.Discard != nil && e.opts.TensorRT.Discard(r.ID)
	if discard && !l.sync {
		good = l.from
	}
	r.result.CachedTokens -= l.to - good
	r.result.RecomputedTokens += l.to - good
	if l.sync {
		e.goOnAfter(r, good, good < l.to)
		return nil
	}
	r.phase = waiting
	if good > 0 || discard {
		e.truncate(r, good)
		e.publish(r, good)
		return nil
	}
	// As in vLLM, a request that is left with nothing starts over, match included.
	e.drop(r)
	if r.failedLoads++; r.failedLoads > maxFailedLoads {
		return fmt.Errorf("engine: request %q was offered %d loads that failed: the connector does not learn from failures", r.ID, r.failedLoads)
	}
	return nil
}

// good is the number of tokens after which a request can go on.
func (e *Engine) good(r *request, ended *connector.FinishedLoad) (int, error) {
	l := r.load
	good := l.to
	for _, b := range ended.FailedBlocks {
		i, ok := l.index[b]
		if !ok {
			return 0, fmt.Errorf("engine: connector reports block %d as failed, which the load of request %q was not to fill", b, r.ID)
		}
		good = min(good, i*e.opts.BlockSize)
	}
	switch {
	case good == l.to:
		return good, nil
	case e.opts.Order == TensorRTLLM:
		return 0, loadError(ended)
	}
	// The load has only filled the windows of tokens after its end.
	for g, table := range r.blocks {
		first, end := e.groups[g].FirstBlock(good, e.opts.BlockSize), good/e.opts.BlockSize
		if slices.Contains(table[min(first, end):end], connector.NoBlock) {
			return l.from, nil
		}
	}
	return good, nil
}

// goOnAfter continues a request whose load was awaited in the step. Where it has failed
// the request keeps its blocks and is computed from the first bad one, as in vLLM;
// with windows, whose blocks may be gone, it starts over.
func (e *Engine) goOnAfter(r *request, good int, failed bool) {
	r.spoilt = failed
	switch {
	case !failed:
	case len(e.groups) > 1 || e.groups[0].Window > 0:
		e.Restart(r.ID)
	default:
		r.computed, r.published = good, min(r.published, good/e.opts.BlockSize)
	}
}

// truncate keeps the blocks of the first tokens only.
func (e *Engine) truncate(r *request, tokens int) {
	n := tokens / e.opts.BlockSize
	for g, table := range r.blocks {
		if len(table) > n {
			e.pool.release(table[n:])
			r.blocks[g] = table[:n]
		}
	}
	r.computed, r.published, r.toldBlocks = tokens, min(r.published, n), 0
}
