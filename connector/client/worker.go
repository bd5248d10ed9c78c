package client

import (
	"context"
	"fmt"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/connector/fence"
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
	// page fences the memory of the registration in force, nil before the first.
	page *fence.Page
	// lingering counts lost connections whose daemon was in the middle of a copy.
	lingering sync.WaitGroup
}

type pendingLoad struct {
	blocks   []uint32
	deadline time.Time
}

// NewWorker returns a client for a rank whose KV memory lies in regions as layout says. The regions must stay open as long as the client is used.
func NewWorker(o Options, rank int, layout connector.Layout, regions []*os.File) (*Worker, error) {
	o.EnsureDefaults()
	if err := o.Validate(); err != nil {
		return nil, err
	}
	w := &Worker{layout: layout, regions: regions, inFlight: make(map[string]pendingLoad)}
	w.link = link{opts: o, role: wire.RoleWorker, rank: rank, onConnect: w.register, onLost: w.lost}
	return w, nil
}

// Connect connects and registers now, and says why it cannot.
func (w *Worker) Connect(ctx context.Context) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.link.ensure(ctx, true)
}

// register gives the daemon the memory, and a page to take it back with.
func (w *Worker) register(ctx context.Context) error {
	page, f, err := fence.New()
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	files := append(slices.Clone(w.regions), f)
	err = w.link.roundTrip(ctx, wire.OpRegister, func(b []byte) []byte { return wire.AppendLayout(b, &w.layout) }, nil, files...)
	if err != nil {
		page.Fence()
		_ = page.Close()
		return fmt.Errorf("register KV memory: %w", err)
	}
	w.page = page
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

// expire takes the memory back where a load is overdue.
func (w *Worker) expire() {
	now := time.Now()
	for request, l := range w.inFlight {
		if now.After(l.deadline) && w.link.conn != nil {
			w.link.opts.Logger.Warn("load is overdue, disconnecting from kvconnd", "request", request)
			w.link.lose()
			return
		}
	}
}

// lost takes the memory back from a daemon that does not answer or is gone. What was in
// flight has failed as soon as no copy is under way: at once, unless the daemon stands
// still in the middle of one. Then it is reported when the daemon has gone on or died.
func (w *Worker) lost(conn *wire.Conn) {
	page, loads := w.page, w.inFlight
	w.page, w.inFlight = nil, make(map[string]pendingLoad)
	if page == nil {
		_ = conn.Close()
		return
	}
	page.Fence()
	if page.Idle() || len(loads) == 0 {
		_ = conn.Close()
		_ = page.Close()
		w.fail(loads)
		return
	}
	w.link.opts.Logger.Warn("kvconnd stands still in the middle of a copy: its loads stay open until it goes on or is killed")
	w.lingering.Go(func() {
		for !page.Idle() && conn.AwaitEOF(time.Now().Add(lingerInterval)) != nil {
		}
		_ = conn.Close()
		_ = page.Close()
		w.mu.Lock()
		defer w.mu.Unlock()
		w.fail(loads)
	})
}

// lingerInterval is how often a fenced page is looked at. Copies take far less.
const lingerInterval = time.Millisecond

func (w *Worker) fail(loads map[string]pendingLoad) {
	for request, l := range loads {
		w.failed = append(w.failed, connector.FinishedLoad{Request: request, FailedBlocks: l.blocks})
	}
}

// Close ends the connection; the daemon lets go of the memory.
func (w *Worker) Close() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.link.lose()
}
