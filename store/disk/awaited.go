package disk

import (
	"context"
	"slices"
	"time"

	"github.com/kvconn/kvconn/store"
	"github.com/kvconn/kvconn/store/disk/format"
	"github.com/kvconn/kvconn/store/disk/fsio"
)

// A segment that the disk did not give at the start is asked for again while the store is
// open. When it comes its headers are read as in a rebuild, and what it holds is there again
// without a restart.

const (
	// awaitFirst is the pause before segments are asked for again, awaitLast the longest.
	awaitFirst = 250 * time.Millisecond
	awaitLast  = time.Minute
)

// awaited are the segment files that the disk did not give.
func (o *opening) awaited() []*segmentFile {
	return slices.DeleteFunc(slices.Clone(o.files), func(f *segmentFile) bool { return !f.dismissed || !f.untold() })
}

// findsAll reports whether nothing is looked for any more that may hold records.
func (s *Store) findsAll() bool { return !s.rebuilt.running() && s.awaiting.Load() == 0 }

// awaitSegments asks for segments until all of them are there or the store stops.
func (s *Store) awaitSegments(ctx context.Context, files []*segmentFile) {
	select {
	case <-ctx.Done():
		return
	case <-s.rebuilt.ended:
	}
	for pause := awaitFirst; len(files) > 0; pause = min(2*pause, awaitLast) {
		if sleep(ctx, pause); ctx.Err() != nil {
			return
		}
		came := 0
		files = slices.DeleteFunc(files, func(f *segmentFile) bool {
			if ctx.Err() != nil {
				return false
			}
			g, settled := s.askFor(f)
			if g != nil {
				if s.readHeaders(ctx, g); ctx.Err() != nil {
					return false
				}
				came++
			}
			if settled {
				s.awaiting.Add(-1)
			}
			return settled
		})
		if came > 0 {
			for _, g := range s.space.allSegments() {
				s.table.Resolve(g.slots())
			}
			s.opts.Logger.Info("store: segments that could not be opened at the start are used again", "segments", came, "missing", len(files))
		}
	}
}

// askFor opens a segment file once more. settled says that it needs not be asked for again: it
// is g, or it is gone, or what it holds is for the next start to judge.
func (s *Store) askFor(f *segmentFile) (g *segment, settled bool) {
	if s.inspect(f, store.AlignedBuffer(format.HeaderBytes)); f.untold() {
		f.close()
		gone := fsio.IsNotExist(f.openErr)
		if gone {
			s.space.forgetAside(f.path)
		}
		return nil, gone
	}
	if f.headErr != nil || f.head.Store != s.id || f.head.ID != f.id || f.size < f.head.FileBytes() {
		f.close()
		return nil, true
	}
	base, err := s.table.AddSlots(roundRefs(f.head.Slots))
	if err != nil {
		f.close()
		return nil, false
	}
	f.unread = true
	g = newSegment(f.found(), base)
	s.space.takeIn(g)
	return g, true
}

// readHeaders has the index adopt what the headers of a segment name. One reader does not get in
// the way of loads, and waits for none: there may always be some.
func (s *Store) readHeaders(ctx context.Context, g *segment) {
	s.rebuilt.segments.Add(1)
	s.rebuilt.slots.Add(int64(g.Slots))
	s.rebuildReader(ctx, newRebuildWork([]*segment{g}), false)
}
