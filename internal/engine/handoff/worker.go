package handoff

import (
	"context"
	"fmt"
	"os"
	"slices"
	"sync"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/connector/client"
	"github.com/kvconn/kvconn/connector/fence"
)

// Worker is the client of one rank. It copies what is loaded; the daemon copies what is
// saved. Order of calls, promises and concurrency are those of [client.Worker].
type Worker struct {
	daemon *client.Worker
	opts   client.Options
	copier *copier

	mu      sync.Mutex
	reports []connector.FinishedLoad
}

// NewWorker returns a client for a rank whose KV memory lies in regions as layout says. The
// regions are mapped here and must fit the layout; they must stay open as long as the
// client is used.
func NewWorker(o client.Options, rank int, layout connector.Layout, regions []*os.File) (*Worker, error) {
	o.EnsureDefaults()
	w := &Worker{opts: o}
	var err error
	if w.copier, err = newCopier(&o, rank, &layout, regions); err != nil {
		return nil, err
	}
	o.Handoff, o.HostTier = true, w.copier.tiers.add
	if w.daemon, err = client.NewWorker(o, rank, layout, regions); err != nil {
		w.copier.close()
		return nil, err
	}
	return w, nil
}

// Connect connects and registers now, and says why it cannot. Nothing is offered before
// every rank has connected.
func (w *Worker) Connect(ctx context.Context) error {
	w.copier.allow()
	return w.daemon.Connect(ctx)
}

// Load starts copying what a step loads, without asking the daemon.
func (w *Worker) Load(ctx context.Context, metadata []byte, loads []connector.PlannedLoad) {
	if len(loads) == 0 {
		return
	}
	// Without a daemon the memory that is mapped still serves.
	w.daemon.Revive(ctx)
	planned := w.planned(metadata)
	for _, l := range loads {
		p := planned[l.Request]
		if p == nil || !w.copier.start(p, func() { w.daemon.Revive(context.Background()) }, w.report) {
			w.report(connector.FinishedLoad{Request: l.Request, FailedBlocks: l.Blocks})
		}
	}
}

// planned are the loads of a step by request, none where they cannot be used.
func (w *Worker) planned(metadata []byte) map[string]*load {
	p, err := parsePlan(metadata)
	if err == nil && p.Namespace != w.copier.namespace {
		err = fmt.Errorf("it is of namespace %s, this rank's is %s", p.Namespace, w.copier.namespace)
	}
	if err != nil {
		w.opts.Logger.Error("loads fail: their plan cannot be used", "err", err,
			"remedy", "run the scheduler and its ranks with one version of the connector")
		return nil
	}
	planned := make(map[string]*load, len(p.Loads))
	for i := range p.Loads {
		planned[p.Loads[i].Request] = &p.Loads[i]
	}
	return planned
}

func (w *Worker) report(l connector.FinishedLoad) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.reports = append(w.reports, l)
}

// Save has the daemon copy the blocks that the step filled. When it returns the engine may
// overwrite them.
func (w *Worker) Save(ctx context.Context, metadata []byte) connector.SaveResult {
	if len(metadata) == 0 {
		return connector.SaveResult{}
	}
	p, err := parsePlan(metadata)
	if err != nil {
		w.opts.Logger.Error("saves are dropped", "err", err)
		return connector.SaveResult{}
	}
	return w.daemon.Save(ctx, p.Saves)
}

// Poll returns the loads that ended since the last call. It connects again where the daemon
// was restarted.
func (w *Worker) Poll(ctx context.Context) []connector.FinishedLoad {
	done := w.daemon.Poll(ctx)
	w.mu.Lock()
	defer w.mu.Unlock()
	done = append(done, w.reports...)
	w.reports = nil
	return done
}

// Cancel ends a request's load. Once it returns nil nothing is written to the request's
// blocks any more, and Poll does not report it.
func (w *Worker) Cancel(ctx context.Context, request string) error {
	if err := fence.Await(ctx, w.copier.cancel(request)...); err != nil {
		return fmt.Errorf("cancel the load of %s: %w", request, err)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.reports = slices.DeleteFunc(w.reports, func(l connector.FinishedLoad) bool { return l.Request == request })
	return nil
}

// Unregister takes the memory back: once it returns nil nothing is written to it any more,
// and nothing is loaded or saved until Connect.
func (w *Worker) Unregister(ctx context.Context) error {
	copies := w.copier.forbid()
	if err := w.daemon.Unregister(ctx); err != nil {
		return err
	}
	if err := fence.Await(ctx, copies...); err != nil {
		return fmt.Errorf("unregister: %w", err)
	}
	return nil
}

// Close ends the connection and unmaps all memory.
func (w *Worker) Close() {
	w.daemon.Close()
	w.copier.close()
}
