package gpubench

import (
	"context"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/kvconn/kvconn/gpu"
)

// transfer is all copies of one direction, in the batches and calls that a worker makes of them.
type transfer struct {
	c      *cache
	batch  gpu.Batch
	pieces []gpu.Piece
	// perBatch is how many pieces one call has.
	perBatch int
	// work is for the pieces of each call, which the driver may change.
	work [][]gpu.Piece
	// moved counts bytes that were copied.
	moved atomic.Int64
}

func newTransfer(c *cache, d gpu.Direction) *transfer {
	from := int(d) * c.blocks
	s := c.mem.Shape()
	t := &transfer{c: c, batch: gpu.Batch{Direction: d}, pieces: c.pieces(from, from+c.blocks)}
	t.perBatch = max(1, s.BatchBytes/c.blockBytes()) * c.Tensors
	t.work = make([][]gpu.Piece, s.Calls)
	for i := range t.work {
		t.work[i] = make([]gpu.Piece, 0, t.perBatch)
	}
	return t
}

// bytes of one run.
func (t *transfer) bytes() int { return t.c.blocks * t.c.blockBytes() }

// run copies everything once.
func (t *transfer) run(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	var next atomic.Int64
	for _, work := range t.work {
		g.Go(func() error {
			for {
				from := int(next.Add(1)-1) * t.perBatch
				if from >= len(t.pieces) || ctx.Err() != nil {
					return ctx.Err()
				}
				b := t.batch
				b.Pieces = append(work[:0], t.pieces[from:min(from+t.perBatch, len(t.pieces))]...)
				n := int64(len(b.Pieces) * t.c.runBytes())
				if err := t.c.mem.Copy(ctx, &b); err != nil {
					return err
				}
				t.moved.Add(n)
			}
		})
	}
	return g.Wait()
}

// transfers of a direction are one or two.
func transfers(c *cache, d Direction) []*transfer {
	var all []*transfer
	if d != Save {
		all = append(all, newTransfer(c, gpu.Load))
	}
	if d != Load {
		all = append(all, newTransfer(c, gpu.Save))
	}
	return all
}

// runAll runs transfers side by side and returns how long they took.
func runAll(ctx context.Context, all []*transfer) (time.Duration, error) {
	g, ctx := errgroup.WithContext(ctx)
	began := time.Now()
	for _, t := range all {
		g.Go(func() error { return t.run(ctx) })
	}
	err := g.Wait()
	return time.Since(began), err
}

// runOn runs transfers again and again, each at least once, until the returned function is called. It waits for what is under
// way, and returns the bytes copied and how long that took.
func runOn(ctx context.Context, all []*transfer) (stop func() (bytes int64, took time.Duration, err error)) {
	var ending atomic.Bool
	g, ctx := errgroup.WithContext(ctx)
	before := moved(all)
	began := time.Now()
	for _, t := range all {
		g.Go(func() error {
			err := t.run(ctx)
			for err == nil && !ending.Load() {
				err = t.run(ctx)
			}
			return err
		})
	}
	return func() (int64, time.Duration, error) {
		ending.Store(true)
		err := g.Wait()
		return moved(all) - before, time.Since(began), err
	}
}

func moved(all []*transfer) int64 {
	var n int64
	for _, t := range all {
		n += t.moved.Load()
	}
	return n
}
