package engine

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/engine/model"
)

// idleDelay is the pause of Run after a step that had nothing to do but wait for loads.
const idleDelay = 200 * time.Microsecond

// Options configure an [Engine].
type Options struct {
	// Model is the model to serve.
	Model model.Config
	// BlockSize is the number of tokens in a block. Default 16.
	BlockSize int
	// Blocks is the size of the KV cache; one block is never used. Default: room for two
	// sequences of the model's longest context.
	Blocks int
	// MaxBatchedTokens is the budget of one step; longer prompts are computed in chunks.
	// Default 256.
	MaxBatchedTokens int
	// MaxSeqs is the number of requests computed together. Default 8.
	MaxSeqs int
	// PrefixCaching lets requests share blocks of equal content.
	PrefixCaching bool
}

// EnsureDefaults fills in what is not set.
func (o *Options) EnsureDefaults() {
	if o.BlockSize == 0 {
		o.BlockSize = 16
	}
	if o.Blocks == 0 {
		o.Blocks = 1 + 2*((o.Model.MaxContext+o.BlockSize-1)/o.BlockSize)
	}
	if o.MaxBatchedTokens == 0 {
		o.MaxBatchedTokens = 256
	}
	if o.MaxSeqs == 0 {
		o.MaxSeqs = 8
	}
}

// Validate reports the first option that cannot work.
func (o *Options) Validate() error {
	switch {
	case o.BlockSize < 1 || o.BlockSize > connector.MaxBlockSize:
		return fmt.Errorf("engine: block size %d: want 1 to %d", o.BlockSize, connector.MaxBlockSize)
	case o.Blocks < 2 || o.Blocks > 1<<24:
		return fmt.Errorf("engine: %d blocks: want 2 to %d", o.Blocks, 1<<24)
	case o.MaxBatchedTokens < 1:
		return fmt.Errorf("engine: budget of %d tokens a step: want at least 1", o.MaxBatchedTokens)
	case o.MaxSeqs < 1:
		return fmt.Errorf("engine: %d sequences: want at least 1", o.MaxSeqs)
	}
	return o.Model.Validate()
}

// Engine serves requests. It is not safe for concurrent use: everything happens in the
// goroutine that calls Step or Run.
type Engine struct {
	opts      Options
	model     *model.Model
	memory    *memory
	pool      *blockPool
	scheduler SchedulerConnector
	worker    WorkerConnector

	// waiting requests are in order of arrival, loading ones among them; running ones in
	// the order in which they were admitted.
	waiting, running []*request
	// inFlight are the requests whose load has not ended, aborted ones included: their
	// blocks are not given back before.
	inFlight map[string]*request
	// finished ids are told to the connector in the next step.
	finished []string
	results  []Result
}

// New makes an engine without a connector.
func New(o Options) (*Engine, error) {
	o.EnsureDefaults()
	if err := o.Validate(); err != nil {
		return nil, err
	}
	m, err := newMemory(o.Model, o.Blocks, o.BlockSize)
	if err != nil {
		return nil, err
	}
	return &Engine{
		opts: o, model: model.New(o.Model), memory: m, pool: newBlockPool(o.Blocks),
		scheduler: noConnector{}, worker: noConnector{}, inFlight: make(map[string]*request),
	}, nil
}

// Attach gives the engine its connector, to which [Engine.Layout], [Engine.File] and
// [Engine.Manifest] were declared. It must be called before the first request.
func (e *Engine) Attach(s SchedulerConnector, w WorkerConnector) { e.scheduler, e.worker = s, w }

// Layout says how a block lies in [Engine.File].
func (e *Engine) Layout() connector.Layout { return e.memory.layout() }

// File is the shared memory of the KV cache. It is the engine's and open until Close.
func (e *Engine) File() *os.File { return e.memory.file }

// Manifest is the namespace of the engine's KV.
func (e *Engine) Manifest() connector.Manifest {
	c := e.opts.Model
	return connector.Manifest{
		Engine: "kvconn-engine/1", Model: c.Name, Revision: e.model.Fingerprint(),
		KVDType: "float32", BlockSize: e.opts.BlockSize,
		Groups:         []connector.Group{{Layers: c.Layers, KVHeads: c.KVHeads, HeadSize: 2 * c.HeadDim, Layout: "LBHNC"}},
		TensorParallel: 1, PipelineParallel: 1,
		KeyScheme: connector.KeySchemeTokens, HashScheme: connector.HashScheme,
	}
}

// Close gives the memory back. The connector must be closed before.
func (e *Engine) Close() error { return e.memory.close() }

// Submit queues a request. It fails on one that could never be served.
func (e *Engine) Submit(q Request) error {
	need := len(q.Prompt) + q.MaxTokens
	switch {
	case q.ID == "":
		return errors.New("engine: request without id")
	case e.find(q.ID) != nil || e.inFlight[q.ID] != nil || slices.Contains(e.finished, q.ID):
		return fmt.Errorf("engine: request %q is there already", q.ID)
	case len(q.Prompt) == 0 || q.MaxTokens < 1:
		return fmt.Errorf("engine: request %q: %d prompt tokens, %d to generate: want at least 1 each", q.ID, len(q.Prompt), q.MaxTokens)
	case need > e.opts.Model.MaxContext || need > (e.opts.Blocks-1)*e.opts.BlockSize:
		return fmt.Errorf("engine: request %q needs %d tokens: the context has %d, the KV cache %d",
			q.ID, need, e.opts.Model.MaxContext, (e.opts.Blocks-1)*e.opts.BlockSize)
	}
	for _, t := range q.Prompt {
		if int(t) >= e.opts.Model.Vocab {
			return fmt.Errorf("engine: request %q: token %d: the vocabulary has %d", q.ID, t, e.opts.Model.Vocab)
		}
	}
	r := &request{Request: q, submitted: time.Now(), result: Result{ID: q.ID}}
	r.tokens = append(make([]uint32, 0, need), q.Prompt...)
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
	return len(e.waiting)+len(e.running)+len(e.inFlight)+len(e.finished)+len(e.results) > 0
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
