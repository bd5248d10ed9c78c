package worker

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/store/host"
)

// Observer is told how long transfers take. Its methods are called from any goroutine, keep nothing of their
// arguments, and must not wait.
type Observer interface {
	// LoadEnded tells of a load that was not cancelled, failed or not: the time that it took, and the tiers that its
	// blocks came from, none if none came. waited is the time until its first block was in memory, negative if none
	// ever was.
	LoadEnded(l *Load)
	// SaveStarted tells how long a save waited for the copies of those before it.
	SaveStarted(waited time.Duration)
	// SaveEnded tells of blocks that were copied together, once the last of them was written or given up. ctx is what Save
	// or SaveLater was called with, for its values: it may have ended.
	SaveEnded(ctx context.Context, s *Save)
}

// Load is a load that has ended, for an [Observer].
type Load struct {
	Request      string
	Began        time.Time
	Took, Waited time.Duration
	Tiers        []connector.TierBlocks
	FailedBlocks int
	// Cause is that of the first block that failed, nil if none did, and CauseKind is one word for it.
	Cause     error
	CauseKind string
}

// Save is blocks that were copied together, for an [Observer].
type Save struct {
	Began time.Time
	// Took is the time from the start of the copy until the last block was written, or given up.
	Took time.Duration
	// Blocks were copied; Bytes of them were written, and FailedBlocks were not.
	Blocks, FailedBlocks int
	Bytes                int64
}

// observe tells the observer of a load that has ended.
func (w *Worker) observe(l *load, took time.Duration) {
	if w.opts.Observer == nil {
		return
	}
	waited := time.Duration(l.waited.Load())
	if waited == 0 {
		waited = -1
	}
	w.opts.Observer.LoadEnded(&Load{Request: l.request, Began: l.began, Took: took, Waited: waited, Tiers: l.tiers, FailedBlocks: len(l.failed),
		Cause: l.cause, CauseKind: causeKind(l.cause)})
}

// timedSave measures the save of n blocks.
type timedSave struct {
	w                   *Worker
	ctx                 context.Context // for the observer
	report              Save
	left, failed, bytes atomic.Int64
}

// saved is [Worker.saved] of one of the blocks.
func (t *timedSave) saved(s *host.Save) {
	if s.Err != nil {
		t.failed.Add(1)
	} else {
		t.bytes.Add(int64(len(s.Payload)))
	}
	t.w.saved(s)
	t.done(1)
}

// done takes in that n blocks have ended, or will never begin.
func (t *timedSave) done(n int) {
	if t.left.Add(-int64(n)) == 0 {
		t.report.Took, t.report.FailedBlocks, t.report.Bytes = time.Since(t.report.Began), int(t.failed.Load()), t.bytes.Load()
		t.w.opts.Observer.SaveEnded(t.ctx, &t.report)
	}
}
