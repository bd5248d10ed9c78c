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

// Worker is one rank's connection to the daemon's worker. A dead or slow daemon never
// makes its methods fail: loads that the daemon cannot end are reported as failed by
// [Worker.Poll], exactly once, as soon as nothing can be written to their blocks any more, and
// saves by key in the same way as dropped.
// It is safe for concurrent use.
//
// Order of calls in an engine step: Load before the forward pass, Save after it, Poll at
// the step's end, also in steps without a forward pass. Cancel where a request is aborted
// before its load was reported, Unregister before the memory is freed.
type Worker struct {
	mu      sync.Mutex
	link    link
	layout  connector.Layout
	regions []*os.File
	// inFlight are jobs that the daemon runs and that were not reported yet, starting the
	// jobs of the call being made.
	inFlight, starting map[jobID]pendingJob
	// reports are the client's own, of jobs that have failed.
	reports connector.Polled
	// page fences the memory of the registration in force, nil before the first. calls counts the calls that moved
	// blocks since then.
	page  *fence.Page
	calls uint64
	// revoked is told of blocks that are taken back from saves, without waiting for mu.
	revoked fence.Ledger
	// held are former registrations whose daemon stands still in the middle of a copy.
	held map[*holding]struct{}
	// unregistered is set between Unregister and Connect.
	unregistered bool
}

// jobID names a load, or a save by key.
type jobID struct {
	id  string
	put bool
}

type pendingJob struct {
	blocks   []uint32
	deadline time.Time
}

// NewWorker returns a client for a rank whose KV memory lies in regions as layout says. The
// regions must stay open as long as the client is used.
func NewWorker(o Options, rank int, layout connector.Layout, regions []*os.File) (*Worker, error) {
	o.EnsureDefaults()
	if err := o.Validate(); err != nil {
		return nil, err
	}
	if rank < 0 || rank >= o.Manifest.Ranks() {
		return nil, fmt.Errorf("client: rank %d of a manifest with %d", rank, o.Manifest.Ranks())
	}
	w := &Worker{
		layout: layout, regions: regions,
		inFlight: make(map[jobID]pendingJob), held: make(map[*holding]struct{}),
	}
	w.link = link{opts: o, role: wire.RoleWorker, rank: rank, memory: w}
	return w, nil
}

// Connect connects and registers now, and says why it cannot. It is needed after
// Unregister; and at the start with Options.Handoff, since nothing is offered before every
// rank has the memory of the daemon's host tier. Afterwards Poll sees to it.
func (w *Worker) Connect(ctx context.Context) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.unregistered = false
	return w.link.ensure(ctx, true)
}

// Revive connects and registers again where the daemon has been restarted, without making
// another call: an engine that copies for itself may need the new daemon's host tier.
func (w *Worker) Revive(ctx context.Context) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.unregistered {
		w.link.revive(ctx, true)
	}
}

// register gives the daemon the memory, and a page to take it back with.
func (w *Worker) register(ctx context.Context) error {
	page, f, err := fence.New()
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	w.revoked.Attach(page)
	regions, err := w.describe()
	if err != nil {
		w.discard(page)
		return fmt.Errorf("register KV memory: %w", err)
	}
	files := append(slices.Clone(regions), f)
	got, err := w.link.roundTrip(ctx, wire.OpRegister, func(b []byte) []byte { return wire.AppendLayout(b, &w.layout) }, nil, files...)
	if err == nil {
		err = w.takeHostTier(got)
	}
	if err != nil {
		w.discard(page)
		return fmt.Errorf("register KV memory: %w", err)
	}
	w.page, w.calls = page, 0
	return nil
}

// discard closes the page of a registration that has failed.
func (w *Worker) discard(page *fence.Page) {
	page.Fence()
	w.revoked.Detach(page)
	_ = page.Close()
}

// describe is what the daemon is given of the memory.
func (w *Worker) describe() ([]*os.File, error) {
	if describe := w.link.opts.Regions; describe != nil {
		return describe()
	}
	return w.regions, nil
}

// reach counts a call that moves blocks, when its body is made. An engine in Go has computed what it has queued: it tells so to a daemon that
// copies for a device, which would wait for it.
func (w *Worker) reach(body func([]byte) []byte) func([]byte) []byte {
	return func(b []byte) []byte {
		w.calls++
		w.page.Reach(w.calls)
		return body(b)
	}
}

// takeHostTier passes on the memory that came with the answer to register, if any.
func (w *Worker) takeHostTier(files []*os.File) error {
	f := wire.Frame{Files: files}
	defer f.CloseFiles()
	switch o := &w.link.opts; {
	case len(files) == 0:
		return nil
	case len(files) > 1 || o.HostTier == nil:
		return fmt.Errorf("%w: %d descriptors with the answer to register", connector.ErrProtocol, len(files))
	default:
		return o.HostTier(files[0], w.link.loadTimeout+o.CallTimeout)
	}
}

// Load starts the loads of a step. loads is what the leader said beside the metadata.
func (w *Worker) Load(ctx context.Context, metadata []byte, loads []connector.PlannedLoad) {
	if len(loads) == 0 {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(metadata) == 0 || w.unregistered {
		w.failPlanned(loads...)
		return
	}
	jobs := make(map[jobID]pendingJob, len(loads))
	for _, l := range loads {
		jobs[jobID{id: l.Request}] = pendingJob{blocks: l.Blocks}
	}
	w.startJobs(ctx, wire.OpLoad, func(b []byte) []byte { return wire.AppendMeta(b, metadata) }, nil, jobs)
}

// startJobs has the daemon start jobs. They count as in flight from before the call, since the
// daemon may be copying before its answer comes.
func (w *Worker) startJobs(
	ctx context.Context, op wire.Op, body func([]byte) []byte, decode func([]byte) error, jobs map[jobID]pendingJob,
) {
	w.starting = jobs
	err := w.link.do(ctx, true, op, w.reach(body), decode)
	// What is still here either runs, or runs nowhere: takeBack has taken what may.
	started := w.starting
	w.starting = nil
	if err != nil {
		w.fail(started)
		return
	}
	deadline := time.Now().Add(w.link.loadTimeout + w.link.opts.CallTimeout)
	for id, j := range started {
		w.inFlight[id] = pendingJob{j.blocks, deadline}
	}
}

func (w *Worker) failPlanned(loads ...connector.PlannedLoad) {
	for _, l := range loads {
		w.reports.Finished = append(w.reports.Finished, connector.FinishedLoad{Request: l.Request, FailedBlocks: l.Blocks})
	}
}

// Save copies the blocks that the step filled out of engine memory. When it returns the
// engine may overwrite them.
func (w *Worker) Save(ctx context.Context, metadata []byte) connector.SaveResult {
	if len(metadata) == 0 {
		return connector.SaveResult{}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	var r connector.SaveResult
	if w.unregistered {
		return r
	}
	err := w.link.do(ctx, true, wire.OpSave,
		w.reach(func(b []byte) []byte { return wire.AppendSave(b, &connector.SaveRequest{Metadata: metadata}) }),
		func(b []byte) (err error) {
			r, _, err = wire.DecodeSaveResult(b)
			return err
		})
	if err != nil {
		return connector.SaveResult{}
	}
	return r
}

// Poll returns the loads that ended since the last call, failed ones with the blocks
// whose bytes must not be used; see [Worker.Stored] for saves. It makes no call while nothing is in
// flight, but connects where nothing else would: with Options.Handoff to a daemon that was
// restarted, and now and then to one that has refused the memory, or put it off.
func (w *Worker) Poll(ctx context.Context) []connector.FinishedLoad {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.unregistered && (w.link.opts.Handoff || w.link.state == refused || w.link.state == putOff) {
		w.link.revive(ctx, false)
	}
	var done connector.Polled
	if len(w.inFlight) > 0 && w.link.conn != nil {
		_, err := w.link.call(ctx, wire.OpPoll, wire.AppendEmpty, func(b []byte) (err error) {
			done, err = wire.DecodePolled(b)
			return err
		})
		if err != nil {
			done = connector.Polled{}
		}
	}
	// Only jobs that this client waits for are passed on: an engine may die of a report that
	// it does not expect.
	known := slices.DeleteFunc(done.Finished, func(l connector.FinishedLoad) bool { return !w.ended(jobID{id: l.Request}) })
	stored := slices.DeleteFunc(done.Stored, func(p connector.StoredPut) bool { return !w.ended(jobID{p.ID, true}) })
	w.expire()
	known = append(known, w.reports.Finished...)
	w.reports.Finished, w.reports.Stored = nil, append(w.reports.Stored, stored...)
	return known
}

// ended forgets a job that has ended, and reports whether it was waited for.
func (w *Worker) ended(id jobID) bool {
	_, ok := w.inFlight[id]
	delete(w.inFlight, id)
	return ok
}

// expire takes the memory back where a job is overdue.
func (w *Worker) expire() {
	now := time.Now()
	for id, j := range w.inFlight {
		if now.After(j.deadline) && w.link.conn != nil {
			w.link.opts.Logger.Warn("load or save is overdue, disconnecting from kvconnd", "request", id.id)
			w.link.lose()
			return
		}
	}
}
