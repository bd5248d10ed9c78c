package engine

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/connector/client"
	"github.com/kvconn/kvconn/internal/engine/model"
)

// idleDelay is the pause of Run after a step that had nothing to do but wait for loads.
const idleDelay = 200 * time.Microsecond

// Engine serves requests. It is not safe for concurrent use: everything happens in the
// goroutine that calls Step or Run.
type Engine struct {
	opts      Options
	model     *model.Model
	manifest  connector.Manifest
	groups    []connector.Group // the manifest's
	memories  []*memory
	kv        model.KV
	pool      *blockPool
	scheduler SchedulerConnector
	ranks     ranks

	// waiting requests are in order of arrival, loading ones among them; running ones in
	// the order in which they were admitted.
	waiting, running []*request
	// inFlight are the requests whose load has not ended, aborted ones included: their
	// blocks are not given back before.
	inFlight map[string]*request
	// finished and preempted ids are told to the connector in the next step.
	finished, preempted []string
	// planned is the step that the connector knows of and that is not computed yet, with
	// [Options.Overlap].
	planned *plan
	// barren counts the times that requests lost their blocks since a token was generated.
	barren  int
	steps   int
	results []Result
}

// New makes an engine without a connector, and starts its ranks if they are processes.
func New(o Options) (*Engine, error) {
	o.EnsureDefaults()
	if err := o.Validate(); err != nil {
		return nil, err
	}
	m := model.New(o.Model)
	groups := o.groups()
	e := &Engine{
		opts: o, model: m, groups: groups, pool: newBlockPool(o.Blocks),
		scheduler: noConnector{}, inFlight: make(map[string]*request), ranks: ranks{pending: make(map[string]*pendingLoad)},
		manifest: connector.Manifest{
			Engine: "kvconn-engine/2", Model: o.Model.Name, Revision: m.Fingerprint(), KVDType: "float32", BlockSize: o.BlockSize, Groups: groups,
			TensorParallel: o.TensorParallel, PipelineParallel: o.PipelineParallel,
			KeyScheme: connector.KeySchemeTokens, HashScheme: connector.HashScheme,
		},
	}
	for i := range o.TensorParallel * o.PipelineParallel {
		if err := e.addRank(o.shard(i)); err != nil {
			return nil, errors.Join(err, e.Close())
		}
	}
	e.kv = assemble(e.memories)
	return e, nil
}

func (e *Engine) addRank(s shard) error {
	if len(e.opts.RankCommand) > 0 {
		r, err := startRank(e.opts.RankCommand, e.opts.RankTimeout, s)
		if err != nil {
			return err
		}
		e.ranks.all, e.memories = append(e.ranks.all, r), append(e.memories, r.memory)
		return nil
	}
	m, err := e.opts.newMemory(s)
	if err != nil {
		return err
	}
	e.ranks.all, e.memories = append(e.ranks.all, localRank{noConnector{}}), append(e.memories, m)
	return nil
}

// Attach gives the engine its connector, to which [Engine.Layout], [Engine.File] and
// [Engine.Manifest] were declared: the workers of all ranks in order, or none where ranks
// are processes. It must be called before the first request, and instead of
// [Engine.Connect]; the caller closes the connector.
func (e *Engine) Attach(s SchedulerConnector, workers ...WorkerConnector) {
	e.scheduler = s
	for i, w := range workers {
		e.ranks.all[i] = localRank{w}
	}
}

// Connect attaches kvconn's own client to the engine and all its ranks; Close ends it.
// The manifest is [Engine.Manifest] unless o has one. Ranks may be on other nodes than the
// scheduler: sockets, if there are any, are those of the ranks' daemons in order, and o has
// that of the scheduler's. A daemon that is not there is no error: the clients try again.
func (e *Engine) Connect(ctx context.Context, o client.Options, sockets ...string) error {
	if len(sockets) != 0 && len(sockets) != len(e.ranks.all) {
		return fmt.Errorf("engine: %d sockets for %d ranks", len(sockets), len(e.ranks.all))
	}
	if o.Manifest.Engine == "" {
		o.Manifest = e.Manifest()
	}
	s, err := NewSchedulerClient(o)
	if err != nil {
		return err
	}
	e.scheduler = s
	_ = s.Connect(ctx) // it connects again by itself; why it could not is logged
	for i, r := range e.ranks.all {
		if len(sockets) > 0 {
			o.Socket = sockets[i]
		}
		if p, ok := r.(*processRank); ok {
			err = p.connect(ctx, o)
		} else {
			var w WorkerConnector
			if w, err = connectClient(ctx, o, i, e.Layout(i), []*os.File{e.File(i)}); err == nil {
				e.ranks.all[i] = localRank{w}
			}
		}
		if err != nil {
			return fmt.Errorf("engine: connect rank %d: %w", i, err)
		}
	}
	return nil
}

// Layout says how a block lies in a rank's [Engine.File].
func (e *Engine) Layout(rank int) connector.Layout { return e.memories[rank].shard.layout() }

// File is the shared memory of a rank's KV cache. It is the engine's and open until Close.
func (e *Engine) File(rank int) *os.File { return e.memories[rank].file }

// RankPIDs are the process ids of the ranks, nil where they are part of this process.
func (e *Engine) RankPIDs() []int {
	var pids []int
	for _, r := range e.ranks.all {
		if p, ok := r.(*processRank); ok {
			pids = append(pids, p.cmd.Process.Pid)
		}
	}
	return pids
}

// Manifest is the namespace of the engine's KV.
func (e *Engine) Manifest() connector.Manifest { return e.manifest }

// Close ends the ranks and what [Engine.Connect] has made, and gives the memory back. A
// connector that was given to Attach must be closed before.
func (e *Engine) Close() error {
	var err error
	for _, r := range e.ranks.all {
		err = errors.Join(err, r.close())
	}
	if c, ok := e.scheduler.(interface{ Close() }); ok {
		c.Close()
	}
	for _, m := range e.memories {
		err = errors.Join(err, m.close())
	}
	return err
}

// Submit queues a request. It fails on one that could never be served.
func (e *Engine) Submit(q Request) error {
	if err := q.validate(&e.opts); err != nil {
		return fmt.Errorf("engine: request %q: %w", q.ID, err)
	}
	if e.find(q.ID) != nil || e.inFlight[q.ID] != nil || slices.Contains(e.finished, q.ID) {
		return fmt.Errorf("engine: request %q is there already", q.ID)
	}
	r := &request{Request: q, submitted: time.Now(), result: Result{ID: q.ID}}
	r.tokens = append(make([]uint32, 0, r.total()), q.Prompt...)
	e.waiting = append(e.waiting, r)
	return nil
}

// Abort ends a request; its result comes with the next step. Blocks that are being loaded
// into are kept until the connector has reported the load. It says whether there was
// such a request.
func (e *Engine) Abort(id string) bool {
	r := e.find(id)
	if r == nil {
		return false
	}
	r.result.Aborted = true
	e.end(r)
	return true
}

// Cancel aborts a request and takes its blocks back from a load at once, for which the
// workers must be [Canceller]s. A load that no rank knows of yet, with [Options.Overlap],
// is waited for as in Abort. It says whether there was such a request. Where a rank cannot
// cancel, the blocks are not given out again.
func (e *Engine) Cancel(ctx context.Context, id string) (bool, error) {
	r := e.find(id)
	if r == nil || !e.Abort(id) {
		return false, nil
	}
	if e.ranks.pending[id] == nil {
		return true, nil
	}
	delete(e.inFlight, id)
	if err := e.ranks.cancel(ctx, id); err != nil {
		return true, err
	}
	e.drop(r)
	return true, nil
}

// Restart takes a request's blocks, as for want of room, or where TensorRT-LLM resets a
// request: it starts over as if it were new, once its load, if there is one, has ended.
// It says whether there was such a request.
func (e *Engine) Restart(id string) bool {
	r := e.find(id)
	if r == nil {
		return false
	}
	e.preempted = append(e.preempted, r.ID)
	e.retreat(r)
	return true
}

// Reset drops the engine's own prefix cache and tells the connector.
func (e *Engine) Reset(ctx context.Context) {
	e.pool.forget()
	e.scheduler.Reset(ctx)
}

// find returns the request that has not ended, or nil.
func (e *Engine) find(id string) *request {
	for _, list := range [][]*request{e.running, e.waiting} {
		for _, r := range list {
			if r.ID == id {
				return r
			}
		}
	}
	return nil
}

// Busy says whether there is anything left to do: requests to serve, ended ones to tell
// the connector of, loads of aborted ones to wait for.
func (e *Engine) Busy() bool {
	return (e.planned != nil && e.planned.something()) || len(e.waiting)+len(e.running)+len(e.inFlight)+len(e.finished)+len(e.results) > 0
}

// Run serves requests to their end, in the order of their results. It returns when the
// engine is idle. If ctx ends first, all requests are aborted.
func (e *Engine) Run(ctx context.Context, requests []Request) ([]Result, error) {
	results := make([]Result, len(requests))
	index := make(map[string]int, len(requests))
	for i, q := range requests {
		if err := e.Submit(q); err != nil {
			return nil, err
		}
		index[q.ID] = i
	}
	for e.Busy() {
		if err := ctx.Err(); err != nil {
			for _, q := range requests {
				e.Abort(q.ID)
			}
			return nil, fmt.Errorf("engine: run: %w", err)
		}
		ended, progress, err := e.Step(ctx)
		if err != nil {
			return nil, err
		}
		for _, r := range ended {
			if i, ok := index[r.ID]; ok {
				results[i] = r
			}
		}
		if !progress {
			time.Sleep(idleDelay)
		}
	}
	return results, nil
}
