package client

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/connector/fence"
	"github.com/kvconn/kvconn/connector/wire"
)

// holding is a registration that was given up while its daemon was in the middle of a
// copy: the blocks of its jobs may be touched until the copy has ended.
type holding struct {
	jobs map[jobID]pendingJob
	done chan struct{} // closed once nothing is written any more
}

// takeBack takes the memory back from a daemon that does not answer or is gone. Once the page
// is fenced no copy begins. What was in flight has failed, and is reported, as soon as no
// copy is under way:
//
//   - the page is idle (the daemon is slow, gone, or frozen elsewhere): at once;
//   - the daemon was killed in the middle of a copy: its count stays, and the socket's end
//     says that it is gone, since a process's sockets close after its threads have ended;
//   - the daemon is frozen in the middle of a copy: when it has gone on or was killed.
//
// It reports whether that is so already: nothing is written any more.
func (w *Worker) takeBack(conn *wire.Conn) bool {
	page := w.page
	w.page = nil
	if page == nil {
		_ = conn.Close()
		return true
	}
	page.Fence()
	w.revoked.Detach(page)
	if page.Idle() || conn.PeerClosed() {
		_ = conn.Close()
		_ = page.Close()
		w.fail(w.inFlight)
		clear(w.inFlight)
		return true
	}
	h := &holding{jobs: w.inFlight, done: make(chan struct{})}
	maps.Copy(h.jobs, w.starting)
	w.inFlight, w.starting = make(map[jobID]pendingJob), nil
	w.held[h] = struct{}{}
	if len(h.jobs) > 0 {
		w.link.opts.Logger.Warn("kvconnd stands still in the middle of a copy: its loads stay open until it goes on or is killed")
	}
	go w.await(h, conn, page)
	return false
}

// holdInterval is how often a fenced page is looked at. Copies take far less.
const holdInterval = time.Millisecond

// await waits for the end of the copy that was under way.
func (w *Worker) await(h *holding, conn *wire.Conn, page *fence.Page) {
	for !page.Idle() {
		err := conn.AwaitEOF(time.Now().Add(holdInterval))
		if err == nil {
			break
		}
		if !isTimeout(err) { // it has sent nonsense: only the page can tell now
			time.Sleep(holdInterval)
		}
	}
	_ = conn.Close()
	_ = page.Close()
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.held, h)
	w.fail(h.jobs)
	close(h.done)
}

func (w *Worker) fail(jobs map[jobID]pendingJob) {
	for id, j := range jobs {
		if id.put {
			dropped := connector.SaveResult{Dropped: len(j.blocks)}
			w.reports.Stored = append(w.reports.Stored, connector.StoredPut{ID: id.id, SaveResult: dropped})
		} else {
			w.reports.Finished = append(w.reports.Finished, connector.FinishedLoad{Request: id.id, FailedBlocks: j.blocks})
		}
	}
}

// Cancel ends a request's load. Once it returns nil nothing is written to the request's
// blocks any more, and Poll does not report it. That is so at once, except where the daemon
// stands still in the middle of a copy: then Cancel waits until ctx ends, and the error
// means that the blocks must be kept until Poll reports the load as failed.
func (w *Worker) Cancel(ctx context.Context, request string) error {
	w.mu.Lock()
	if _, ok := w.inFlight[jobID{id: request}]; ok && w.link.conn != nil {
		_, err := w.link.call(ctx, wire.OpCancel, func(b []byte) []byte { return wire.AppendCancel(b, request) }, nil)
		if err != nil { // a daemon that cannot cancel: the fence can
			w.link.lose()
		}
		delete(w.inFlight, jobID{id: request})
	}
	var copies []<-chan struct{}
	for h := range w.held {
		if _, ok := h.jobs[jobID{id: request}]; ok {
			copies = append(copies, h.done)
		}
	}
	w.mu.Unlock()
	if err := fence.Await(ctx, copies...); err != nil {
		return fmt.Errorf("cancel the load of %s: %w", request, err)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.reports.Finished = slices.DeleteFunc(w.reports.Finished, func(l connector.FinishedLoad) bool { return l.Request == request })
	return nil
}

// Unregister takes the memory back: once it returns nil nothing is written to it any more,
// and nothing is loaded or saved until Connect. Loads in flight are reported as failed.
// The error is as for Cancel.
func (w *Worker) Unregister(ctx context.Context) error {
	w.mu.Lock()
	w.unregistered = true
	if w.link.conn != nil {
		// Confirmed or not, the connection has no use any more, and losing it fences.
		_, _ = w.link.call(ctx, wire.OpUnregister, wire.AppendEmpty, nil)
		w.link.lose()
	}
	var copies []<-chan struct{}
	for h := range w.held {
		copies = append(copies, h.done)
	}
	w.mu.Unlock()
	if err := fence.Await(ctx, copies...); err != nil {
		return fmt.Errorf("unregister: %w", err)
	}
	return nil
}

// Close ends the connection. The daemon lets go of the memory as soon as it can: see
// Unregister.
func (w *Worker) Close() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.unregistered = true
	w.link.lose()
}
