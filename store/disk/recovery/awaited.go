package recovery

import (
	"context"
	"slices"
	"time"

	"github.com/kvconn/kvconn/store/disk/fsio"
	"github.com/kvconn/kvconn/store/disk/segment"
)

// A segment that the disk did not give at the start is asked for again while the store is
// open. When it comes its headers are read as in a rebuild, and what it holds is there again
// without a restart.

const (
	// awaitFirst is the pause before segments are asked for again, awaitLast the longest.
	awaitFirst = 250 * time.Millisecond
	awaitLast  = time.Minute
)

// Await asks for the segments that the disk did not give until all of them are there or ctx ends.
func (r *Rebuild) Await(ctx context.Context) {
	files := r.s.missing
	select {
	case <-ctx.Done():
		return
	case <-r.ended:
	}
	for pause := awaitFirst; len(files) > 0; pause = min(2*pause, awaitLast) {
		if fsio.Sleep(ctx, pause); ctx.Err() != nil {
			return
		}
		came := 0
		files = slices.DeleteFunc(files, func(f *segmentFile) bool {
			if ctx.Err() != nil {
				return false
			}
			g, settled := r.askFor(f)
			if g != nil {
				if r.readLate(ctx, g); ctx.Err() != nil {
					return false
				}
				came++
			}
			if settled {
				r.awaiting.Add(-1)
			}
			return settled
		})
		if came > 0 {
			for _, g := range r.s.Space.AllSegments() {
				r.s.Table.Resolve(g.Range())
			}
			r.s.opts.Report.Logger.Info("store: segments that could not be opened at the start are used again", "segments", came, "missing", len(files))
		}
	}
}

// askFor opens a segment file once more. settled says that it needs not be asked for again: it
// is g, or it is gone, or what it holds is for the next start to judge.
func (r *Rebuild) askFor(f *segmentFile) (g *segment.Segment, settled bool) {
	if r.s.inspect(f); f.untold() {
		f.close()
		gone := fsio.IsNotExist(f.openErr)
		if gone {
			r.s.Space.ForgetAside(f.path)
		}
		return nil, gone
	}
	if f.headErr != nil || f.head.Store != r.s.ID || f.head.ID != f.id || f.size < f.head.FileBytes() {
		f.close()
		return nil, true
	}
	base, err := r.s.Table.AddSlots(segment.RoundRefs(f.head.Slots))
	if err != nil {
		f.close()
		return nil, false
	}
	f.unread = true
	g = segment.Open(f.found(), base)
	r.s.Space.TakeIn(g)
	return g, true
}

// readLate has the index adopt what the headers of a segment name. One reader does not get in
// the way of loads, and waits for none: there may always be some.
func (r *Rebuild) readLate(ctx context.Context, g *segment.Segment) {
	r.segments.Add(1)
	r.slots.Add(int64(g.Slots))
	r.readHeaders(ctx, newRebuildWork([]*segment.Segment{g}), false)
}
