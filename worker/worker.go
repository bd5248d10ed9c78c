// Package worker moves one rank's blocks between engine memory and the host tier, which reads and
// writes records. It executes the leader's plans on the rank's own shards, copies verified records
// alone, keeps off memory that the engine takes back, and reports every load, failed or not, in
// time. It knows nothing of tokens or policy.
package worker

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/gpu"
	"github.com/kvconn/kvconn/store/host"
)

// Worker serves one rank. It is safe for concurrent use.
type Worker struct {
	opts Options

	// ctx ends with the session.
	ctx    context.Context
	cancel context.CancelFunc

	mu    sync.Mutex
	mem   *memory // nil while no memory is registered
	loads loadTable
	puts  puts

	counters counters
	// moves counts loads and saves that are under way, also on memory that is closed.
	moves atomic.Int64
	// saving counts saved blocks that the cache has not let go of. The end of one is told on
	// saveEnded, which has room for one.
	saving    atomic.Int64
	saveEnded chan struct{}
	// warnOfPlan logs once that plans cannot be used.
	warnOfPlan sync.Once
}

// New returns a worker whose memory is not registered yet.
func New(o Options) (*Worker, error) {
	o.EnsureDefaults()
	if err := o.Validate(); err != nil {
		return nil, err
	}
	w := &Worker{opts: o, loads: newLoadTable(), saveEnded: make(chan struct{}, 1)}
	w.ctx, w.cancel = context.WithCancel(context.Background())
	return w, nil
}

// Register opens the engine's memory and returns the bytes per block of each layer group. Memory
// registered earlier is released first, as by [Worker.Unregister], even if opening the new memory
// fails. fencePage is the engine's fence page (see package fence). Register closes all descriptors.
// The error wraps [connector.ErrAgain] if what copies for the memory's device is being started again,
// and otherwise [connector.ErrBadRequest].
func (w *Worker) Register(_ context.Context, l *connector.Layout, regions []*os.File, fencePage *os.File) ([]int, error) {
	defer func() {
		for _, f := range append(regions[:len(regions):len(regions)], fencePage) {
			_ = f.Close()
		}
	}()
	w.release()
	mem, err := openMemory(&w.opts, l, regions, fencePage, w.lost)
	if err != nil {
		cause := connector.ErrBadRequest
		if errors.Is(err, gpu.ErrAgain) {
			cause = connector.ErrAgain
		}
		return nil, fmt.Errorf("register KV memory: %w: %w", cause, err)
	}
	w.opts.Account.SetActive(true)
	w.mu.Lock()
	w.mem = mem
	w.mu.Unlock()
	w.opts.Logger.Info("KV memory registered", "block_bytes", mem.blockBytes())
	return mem.blockBytes(), nil
}

// Unregister gives engine memory back. When it returns, the memory is not touched any more. Loads
// and saves by key that were not reported yet never are: the engine counts them as failed.
func (w *Worker) Unregister(context.Context) error {
	w.release()
	return nil
}

// lost reports that a copy has found the registered memory gone. From here on its loads fail and
// its saves are dropped; nothing else changes.
func (w *Worker) lost(err error) {
	again := errors.Is(err, gpu.ErrAgain)
	if again {
		w.opts.Logger.Warn("what copied for a device has ended: the engine's rank is to register again", "err", err)
	} else {
		w.opts.Logger.Error("engine memory is gone: the engine goes on without cache until it registers again", "err", err,
			"remedy", "restart the engine: it has cut its shared memory off, or its device has failed; restart kvconnd if new engines fail alike")
	}
	if w.opts.Lost != nil {
		w.opts.Lost(again)
	}
}

// BlockBytes is the payload size of a block of each layer group, nil while no memory is registered
// or the memory is gone.
func (w *Worker) BlockBytes() []int {
	if mem := w.memory(); mem != nil && !mem.lost.Load() {
		return mem.blockBytes()
	}
	return nil
}

func (w *Worker) memory() *memory {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.mem
}

// call counts a call of the engine that moves blocks. It returns the registered memory, nil if there
// is none, and the number of the call.
func (w *Worker) call() (*memory, uint64) {
	mem := w.memory()
	if mem == nil {
		return nil, 0
	}
	return mem, mem.calls.Add(1)
}

// parse decodes metadata and checks that it is for this engine. The first that is not is logged: the leader may be
// on another node, whose daemon does not see that this rank is apart.
func (w *Worker) parse(metadata []byte) (*connector.Plan, error) {
	plan, err := connector.ParsePlan(metadata)
	if err == nil && plan.Namespace != w.opts.Namespace {
		err = fmt.Errorf("metadata is of another namespace, %s", plan.Namespace)
	}
	if err == nil {
		return plan, nil
	}
	w.warnOfPlan.Do(func() {
		w.opts.Logger.Warn("a plan of the engine's leader cannot be used: this rank neither loads nor saves", "namespace", w.opts.Namespace, "err", err,
			"remedy", "use one version of kvconnd on all nodes of the engine, and one version and the same settings of engine and connector in all its processes")
	})
	return nil, fmt.Errorf("%w: %w", connector.ErrBadRequest, err)
}

// release ends the loads and saves on the registered memory without a report, and gives it back.
func (w *Worker) release() {
	w.mu.Lock()
	mem := w.mem
	w.mem = nil
	ended := w.loads.giveUpAll()
	w.puts.abandon()
	w.mu.Unlock()
	for _, l := range ended {
		w.forget(l)
	}
	if mem == nil {
		return
	}
	w.opts.Account.SetActive(false)
	if err := mem.close(); err != nil {
		w.opts.Logger.Error("engine memory could not be unmapped: it stays taken while this process runs", "err", err,
			"remedy", "restart kvconnd if the memory is missed")
	}
}

// Close ends the session. When it returns, engine memory is not touched any more and no
// longer mapped. Saves that were taken are still written.
func (w *Worker) Close() {
	w.cancel()
	w.release()
	w.opts.Account.Close()
}

// Drained reports whether nothing is under way. Once true after Close, it stays true.
func (w *Worker) Drained() bool { return w.moves.Load() == 0 }

// Stats counts a worker's transfers since its start. The tags are those of package counters.
type Stats struct {
	Loads          uint64  `json:"loads" metric:"loads_total" help:"Loads that have ended. Each rank of an engine has its own."`
	LoadsFailed    uint64  `json:"loads_failed" metric:"loads_failed_total" help:"Loads with at least one failed block. Each rank of an engine has its own."`
	LoadsCancelled uint64  `json:"loads_cancelled" metric:"loads_cancelled_total" help:"Loads that the engine cancelled. Each rank of an engine has its own."`
	LoadsInFlight  int     `json:"loads_in_flight" metric:"loads_in_flight" help:"Loads running."`
	LoadedBlocks   uint64  `json:"loaded_blocks" metric:"loaded_blocks_total" help:"Blocks that reached engine memory."`
	LoadedBytes    uint64  `json:"loaded_bytes" metric:"loaded_bytes_total" help:"Bytes that reached engine memory."`
	FailedBlocks   uint64  `json:"failed_blocks" metric:"failed_blocks_total" help:"Blocks of loads that failed."`
	LoadSeconds    float64 `json:"load_seconds" metric:"load_seconds_total" help:"Time that loads took, summed over all ranks."`
	CopySeconds    float64 `json:"copy_seconds" metric:"load_copy_seconds_total" help:"Time that loads spent copying into engine memory: a part of kvconn_load_seconds_total, summed over all ranks."`
	SavedBlocks    uint64  `json:"saved_blocks" metric:"saved_blocks_total" help:"Blocks taken over by the store."`
	SavedBytes     uint64  `json:"saved_bytes" metric:"saved_bytes_total" help:"Bytes taken over by the store."`
	DroppedBlocks  uint64  `json:"dropped_blocks" metric:"dropped_blocks_total" help:"Blocks that were not saved: there was no room for them, a write failed, or the engine took them back."`
}

type counters struct {
	loads, loadsFailed, loadsCancelled, loadNanos, copyNanos atomic.Uint64
	loadedBlocks, loadedBytes, failedBlocks                  atomic.Uint64
	savedBlocks, savedBytes, droppedBlocks                   atomic.Uint64
}

// Stats returns the counters.
func (w *Worker) Stats() Stats {
	w.mu.Lock()
	inFlight := len(w.loads.running)
	w.mu.Unlock()
	c := &w.counters
	return Stats{
		Loads: c.loads.Load(), LoadsFailed: c.loadsFailed.Load(), LoadsCancelled: c.loadsCancelled.Load(), LoadsInFlight: inFlight,
		LoadedBlocks: c.loadedBlocks.Load(), LoadedBytes: c.loadedBytes.Load(), FailedBlocks: c.failedBlocks.Load(),
		LoadSeconds: time.Duration(c.loadNanos.Load()).Seconds(), CopySeconds: time.Duration(c.copyNanos.Load()).Seconds(),
		SavedBlocks: c.savedBlocks.Load(), SavedBytes: c.savedBytes.Load(), DroppedBlocks: c.droppedBlocks.Load(),
	}
}

// Options configure a [Worker].
type Options struct {
	// Namespace is the engine's, Manifest its description.
	Namespace connector.NamespaceDigest
	Manifest  *connector.Manifest
	// Rank is the worker's place in the manifest's rank grid.
	Rank   int
	Driver gpu.Driver
	// Cache is what the worker reads and writes records through. Its tier is asked whether
	// blocks of a size can be saved and loaded before memory with such blocks is taken, and
	// keeps others out while it is held.
	Cache *host.Cache
	// Account is the rank's share of the cache's memory. The worker closes it.
	Account *host.Account
	// LoadTimeout is the time in which every load and every save by key ends, and what a save
	// waits for its engine's device at most; each read of a record has a deadline of its tier's besides.
	// Default 10 s: longer than any load that beats prefill, short
	// enough for the client that waits.
	LoadTimeout time.Duration
	// Lost, if not nil, is called, from any goroutine, when a copy has found the registered
	// memory gone: nothing can be loaded until memory is registered again. again says
	// that the same memory can be. It must not call the worker.
	Lost func(again bool)
	// Connection, if not nil, returns a duplicate of the socket to the engine, which drivers hold that have another
	// process copy ([gpu.Holder]).
	Connection func() (*os.File, error)
	// Trace, if not nil, returns the traceparent of a request, "" if there is none: for the log. It is
	// called from any goroutine.
	Trace func(request string) string
	// Observer, if not nil, is told how long loads and saves take.
	Observer Observer
	// Logger receives what an operator should know. Default: nothing.
	Logger *slog.Logger
}

// EnsureDefaults fills in what is not set.
func (o *Options) EnsureDefaults() {
	o.LoadTimeout = cmp.Or(o.LoadTimeout, 10*time.Second)
	o.Logger = cmp.Or(o.Logger, slog.New(slog.DiscardHandler))
}

// Validate reports the first option that cannot work.
func (o *Options) Validate() error {
	switch {
	case o.Driver == nil:
		return errors.New("worker: no driver")
	case o.Cache == nil:
		return errors.New("worker: no cache")
	case o.Account == nil:
		return errors.New("worker: no account at the host tier")
	case o.Manifest == nil:
		return errors.New("worker: no manifest")
	case o.Rank < 0 || o.Rank >= o.Manifest.Ranks():
		return errors.New("worker: rank outside of the manifest's grid")
	case o.LoadTimeout <= 0:
		return errors.New("worker: load timeout must be positive")
	}
	return nil
}
