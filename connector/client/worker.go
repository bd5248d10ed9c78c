package client

import (
	"context"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/connector/wire"
)

// Worker is one rank's connection to the daemon's worker. Its methods never fail: loads
// that the daemon cannot end are reported as failed by [Worker.Poll], exactly once. It
// is safe for concurrent use.
type Worker struct {
	mu      sync.Mutex
	link    link
	layout  connector.Layout
	regions []*os.File
	// inFlight are loads that were planned and not yet reported.
	inFlight map[string]pendingLoad
	// failed are reports that the client makes itself.
	failed []connector.FinishedLoad
	// lingering counts connections that were given up and whose daemon may still copy.
	lingering sync.WaitGroup
}

type pendingLoad struct {
	blocks   []uint32
	deadline time.Time
}

// NewWorker returns a client for the rank that owns shard, whose KV memory lies in
// regions as layout says. The regions must stay open as long as the client is used.
func NewWorker(o Options, shard connector.Shard, layout connector.Layout, regions []*os.File) (*Worker, error) {
	o.EnsureDefaults()
	if err := o.Validate(); err != nil {
		return nil, err
	}
	w := &Worker{layout: layout, regions: regions, inFlight: make(map[string]pendingLoad)}
	w.link = link{opts: o, role: wire.RoleWorker, shard: shard, onConnect: w.register, onLost: w.lost}
	return w, nil
}

// Connect connects and registers now, and says why it cannot.
func (w *Worker) Connect(ctx context.Context) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.link.ensure(ctx, true)
}

func (w *Worker) register(ctx context.Context) error {
	err := w.link.roundTrip(ctx, wire.OpRegister,
		func(b []byte) []byte { return wire.AppendLayout(b, &w.layout) }, nil, w.regions...)
	if err != nil {
		return fmt.Errorf("register KV memory: %w", err)
	}
	return nil
}

// Load starts the loads of a step. loads is what the leader said beside the metadata.
func (w *Worker) Load(ctx context.Context, metadata []byte, loads []connector.PlannedLoad) {
	if len(loads) == 0 {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	err := errOffline
	if len(metadata) > 0 {
		err = w.link.do(ctx, true, wire.OpLoad, func(b []byte) []byte { return wire.AppendMeta(b, metadata) }, nil)
	}
	deadline := time.Now().Add(w.link.loadTimeout + w.link.opts.CallTimeout)
	for _, l := range loads {
		if err != nil {
			w.failed = append(w.failed, connector.FinishedLoad{Request: l.Request, FailedBlocks: l.Blocks})
			continue
		}
		w.inFlight[l.Request] = pendingLoad{blocks: l.Blocks, deadline: deadline}
	}
}

// Save copies the blocks that the step filled out of engine memory. When it returns the
// engine may overwrite them.
func (w *Worker) Save(ctx context.Context, metadata []byte) connector.SaveResult {
	var r connector.SaveResult
	if len(metadata) == 0 {
		return r
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	_ = w.link.do(ctx, true, wire.OpSave,
		func(b []byte) []byte { return wire.AppendMeta(b, metadata) },
		func(b []byte) error { return wire.DecodeSaveResult(b, &r) })
	return r
}

// Poll returns the loads that ended since the last call, failed ones with the blocks
// whose bytes must not be used. It makes no call while nothing is in flight.
func (w *Worker) Poll(ctx context.Context) []connector.FinishedLoad {
	w.mu.Lock()
	defer w.mu.Unlock()
	var done []connector.FinishedLoad
	if len(w.inFlight) > 0 && w.link.conn != nil {
		err := w.link.call(ctx, wire.OpPoll, wire.AppendEmpty, func(b []byte) (err error) {
			done, err = wire.DecodeFinished(b)
			return err
		})
		if err != nil {
			done = nil
		}
	}
	// Only what this client waits for is passed on: an engine may die of a report that
	// it does not expect.
	known := done[:0]
	for _, l := range done {
		if _, ok := w.inFlight[l.Request]; ok {
			delete(w.inFlight, l.Request)
			known = append(known, l)
		}
	}
	w.expire()
	known = append(known, w.failed...)
	w.failed = nil
	return known
}

// expire ends the connection where a load is overdue. The daemon copies nothing after a
// load's deadline, however late it notices.
func (w *Worker) expire() {
	now := time.Now()
	for request, l := range w.inFlight {
		if now.After(l.deadline) && w.link.conn != nil {
			w.link.opts.Logger.Warn("load is overdue, disconnecting from kvconnd", "request", request)
			w.link.lose(context.DeadlineExceeded)
			return
		}
	}
}

// lost takes over a connection that is given up. Where the daemon has closed it, no more
// bytes can arrive, and what was in flight has failed. Otherwise the daemon may be in the
// middle of a copy: the client hangs up, and reports the loads once the daemon has closed
// its end, which it does after the last copy, or once they are overdue.
func (w *Worker) lost(conn *wire.Conn, err error) {
	loads := w.inFlight
	w.inFlight = make(map[string]pendingLoad)
	if !isTimeout(err) || len(loads) == 0 || conn.HangUp() != nil {
		_ = conn.Close()
		w.fail(loads)
		return
	}
	var overdue time.Time
	for _, l := range loads {
		if l.deadline.After(overdue) {
			overdue = l.deadline
		}
	}
	w.lingering.Go(func() {
		_ = conn.AwaitEOF(overdue)
		_ = conn.Close()
		w.mu.Lock()
		defer w.mu.Unlock()
		w.fail(loads)
	})
}

func (w *Worker) fail(loads map[string]pendingLoad) {
	for request, l := range loads {
		w.failed = append(w.failed, connector.FinishedLoad{Request: request, FailedBlocks: l.blocks})
	}
}

// Close ends the connection; the daemon lets go of the memory.
func (w *Worker) Close() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.link.drop()
}
