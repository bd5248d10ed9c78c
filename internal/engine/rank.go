package engine

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/kvconn/kvconn/connector"
)

// ErrRank means that a rank is dead or does not answer. The engine is of no more use, as a
// real one is not: the shards of its blocks have no owner.
var ErrRank = errors.New("rank is lost")

// rank is a rank's worker, in this process or in another. Errors wrap [ErrRank].
type rank interface {
	load(ctx context.Context, metadata []byte, loads []connector.PlannedLoad) error
	save(ctx context.Context, metadata []byte) error
	poll(ctx context.Context) ([]connector.FinishedLoad, error)
	cancel(ctx context.Context, request string) error
	close() error
}

// localRank is a rank in this process.
type localRank struct{ worker WorkerConnector }

func (r localRank) load(ctx context.Context, metadata []byte, loads []connector.PlannedLoad) error {
	r.worker.Load(ctx, metadata, loads)
	return nil
}

func (r localRank) save(ctx context.Context, metadata []byte) error {
	r.worker.Save(ctx, metadata)
	return nil
}

func (r localRank) poll(ctx context.Context) ([]connector.FinishedLoad, error) {
	return r.worker.Poll(ctx), nil
}

func (r localRank) cancel(ctx context.Context, request string) error {
	c, ok := r.worker.(Canceller)
	if !ok {
		return errors.New("the connector cannot cancel loads")
	}
	return c.Cancel(ctx, request)
}

func (r localRank) close() error {
	if c, ok := r.worker.(interface{ Close() }); ok {
		c.Close()
	}
	return nil
}

// ranks are all ranks of an engine, with the loads that not all of them have reported.
type ranks struct {
	all     []rank
	pending map[string]*pendingLoad
}

// pendingLoad is a load that some ranks have ended.
type pendingLoad struct {
	reported []bool
	failed   []uint32
}

// each calls do for every rank at the same time.
func (r *ranks) each(do func(i int, x rank) error) error {
	errs := make([]error, len(r.all))
	var group sync.WaitGroup
	for i, x := range r.all[1:] {
		group.Go(func() { errs[i+1] = do(i+1, x) })
	}
	errs[0] = do(0, r.all[0])
	group.Wait()
	for i, err := range errs {
		if err != nil {
			errs[i] = fmt.Errorf("engine: rank %d: %w", i, err)
		}
	}
	return errors.Join(errs...)
}

func (r *ranks) load(ctx context.Context, metadata []byte, loads []connector.PlannedLoad) error {
	for _, l := range loads {
		r.pending[l.Request] = &pendingLoad{reported: make([]bool, len(r.all))}
	}
	return r.each(func(_ int, x rank) error { return x.load(ctx, metadata, loads) })
}

func (r *ranks) save(ctx context.Context, metadata []byte) error {
	return r.each(func(_ int, x rank) error { return x.save(ctx, metadata) })
}

// reuse tells which blocks a step gives other content.
func (r *ranks) reuse(p *plan) {
	for _, x := range r.all {
		local, _ := x.(localRank)
		if w, ok := local.worker.(Reuser); ok {
			blocks := slices.Clone(p.fresh)
			for _, c := range p.copies {
				blocks = append(blocks, c.dst)
			}
			w.Reuse(blocks)
		}
	}
}

// poll returns the loads that the last rank has ended now; their failed blocks are those
// of any rank.
func (r *ranks) poll(ctx context.Context) ([]connector.FinishedLoad, error) {
	reports := make([][]connector.FinishedLoad, len(r.all))
	err := r.each(func(i int, x rank) (err error) {
		reports[i], err = x.poll(ctx)
		return err
	})
	if err != nil {
		return nil, err
	}
	var done []connector.FinishedLoad
	for i, report := range reports {
		for _, l := range report {
			p := r.pending[l.Request]
			if p == nil || p.reported[i] {
				return nil, fmt.Errorf("engine: rank %d: connector reports a load of request %q, which has none in flight", i, l.Request)
			}
			p.reported[i] = true
			p.failed = append(p.failed, l.FailedBlocks...)
			if !slices.Contains(p.reported, false) {
				delete(r.pending, l.Request)
				slices.Sort(p.failed)
				done = append(done, connector.FinishedLoad{Request: l.Request, FailedBlocks: slices.Compact(p.failed)})
			}
		}
	}
	return done, nil
}

// cancel takes a load back on every rank.
func (r *ranks) cancel(ctx context.Context, request string) error {
	delete(r.pending, request)
	return r.each(func(_ int, x rank) error { return x.cancel(ctx, request) })
}

func (r *ranks) close() error {
	return r.each(func(_ int, x rank) error { return x.close() })
}
