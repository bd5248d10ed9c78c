package workerbench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/connector/fence"
	"github.com/kvconn/kvconn/gpu"
	"github.com/kvconn/kvconn/store/host"
	"github.com/kvconn/kvconn/worker"
)

// workerLoader loads as an engine does: one request by one plan.
type workerLoader struct {
	b    *loadBench
	w    *worker.Worker
	page *fence.Page
}

// workerTimeout is longer than any round takes.
const workerTimeout = 5 * time.Minute

func newWorkerLoader(b *loadBench, l *connector.GroupLayout) (*workerLoader, error) {
	account, err := b.arena.Account(host.AccountOptions{Namespace: b.ns})
	if err != nil {
		return nil, err
	}
	w, err := worker.New(worker.Options{
		Namespace: b.ns, Manifest: b.manifest, Driver: new(gpu.HostDriver), Cache: host.NewCache(b.arena, b.store), Account: account,
		LoadTimeout: workerTimeout,
	})
	if err != nil {
		account.Close()
		return nil, err
	}
	p := &workerLoader{b: b, w: w}
	if err := p.register(l); err != nil {
		return nil, errors.Join(err, p.close())
	}
	return p, nil
}

func (w *workerLoader) register(l *connector.GroupLayout) error {
	f, err := w.b.descriptor()
	if err != nil {
		return err
	}
	page, pageFile, err := fence.New()
	if err != nil {
		return errors.Join(err, f.Close())
	}
	w.page = page
	layout := connector.Layout{Groups: []connector.GroupLayout{*l}}
	_, err = w.w.Register(context.Background(), &layout, []*os.File{f}, pageFile)
	return err
}

func (w *workerLoader) load(ctx context.Context, blocks []connector.PlanBlock) error {
	plan := connector.Plan{Namespace: w.b.ns, Loads: []connector.RequestLoad{{
		Request:   "bench",
		Transfers: []connector.Transfer{{Parent: w.b.parent(w.b.numbers[blocks[0].Key]), Blocks: blocks}},
	}}}
	if _, err := w.w.Load(ctx, plan.Append(nil)); err != nil {
		return err
	}
	const interval = 200 * time.Microsecond
	for {
		done, err := w.w.Poll(ctx)
		if err != nil {
			return err
		}
		for _, l := range done.Finished {
			if len(l.FailedBlocks) > 0 {
				return fmt.Errorf("%d of %d blocks failed: %w", len(l.FailedBlocks), len(blocks), errLoad)
			}
			return nil
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(interval):
		}
	}
}

var errLoad = errors.New("load failed")

// close ends the worker and waits until it has let go of the host tier.
func (w *workerLoader) close() error {
	w.w.Close()
	for !w.w.Drained() {
		time.Sleep(time.Millisecond)
	}
	if w.page == nil {
		return nil
	}
	return w.page.Close()
}
