package worker

import (
	"context"
	"slices"
	"time"

	"github.com/kvconn/kvconn/connector"
)

// Fetching is a load by key that a call waits for. Poll does not report it.
type Fetching struct {
	l     *load
	parts []int // the numbers of their blocks
}

// StartFetch starts the load of blocks by key, which ends after m.Wait at the latest, and at the latest
// with the load timeout. The caller must call [Fetching.Wait] and then [Fetching.Close]. It keeps nothing of m.
func (w *Worker) StartFetch(m *connector.KeyedMove) (*Fetching, error) {
	l, err := w.fetch(m, min(m.Wait, w.opts.LoadTimeout), true)
	if err != nil {
		return nil, err
	}
	return &Fetching{l, partSizes(m)}, nil
}

// Wait returns what came of the load once it has ended, or once it has been ended because ctx has.
// Nothing writes to its slots any more.
func (f *Fetching) Wait(ctx context.Context) connector.FetchResult {
	l := f.l
	select {
	case <-l.over:
	case <-ctx.Done():
		l.w.forget(l)
		<-l.over
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return connector.FetchResult{Done: bitmaps(f.parts, l.good), Tiers: l.tiers, Took: time.Since(l.began)}
}

// Failed reports whether a load that was wanted to its end lacks blocks. One that was cancelled, or whose caller
// or memory has gone, has not failed. Call it after [Fetching.Wait].
func (f *Fetching) Failed() bool {
	f.l.mu.Lock()
	defer f.l.mu.Unlock()
	return !f.l.unwanted && slices.Contains(f.l.good, false)
}

// Close frees the load's id. Until then no other load may have it: whoever hears of both must hear of this one's end
// before the other's start.
func (f *Fetching) Close() {
	w := f.l.w
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.loads.running[f.l.request] == f.l {
		w.loads.take(f.l.request)
	}
}

// forget ends a load that nobody wants any more.
func (w *Worker) forget(l *load) {
	l.mu.Lock()
	l.unwanted = true
	l.mu.Unlock()
	l.cancel() // a copy may wait for the engine's device, which is in a long step
	l.expire()
}

// PutWait saves blocks by key like [Worker.Put], and returns once the save has ended, after m.Wait at
// the latest, or once ctx has. Nothing reads its slots any more.
func (w *Worker) PutWait(ctx context.Context, m *connector.KeyedMove) (connector.PutResult, error) {
	timeout := min(m.Wait, w.opts.LoadTimeout)
	p, err := w.newPut(m, timeout)
	if err != nil {
		return connector.PutResult{}, err
	}
	p.good, p.over = make([]bool, p.blocks), make(chan struct{})
	if err := w.queue(p); err != nil {
		return connector.PutResult{}, err
	}
	ctx, cancel := context.WithDeadline(ctx, p.deadline)
	defer cancel()
	select {
	case <-p.over:
	case <-ctx.Done():
		w.stopPut(p)
		<-p.over
	}
	return connector.PutResult{Done: bitmaps(partSizes(m), p.good), SaveResult: p.report.SaveResult}, nil
}

// stopPut ends a put that a call waits for: at once if it waits, after the copy under way if it runs.
func (w *Worker) stopPut(p *put) {
	w.mu.Lock()
	defer w.mu.Unlock()
	q := &w.puts
	if q.running == p {
		q.stop()
		return
	}
	if i := slices.Index(q.waiting, p); i >= 0 {
		q.waiting = slices.Delete(q.waiting, i, i+1)
		q.blocks -= p.blocks
		w.dropPut(p, p.blocks)
		q.report(p)
	}
}

func partSizes(m *connector.KeyedMove) []int {
	sizes := make([]int, len(m.Parts))
	for i := range sizes {
		sizes[i] = len(m.Parts[i].Hashes)
	}
	return sizes
}

// bitmaps returns the marks of consecutive parts of these sizes, a bitmap for each.
func bitmaps(sizes []int, marks []bool) [][]byte {
	out := make([][]byte, len(sizes))
	for i, n := range sizes {
		out[i] = make([]byte, (n+7)/8)
		for j := range n {
			if marks[j] {
				out[i][j/8] |= 1 << (j % 8)
			}
		}
		marks = marks[n:]
	}
	return out
}
