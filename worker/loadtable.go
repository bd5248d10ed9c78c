package worker

import (
	"fmt"

	"github.com/kvconn/kvconn/connector"
)

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
	// finished are the failed blocks of the loads that Poll has not reported yet.
	finished map[string][]uint32
	// blocks counts the blocks of running and finished.
	blocks int
}

func newLoadTable() loadTable {
	return loadTable{running: make(map[string]*load), finished: make(map[string][]uint32)}
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
	t.blocks -= len(t.finished[request])
	delete(t.finished, request)
	l := t.running[request]
	if l != nil {
		t.blocks -= l.size()
		delete(t.running, request)
	}
	return l
}

// takeAll forgets everything and returns the running loads.
func (t *loadTable) takeAll() []*load {
	all := make([]*load, 0, len(t.running))
	for _, l := range t.running {
		all = append(all, l)
	}
	*t = newLoadTable()
	return all
}

// finish turns a load into a report, and reports whether it was still wanted.
func (t *loadTable) finish(l *load) bool {
	if t.running[l.request] != l {
		return false
	}
	t.take(l.request)
	t.finished[l.request] = l.failed
	t.blocks += len(l.failed)
	return true
}

// poll takes the reports.
func (t *loadTable) poll() []connector.FinishedLoad {
	if len(t.finished) == 0 {
		return nil
	}
	out := make([]connector.FinishedLoad, 0, len(t.finished))
	for request, failed := range t.finished {
		out = append(out, connector.FinishedLoad{Request: request, FailedBlocks: failed})
		t.blocks -= len(failed)
	}
	clear(t.finished)
	return out
}
