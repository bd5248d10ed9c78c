package segment

import (
	"fmt"
	"slices"

	"github.com/kvconn/kvconn/store"
	"github.com/kvconn/kvconn/store/disk/index"
	"github.com/kvconn/kvconn/store/disk/journal"
	"golang.org/x/sync/errgroup"
)

// AddPending notes slots whose deletion is committed but not yet durable.
func (p *Space) AddPending(refs []index.Ref) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, ref := range refs {
		if g := p.At(ref); !g.retired && !g.withheld.Load() && !p.isBad(ref) {
			g.class.pending++
			p.pending = append(p.pending, ref)
		}
	}
}

// TakePending returns the slots that the barrier about to start will make free.
func (p *Space) TakePending() []index.Ref {
	p.mu.Lock()
	defer p.mu.Unlock()
	out := p.pending
	p.pending = nil
	return out
}

// Release makes slots free, after a barrier, or pending again if ok is false or someone
// still holds them.
func (p *Space) Release(refs []index.Ref, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, ref := range refs {
		g := p.At(ref)
		switch {
		case g == nil:
		case g.retired:
			g.class.pending--
		case !ok || p.o.Table.Pinned(ref):
			p.pending = append(p.pending, ref)
		default:
			g.class.pending--
			g.class.free = append(g.class.free, ref)
		}
	}
	for _, c := range p.classes {
		if len(c.free) > 0 {
			c.wake()
		}
	}
}

// AnyPending reports whether slots wait for a barrier.
func (p *Space) AnyPending() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.pending) > 0
}

// takeDirty returns the segments written to since the last call.
func (p *Space) takeDirty() []*Segment {
	p.mu.Lock()
	defer p.mu.Unlock()
	var out []*Segment
	for _, g := range p.segments {
		if g.dirty.Swap(false) {
			out = append(out, g)
		}
	}
	return out
}

// syncers is how many files are synced at one time: the kernel merges flushes of the
// device that are asked for together.
const syncers = 8

// Sync makes the payloads durable that were written since the last call.
func (p *Space) Sync() error {
	var syncing errgroup.Group
	syncing.SetLimit(syncers)
	for _, g := range p.takeDirty() {
		syncing.Go(func() error {
			err := g.File.Datasync()
			if err != nil {
				g.dirty.Store(true)
				err = fmt.Errorf("%w: %w", store.ErrIO, err)
			}
			return err
		})
	}
	return syncing.Wait()
}

// Admit makes the empty slots of a segment that was read pending: whatever was found in
// them and dropped is durably gone after the next barrier. The committer calls it.
func (p *Space) Admit(g *Segment) {
	p.mu.Lock()
	g.unread.Store(false) // it may be given up from here on
	p.track(g)
	p.mu.Unlock()
	empty := p.o.Table.Survey(g.Range(), nil)
	p.mu.Lock()
	defer p.mu.Unlock()
	if !g.retired {
		p.offer(g, empty)
	}
}

// offer makes the slots of a segment that hold no record pending, unless it takes no new
// ones. p.mu is held.
func (p *Space) offer(g *Segment, empty []index.Ref) {
	if g.Frozen {
		return
	}
	g.withheld.Store(false)
	for _, ref := range empty {
		if !p.isBad(ref) {
			g.class.pending++
			p.pending = append(p.pending, ref)
		}
	}
}

// WithoutBad leaves out the records of a segment whose slots were set aside since they were read.
func (p *Space) WithoutBad(g *Segment, records []journal.Record) []journal.Record {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.bad) == 0 {
		return records
	}
	return slices.DeleteFunc(records, func(r journal.Record) bool { return p.isBad(g.Base + index.Ref(r.Location.Slot)) })
}
